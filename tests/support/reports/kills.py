"""Floods whose workers are killed, with throttlekit and with a framework alone: lost jobs, and jobs that run twice."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from support.flood.figures import figures
from support.flood.run import Flood, FloodLimit, FloodRecord, run
from support.reports.command import show
from support.servers.flood import Servers

__all__ = ["KILLS", "Run", "compare", "flood_of", "moments"]

KILLS = 6


@dataclass(frozen=True)
class Run:
    """
    One schedule of kills.

    Attributes:
        cells: The first cells of the run's rows, by column.
        floods: The flood of each limiter; the first is throttlekit.
    """

    where: Servers
    seed: int
    floods: Mapping[str, Flood]
    cells: Mapping[str, str] = field(default_factory=dict[str, str])


def moments(seed: int, every: float = 2.5, first: float = 0.5, last: float = 1.9) -> tuple[float, ...]:
    """Return six times, one in each *every* seconds, with enough time between them for the workers to start again."""
    chance = random.Random(seed)
    return tuple(every * i + chance.uniform(first, last) for i in range(KILLS))


def flood_of(kind: Callable[..., Flood], kills: tuple[float, ...], **how: Any) -> Flood:
    """Return a flood of 1 000 jobs of 20 ms with a limit of 50/s, and these kills."""
    common: dict[str, Any] = {"jobs": 1000, "body": 0.02, "settle": 8.0, "give_up": 120.0}
    return kind(limits=(FloodLimit("partner", "50/s", 50),), kills=kills, **{**common, **how})


def _lost(result: FloodRecord) -> tuple[int, dict[str, str]]:
    return result.flood.jobs - len(set(result.ends)), {}


def compare(
    title: str,
    runs: Iterable[Run],
    *,
    lost: Callable[[FloodRecord], tuple[int, dict[str, str]]] = _lost,
    twice: Callable[[int, list[int]], bool] = lambda ours, others: False,
) -> int:
    """
    Run all, print a table, and return the exit code: 1 if throttlekit loses a job or exceeds the bound.

    Args:
        lost: Returns how many jobs a flood has lost, and further cells of its row.
        twice: Returns whether the number of bodies that began twice is a fault, given that of throttlekit and of
        others.
    """
    table = Table(title=f"{KILLS} × {title}")
    faults, notes = list[str](), list[str]()
    for each in runs:
        begun: dict[str, int] = {}
        name = ", ".join([each.where.kind, *each.cells.values(), f"seed {each.seed}"])
        for who, flood in each.floods.items():
            result = run(flood, each.where)
            found = figures(result)
            begun[who] = result.begun_twice
            missing, more = lost(result)
            bound = "-" if found.grants_beyond_us is None else f"{found.grants_beyond_us / 1000:+.1f} ms"
            row = {
                "broker": each.where.kind,
                **each.cells,
                "who": who,
                "seed": each.seed,
                "jobs": flood.jobs,
                "ended": found.done,
                "begun twice": begun[who],
                "ended twice": result.ended_twice,
                "lost": f"{missing} ({result.left} left)" if result.left else missing,
                **more,
                "bound, grants": bound,
            }
            for column in () if table.columns else row:
                table.add_column(column, no_wrap=True)
            table.add_row(*map(str, row.values()))
            print(f"{name}, {who}: {missing} lost, {begun[who]} begun twice", flush=True)
            if len(begun) == 1 and (missing > 0 or not found.bound_holds):
                faults.append(f"{name}: lost {missing}, bound {bound}")
        ours, *others = begun.values()
        if twice(ours, others):
            faults.append(f"{name}: {ours} begun twice, others {others}")
        elif ours > min(others):
            notes.append(f"{name}: {ours} begun twice, others {others}")
    return show([table], faults, notes)
