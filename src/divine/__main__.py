"""The command line, as the script `divine` and as `python -m divine`.

Imports nothing of its own: from here on Ctrl-C ends the program without a word, also while Python
is still importing.
"""

import sys


def main() -> None:
    """Run the command line; never returns."""
    try:
        from divine.cli.main import execute

        code = execute(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    main()
