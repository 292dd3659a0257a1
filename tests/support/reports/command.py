"""A benchmark as a command: its options, new servers for each selected broker, and its exit code."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import get_args

from rich.console import Console
from rich.table import Table

from support.servers.flood import Kind, Servers, servers

__all__ = ["each_broker", "parser_of", "show"]


def _clean_up_when_terminated() -> None:
    """Let SIGTERM (a cancelled CI job, `timeout`) unwind like Ctrl-C, so that no process is left."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def parser_of(doc: str | None, *, broker: bool = False, quick: str = "", only: str = "") -> argparse.ArgumentParser:
    """
    Return a parser whose help is *doc*, for a command that cleans up when it is terminated.

    Args:
        broker: Add --broker, for `each_broker`.
        quick, only: Add --quick and --only, with these as their help.
    """
    _clean_up_when_terminated()
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if broker:
        parser.add_argument("--broker", choices=(*get_args(Kind), "both"), default="both")
    if quick:
        parser.add_argument("--quick", action="store_true", help=quick)
    if only:
        parser.add_argument("--only", default="", help=only)
    return parser


def each_broker(options: argparse.Namespace) -> Iterator[Servers]:
    """Yield new servers for each broker that --broker selects, one after the other."""
    for kind in get_args(Kind) if options.broker == "both" else (options.broker,):
        with servers(kind) as where:
            yield where


def show(tables: Sequence[Table], faults: Sequence[str], notes: Sequence[str] = (), *, width: int = 140) -> int:
    """Print tables, broken promises and notes. Return the exit code. *width* is used if the output is no terminal."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else width)
    for table in tables:
        console.print(table)
    console.print("\n".join([f"BROKEN  {fault}" for fault in faults] + [f"MORE    {note}" for note in notes]))
    return 1 if faults else 0
