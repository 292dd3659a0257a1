"""The entry point. It imports no optional package, so that it can report which extra is missing."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from throttlekit_cli._extras import describe_missing

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None, *, program: str = "throttlekit") -> None:
    """
    Run the command line, and exit.

    Args:
        arguments: The arguments of the command. Default: the arguments of this process.
        program: The name of the program in its help.
    """
    if text := describe_missing(["click"]):
        print(f"Error: {text}", file=sys.stderr)
        sys.exit(2)
    from throttlekit_cli._commands import cli

    cli(arguments, prog_name=program)
