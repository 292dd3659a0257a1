"""The entry point. It imports nothing that an extra brings, so that it can say which extra is missing."""

from __future__ import annotations

import sys

from throttlekit_cli._extras import missing

__all__ = ["main"]


def main() -> None:
    """Run the command line. Exits; never returns."""
    if text := missing(["click"]):
        print(f"Error: {text}", file=sys.stderr)
        sys.exit(2)
    from throttlekit_cli._commands import cli

    cli(prog_name="throttlekit")
