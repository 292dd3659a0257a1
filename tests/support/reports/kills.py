"""Floods whose workers are killed, of throttlekit and of a framework alone: what is lost, and what runs twice."""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from support.flood.figures import figures
from support.flood.run import Flood, FloodLimit, Told, run
from support.reports.command import parser_of, show
from support.servers.flood import Servers

__all__ = ["KILLS", "Run", "compare", "flood_of", "kill_options", "moments"]

KILLS = 6


@dataclass(frozen=True)
class Run:
    """
    One schedule of kills.

    Attributes:
        cells: What the run's rows begin with, by column.
        floods: By who does it; the first is throttlekit.
    """

    where: Servers
    seed: int
    floods: Mapping[str, Flood]
    cells: Mapping[str, str] = field(default_factory=dict[str, str])


def kill_options(doc: str | None, *, broker: bool = True, **choices: tuple[str, ...]) -> argparse.Namespace:
    """The options of such a benchmark: --seeds, --broker, and one for each of *choices*, which all have "all"."""
    parser = parser_of(doc, broker=broker)
    for name, values in choices.items():
        parser.add_argument(f"--{name}", choices=values, default=values[-1])
    parser.add_argument("--seeds", type=int, default=1, help="how many schedules of kills")
    return parser.parse_args()


def moments(seed: int, every: float = 2.5, first: float = 0.5, last: float = 1.9) -> tuple[float, ...]:
    """Six moments, one in each *every* seconds, far enough apart for the workers to have come back."""
    chance = random.Random(seed)
    return tuple(every * i + chance.uniform(first, last) for i in range(KILLS))


def flood_of(kind: Callable[..., Flood], kills: tuple[float, ...], **how: Any) -> Flood:
    """A flood of 1 000 jobs of 20 ms under 50/s, with these kills."""
    common: dict[str, Any] = {"jobs": 1000, "body": 0.02, "settle": 8.0, "give_up": 120.0}
    return kind(limits=(FloodLimit("partner", "50/s", 50),), kills=kills, **{**common, **how})


def _lost(told: Told) -> tuple[int, dict[str, str]]:
    return told.flood.jobs - len(set(told.ends)), {}


def compare(
    title: str,
    runs: Iterable[Run],
    *,
    lost: Callable[[Told], tuple[int, dict[str, str]]] = _lost,
    twice: Callable[[int, list[int]], bool] = lambda ours, others: False,
) -> int:
    """
    Let all happen, print a table, and return the exit code: 1 if throttlekit loses a job or breaks the bound.

    Args:
        lost: How many jobs a flood has lost, and more cells of its row.
        twice: Whether so many bodies of throttlekit that were begun twice, and these of the others, are a fault.
    """
    table = Table(title=f"{KILLS} × {title}")
    faults, notes = list[str](), list[str]()
    for each in runs:
        begun: dict[str, int] = {}
        name = ", ".join([each.where.kind, *each.cells.values(), f"seed {each.seed}"])
        for who, flood in each.floods.items():
            told = run(flood, each.where)
            found = figures(told)
            begun[who] = told.begun_twice
            gone, more = lost(told)
            bound = "-" if found.grants_beyond_us is None else f"{found.grants_beyond_us / 1000:+.1f} ms"
            row = {
                "broker": each.where.kind, **each.cells, "who": who, "seed": each.seed, "jobs": flood.jobs,
                "ended": found.done, "begun twice": begun[who], "ended twice": told.ended_twice,
                "lost": f"{gone} ({told.left} left)" if told.left else gone, **more, "bound, grants": bound,
            }  # fmt: skip
            for column in () if table.columns else row:
                table.add_column(column, no_wrap=True)
            table.add_row(*map(str, row.values()))
            print(f"{name}, {who}: {gone} lost, {begun[who]} begun twice", flush=True)
            if len(begun) == 1 and (gone > 0 or not found.bound_holds):
                faults.append(f"{name}: lost {gone}, bound {bound}")
        ours, *others = begun.values()
        if twice(ours, others):
            faults.append(f"{name}: {ours} begun twice, others {others}")
        elif ours > min(others):
            notes.append(f"{name}: {ours} begun twice, others {others}")
    return show([table], faults, notes)
