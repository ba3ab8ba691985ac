"""The command line: one file per command, imported when that command is called.

Knows options, terminals and exit codes; everything else is asked of the packages below. Results go
to standard output, everything about them (progress, figures, errors) to standard error.
"""
