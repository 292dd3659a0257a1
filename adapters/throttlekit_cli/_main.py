"""The entry point. It imports nothing that an extra brings, so that it can say which extra is missing."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from throttlekit_cli._extras import missing

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None, *, program: str = "throttlekit") -> None:
    """
    Run the command line. Exits; never returns.

    Args:
        arguments: Default: those of this process.
        program: What the help names.
    """
    if text := missing(["click"]):
        print(f"Error: {text}", file=sys.stderr)
        sys.exit(2)
    from throttlekit_cli._commands import cli

    cli(arguments, prog_name=program)
