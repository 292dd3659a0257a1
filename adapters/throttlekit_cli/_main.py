"""The entry point. It imports no optional package, so that it can report which extra is missing."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence

__all__ = ["describe_missing", "main"]


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


def describe_missing(packages: Sequence[str], extra: str = "cli") -> str | None:
    """Return one line with the missing *packages* and the *extra* that installs them, or None if none is missing."""
    absent = [name for name in packages if importlib.util.find_spec(name) is None]
    return f"this needs {', '.join(absent)}: pip install 'throttlekit-jobs[{extra}]'" if absent else None
