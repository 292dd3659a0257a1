"""
What `max_inline_wait=0` costs: how much of a limit is used, and how often a job is delivered, with it and without.

    python tests/benchmarks/inline_wait.py [--quick] [--only TEXT]

A backlog of 6 s under each limit, on 2 processes of 4 threads of Dramatiq, and on 2 workers of RQ. Takes about
5 minutes; --quick sends a backlog of 2 s. Exits with 1 if a bound is broken, or a job is lost or runs twice.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.flood.figures import figures
from support.flood.run import Flood, Flooding, FloodLimit, run
from support.reports.command import parser_of
from support.rq.flood import OURS_SIMPLE, STOCK, RqFlood, RqFlooding
from support.servers.flood import servers

_ROWS: tuple[tuple[str, type[Flooding], type[Flood], dict[str, Any], tuple[tuple[int, int], ...]], ...] = (
    ("Dramatiq", Flooding, Flood, {}, ((50, 1), (200, 1), (200, 20))),
    ("RQ, ThrottledSimpleWorker", RqFlooding, RqFlood, {"kinds": (OURS_SIMPLE, OURS_SIMPLE)}, ((50, 1), (50, 10))),
    ("RQ, rq worker", RqFlooding, RqFlood, {"kinds": (STOCK, STOCK)}, ((10, 1), (10, 10))),
)
"""Each with limits that its workers can use in full: amounts a second, and bursts."""


def floods(seconds: int) -> Iterator[tuple[str, type[Flooding], Flood]]:
    for name, flooding, kind, how, limits in _ROWS:
        for rate, burst in limits:
            limit = FloodLimit("partner", f"{rate}/s", burst)
            for wait in (None, 0.0):
                yield name, flooding, kind(limits=(limit,), jobs=rate * seconds, max_inline_wait=wait, **how)


def main() -> int:
    options = parser_of(__doc__, quick="a backlog of 2 s", only="the rows whose name holds this text").parse_args()
    kept = True
    print("| framework | limit | max_inline_wait | used | of the limit | deliveries a job |\n|---|---|---|---|---|---|")
    with servers("redis") as where:
        for name, flooding, flood in floods(2 if options.quick else 6):
            if options.only not in name:
                continue
            limit, found = flood.limits[0], figures(run(flood, where, flooding))
            rate, wait = int(limit.rate.partition("/")[0]), "default" if flood.max_inline_wait is None else "0"
            used = f"{rate * found.use:.1f}/s | {found.use:.2f} | {found.deliveries:.2f}"
            print(f"| {name} | {limit.rate} burst {limit.burst} | {wait} | {used} |", flush=True)
            kept &= found.bound_holds and not (found.lost or found.left or found.duplicates)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
