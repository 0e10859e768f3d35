"""`python -m offsetkeeper` is the command."""

from offsetkeeper.cli.main import main

main()
