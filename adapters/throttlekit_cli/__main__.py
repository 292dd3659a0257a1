"""Run the command `throttlekit` with `python -m throttlekit_cli`."""

from throttlekit_cli import main

main()
