"""The entry point. It imports nothing that an extra brings, so that it can say which extra is missing."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence

__all__ = ["main", "missing"]

_INSTALL = "pip install 'throttlekit-jobs[demo]'"


def main() -> None:
    """Run the command line. Exits; never returns."""
    if text := missing(["click"]):
        print(f"Error: {text}", file=sys.stderr)
        sys.exit(2)
    from throttlekit_cli._commands import cli

    cli(prog_name="throttlekit")


def missing(packages: Sequence[str]) -> str | None:
    """One line that names which of *packages* are not installed and how to get them; None if all are."""
    absent = [name for name in packages if importlib.util.find_spec(name) is None]
    return f"this needs {', '.join(absent)}: {_INSTALL}" if absent else None
