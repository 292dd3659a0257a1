"""`python -m throttlekit_cli` is the command `throttlekit`."""

from throttlekit_cli import main

main()
