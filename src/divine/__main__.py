"""`python -m divine`: the command line."""

from divine.cli.main import main

main()
