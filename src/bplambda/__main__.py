"""`python -m bplambda`, where the command is not on the path."""

from .cli import main

main()
