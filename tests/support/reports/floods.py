"""Floods as rows of a table: checked, shown, and written for the docs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from support.flood.figures import Figures, figures
from support.flood.run import Flood, FloodLimit, FloodRecord, run
from support.reports.command import parser_of
from support.reports.tables import page
from support.servers.flood import Servers

__all__ = ["LEAST_USE", "MOST_DELIVERIES", "Report", "Row", "denials", "flood_options"]

MOST_DELIVERIES = 2.2
LEAST_USE = 0.97
_TITLES = "broker|row|done|took s|ideal|use|bound, grants|starts|in 1 s|deliveries|ops|cmds|CPU ms|order|twice|lost"
_FOOTNOTES = """\
use: share of the limit used, by the store's clock where grants are recorded, else by the starts. Jobs done only.
bound: worst excess over `burst + window / interval` in any window, by the grants (exact, must be <= 0), as time;
  and by the bodies' starts, whose excess is the jitter between a grant and its body.
in 1 s: most starts within one second, and how many the limit itself promises at most.
deliveries: messages handed to a worker per job done, the first included.
order: share of pairs of jobs with the same limits that started in the wrong order; 50 % is chance.
twice: bodies begun beyond one a job. lost: neither done nor left in the broker.
"""


@dataclass(frozen=True)
class Row:
    """
    One flood, its name in the table, and its promises if it is *ours*.

    Attributes:
        least_use: The promised use. None: no promise.
        most_deliveries: The promised maximum. None: no promise, as for a burst of 1, which has no reserve for lateness.
    """

    name: str
    flood: Flood
    ours: bool = True
    least_use: float | None = LEAST_USE
    most_deliveries: float | None = MOST_DELIVERIES

    def broken(self, found: Figures) -> list[str]:
        """Return the promises that *found* breaks."""
        if not self.ours:
            return []
        use, most = self.least_use, self.most_deliveries
        checks = {
            f"the bound holds (by {found.grants_beyond_us} µs)": found.grants_beyond_us is not None
            and found.bound_holds,
            f"use {found.use:.3f} >= {use}": use is None or found.use >= use,
            f"deliveries {found.deliveries:.2f} <= {most}": most is None or found.deliveries <= most,
            f"lost {found.lost}, left {found.left}: 0": found.lost == found.left == 0,
            f"duplicates {found.duplicates}: 0": found.duplicates == 0,
            f"charges without a grant {found.unexplained_charges}: 0": found.unexplained_charges == 0,
        }
        return [f"{self.name}: {promise}" for promise, kept in checks.items() if not kept]


def flood_options(doc: str | None, *, broker: bool = False) -> argparse.Namespace:
    """Return the parsed options of a flood benchmark."""
    parser = parser_of(
        doc, broker=broker, quick="small backlogs: is it all there?", only="the rows whose name holds this text"
    )
    parser.add_argument("--json", type=Path, help="write all figures to this file as well")
    parser.add_argument("--markdown", type=Path, help="write the table to this file as well, for the docs")
    return parser.parse_args()


def denials(result: FloodRecord) -> float:
    """Return how often the store has denied a job."""
    return result.counts.get("store: exhausted", 0) + result.counts.get("store: in line", 0)


class Report:
    """
    The table of a benchmark, to which rows are added.

    Args:
        footnotes: The meaning of the framework's rows and columns. docs/results/index.md has that of all floods.
        packages: The packages whose versions are in the docs.
        heading: The heading of the page in the docs.
    """

    def __init__(
        self, options: argparse.Namespace, title: str, footnotes: str, packages: Sequence[str], heading: str
    ) -> None:
        self._options, self._packages, self._heading = options, packages, heading
        self._footnotes = footnotes
        self._table = Table(title=title)
        for name in _TITLES.split("|"):
            self._table.add_column(name, justify="left" if name in ("broker", "row") else "right", no_wrap=True)
        self._faults: list[str] = []
        self._all: list[dict[str, object]] = []
        self._lines: list[str] = []
        self._of_limit: dict[tuple[str, FloodLimit, str], list[float]] = {}
        self._progress = Console(stderr=True, highlight=False, width=220 if not sys.stderr.isatty() else None)

    def run(self, rows: Iterable[Row], where: Servers) -> Iterator[tuple[Row, FloodRecord, Figures]]:
        """Run the rows that --only selects, and yield the result of each, for `add`."""
        for row in rows:
            if self._options.only in row.name:
                result = run(row.flood, where)
                yield row, result, figures(result)

    def add(self, kind: str, row: Row, found: Figures, cost: float | None = None) -> None:
        """
        Check a flood of *row* on the broker *kind*, and show it. *cost* must be the same for backlogs of any size.
        Default: the deliveries per job.
        """
        wrong = [f"{kind}: {fault}" for fault in row.broken(found)]
        self._faults += wrong
        cells = _cells(kind, row, found, wrong)
        self._table.add_row(*cells)
        self._progress.print(" | ".join(cells))
        self._all.append({"broker": kind, "row": row.name, **asdict(found)})
        if row.ours and len(row.flood.limits) == 1:
            workers = str(getattr(row.flood, "kinds", ""))
            self._of_limit.setdefault((kind, row.flood.limits[0], workers), []).append(
                found.deliveries if cost is None else cost
            )

    def say(self, line: str, *, fault: bool = False) -> None:
        """Add a line below the table."""
        self._progress.print(line)
        (self._faults if fault else self._lines).append(line)

    def finish(self) -> int:
        """Print everything, write it to the files of the options, and return the exit code."""
        if not self._options.quick:  # in a small backlog, the jobs that the burst admits at once have too much weight
            self._faults += self._uneven()
        console = Console(highlight=False, width=None if sys.stdout.isatty() else 220)
        console.print(self._table)
        console.print(_FOOTNOTES + self._footnotes)
        for line in self._lines:
            console.print(line)
        console.print("\n".join(f"BROKEN  {fault}" for fault in self._faults) or "Every promise kept.")
        if self._options.json:
            self._options.json.write_text(json.dumps(self._all, indent=1))
        if self._options.markdown:
            rows = list(zip(*(map(str, column.cells) for column in self._table.columns), strict=True))
            verdict = [*self._lines, *([f"BROKEN: {fault}" for fault in self._faults] or ["Every promise kept."])]
            text = page(self._heading, self._packages, _TITLES.split("|"), rows, self._footnotes, verdict)
            self._options.markdown.write_text(text)
        return 1 if self._faults else 0

    def _uneven(self) -> list[str]:
        """Return the limits for which a job of another backlog costs more than 1.1 times a job of the first."""
        return [
            f"{kind}: {limit.rate} burst {limit.burst}: a job costs {few:.2f}, {many:.2f} in another backlog"
            for (kind, limit, _), (few, *rest) in self._of_limit.items()
            for many in rest
            if many > 1.1 * few
        ]


def _cells(kind: str, row: Row, found: Figures, wrong: list[str]) -> list[str]:
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
        f"{found.operations:.1f}" if found.operations else "-",
        "-" if found.commands is None else f"{found.commands:.1f}",
        f"{found.cpu_ms:.1f}",
        f"{100 * found.inverted:.1f} %",
        str(found.duplicates),
        str(max(0, found.lost - found.left)),
    ]
