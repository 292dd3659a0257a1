"""
A backlog under a limit, on real brokers and real `dramatiq` workers: ours, and what else there is, in one run.

    python tests/benchmarks/dramatiq_flood.py [--quick] [--broker redis|rabbitmq|both] [--only TEXT] [--json FILE]

2 processes of 4 threads. The full run takes about 20 minutes, --quick about 5. Exits with 1 if throttlekit breaks
a promise; the promises are in `broken`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import get_args

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.table import Table

from support.dramatiq_workers import clean_up_when_terminated
from support.flood import Flood, FloodLimit, run
from support.flood_figures import Figures, figures
from support.flood_servers import Kind, servers

MOST_DELIVERIES = 2.2
LEAST_USE = 0.97
LEAST_USE_TIGHT = 0.9
_TUNED = {"min_backoff": 500, "max_backoff": 2000, "max_retries": 10_000}
_PATIENCE = 90.0

_FOOTNOTES = """\
use: share of the limit used, by the store's clock where grants are recorded, else by the starts. Jobs done only.
bound: worst excess over `burst + window / interval` in any window, by the grants (exact, must be <= 0), as time;
  and by the bodies' starts, whose excess is the jitter between a grant and its body.
in 1 s: most starts within one second, and how many the limit itself promises at most.
deliveries: messages handed to a worker per job done, the first included. ops: enqueue, ack and nack per job done.
cmds: what the broker's Redis was asked per job done, polling included.
order: share of pairs of jobs that started in the wrong order; 50 % is chance.
twice: bodies begun beyond one a job. lost: neither done nor left in the broker.
naive: time to one token + U(0, 1) s, polling every 50 ms, with our prefetch.
native: WindowRateLimiter(limit=rate, window=1), with Dramatiq's default retries; tuned: back-off 0.5 to 2 s,
  10 000 retries. Floods that take too long are stopped."""


@dataclass(frozen=True)
class Row:
    """One flood, and what it is called in the table."""

    name: str
    flood: Flood
    ours: bool = True


def account_of(index: int) -> str:
    """Five accounts; the first has two jobs in five, so that its own limit binds too."""
    return f"a{(0, 1, 0, 2, 0, 3, 0, 4, 1, 2)[index % 10]}"


def rows(quick: bool) -> Iterator[Row]:
    backlogs = (100, 300) if quick else (400, 4000)
    for burst in (10, 50):
        for jobs in backlogs:
            limits: tuple[FloodLimit, ...] = (FloodLimit("partner", "50/s", burst),)
            yield Row(f"throttlekit {jobs} 50/s burst {burst}", Flood(limits=limits, jobs=jobs, give_up=jobs / 50 + 60))
    limits = (FloodLimit("partner", "10/s", 1),)
    yield Row("throttlekit tight 10/s burst 1", Flood(limits=limits, jobs=60 if quick else 300, give_up=90))
    limits = (FloodLimit("partner", "30/s", 30), FloodLimit("account", "10/s", 10, "{account}"))
    flood = Flood(limits=limits, jobs=200 if quick else 800, account_of=account_of, give_up=90)
    yield Row("throttlekit two limits", flood)
    limits = (FloodLimit("partner", "50/s", 50),)
    patience = 20.0 if quick else _PATIENCE
    for jobs in backlogs:
        naive = Flood(limits=limits, jobs=jobs, mode="naive", give_up=patience)
        yield Row(f"naive {jobs} 50/s burst 50", naive, ours=False)
        for name, options in (("native", {}), ("native tuned", _TUNED)):
            native = Flood(limits=limits, jobs=jobs, mode="native", options=options, give_up=patience)
            yield Row(f"{name} {jobs} 50/s", native, ours=False)


def broken(row: Row, found: Figures) -> list[str]:
    """The promises of ours that *found* breaks."""
    tight = min(limit.burst for limit in row.flood.limits) == 1
    several = len(row.flood.limits) > 1
    least_use = LEAST_USE_TIGHT if tight else LEAST_USE
    # A burst of 1 leaves no room for lateness: what is promised of it is the bound and the use.
    few = several or tight or found.deliveries <= MOST_DELIVERIES
    checks = {
        f"the bound holds (by {found.grants_beyond_us} µs)": found.grants_beyond_us is not None and found.bound_holds,
        f"use {found.use:.3f} >= {least_use}": several or found.use >= least_use,
        f"deliveries {found.deliveries:.2f} <= {MOST_DELIVERIES}": few,
        f"lost {found.lost}, left {found.left}: 0": found.lost == found.left == 0,
        f"duplicates {found.duplicates}: 0": found.duplicates == 0,
        f"charges without a grant {found.unexplained_charges}: 0": found.unexplained_charges == 0,
    }
    return [f"{row.name}: {promise}" for promise, kept in checks.items() if not kept]


def uneven(done: list[tuple[Row, Figures]]) -> list[str]:
    """Pairs of backlogs under one limit whose deliveries per job differ by more than a tenth."""
    per_limit: dict[FloodLimit, list[float]] = {}
    for row, found in done:
        if row.ours and len(row.flood.limits) == 1:
            per_limit.setdefault(row.flood.limits[0], []).append(found.deliveries)
    return [
        f"{limit.rate} burst {limit.burst}: deliveries per job {few:.2f} and {many:.2f} differ by more than a tenth"
        for limit, (few, *rest) in per_limit.items()
        for many in rest
        if abs(many - few) > 0.1 * min(few, many)
    ]


def table() -> Table:
    titles = "broker|row|done|took s|ideal|use|bound, grants|starts|in 1 s|deliveries|ops|cmds|CPU ms|order|twice|lost"
    made = Table(title="A backlog under a limit: 2 processes × 4 threads, per job done")
    for title in titles.split("|"):
        made.add_column(title, justify="left" if title in ("broker", "row") else "right", no_wrap=True)
    return made


def cells(kind: str, row: Row, found: Figures, wrong: list[str]) -> list[str]:
    by_grants = "-" if found.grants_beyond_us is None else f"{found.grants_beyond_us / 1000:+.1f} ms"
    undone = "" if not found.lost else f" of {row.flood.jobs}"
    return [
        kind,
        row.name + (" ✗" if wrong else ""),
        f"{found.done}{undone}",
        f"{found.took:.1f}",
        f"{found.ideal:.1f}",
        f"{found.use:.3f}",
        by_grants,
        f"{found.starts_beyond_ms:+.1f} ms",
        f"{found.most_in_1s} ({found.allowed_in_1s})",
        f"{found.deliveries:.2f}",
        f"{found.operations:.1f}",
        "-" if found.commands is None else f"{found.commands:.1f}",
        f"{found.cpu_ms:.1f}",
        f"{100 * found.inverted:.1f} %",
        str(found.duplicates),
        str(max(0, found.lost - found.left)),
    ]


def main() -> int:
    clean_up_when_terminated()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small backlogs: is it all there?")
    parser.add_argument("--broker", choices=(*get_args(Kind), "both"), default="both")
    parser.add_argument("--only", default="", help="the rows whose name holds this text")
    parser.add_argument("--json", type=Path, help="write all figures to this file as well")
    parser.add_argument("--markdown", type=Path, help="write the table to this file as well, for the docs")
    options = parser.parse_args()
    kinds = get_args(Kind) if options.broker == "both" else (options.broker,)
    shown, faults, all_done = table(), list[str](), list[dict[str, object]]()
    progress = Console(stderr=True, highlight=False, width=220 if not sys.stderr.isatty() else None)
    for kind in kinds:
        done: list[tuple[Row, Figures]] = []
        with servers(kind) as where:
            for row in rows(options.quick):
                if options.only not in row.name:
                    continue
                found = figures(run(row.flood, where))
                wrong = [f"{kind}: {fault}" for fault in broken(row, found)] if row.ours else []
                done.append((row, found))
                faults += wrong
                shown.add_row(*cells(kind, row, found, wrong))
                progress.print(" | ".join(cells(kind, row, found, wrong)))
                all_done.append({"broker": kind, "row": row.name, **asdict(found)})
        # In a small backlog those whom the burst lets through at once weigh too much.
        faults += [] if options.quick else [f"{kind}: {fault}" for fault in uneven(done)]
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 220)
    console.print(shown)
    console.print(_FOOTNOTES)
    console.print("\n".join(f"BROKEN  {fault}" for fault in faults) or "Every promise kept.")
    if options.json:
        options.json.write_text(json.dumps(all_done, indent=1))
    if options.markdown:
        options.markdown.write_text(page(shown, faults, " ".join(["python", *sys.argv])))
    return 1 if faults else 0


def page(shown: Table, faults: list[str], command: str) -> str:
    """The table as a page of the docs: what ran, on what, and what came out."""
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("dramatiq", "redis", "pika"))
    columns = [list(column.cells) for column in shown.columns]
    lines = [
        "# Benchmarks",
        "",
        f"Printed by `{command}` on {date.today()}; not edited by hand.",
        f"Python {platform.python_version()}, {versions}, on {os.cpu_count()} cores of {platform.system()} "
        f"{platform.machine()}: read the ratios, not the seconds.",
        "",
        "| " + " | ".join(str(column.header) for column in shown.columns) + " |",
        "|" + "---|" * len(columns),
        *("| " + " | ".join(map(str, row)) + " |" for row in zip(*columns, strict=True)),
        "",
        *(f"* {note}" for note in _FOOTNOTES.replace("\n  ", " ").splitlines()),
        "",
        *(f"BROKEN: {fault}" for fault in faults),
        *([] if faults else ["Every promise kept."]),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
