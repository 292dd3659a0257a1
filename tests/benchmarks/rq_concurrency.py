"""
Jobs under a concurrency limit, and a partner that answers 429, on real `rq worker` processes: stock and throttlekit's.

    python tests/benchmarks/rq_concurrency.py [--quick] [--only TEXT]

20-500-20: the bodies of the thirds take 20, 500 and 20 ms. No limit: as many slots as workers, which shows the capacity
of the machine. A slot is held from the grant on, so the time between grant and body (a fork: some 20 ms) does not count
as used. The full run takes about 5 minutes, --quick about 2. Exits with 1 if more bodies ran at once than the limit
allows, if a job was lost or ran twice, if a killed worker's slots were not free within the lease + 1 s, or if a job
called during a pause. The other figures are printed, and not judged.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.reports.command import parser_of
from support.reports.slots import Row, Scenario, measure_429, measure_backlog, measure_kill, report, send_calls
from support.rq.flood import OURS, OURS_SIMPLE, STOCK
from support.rq.slots import RqSlotting, Slots
from support.servers.flood import Servers, servers


def run_backlog(where: Servers, row: Row, kinds: Sequence[str], amount: int, bodies: Sequence[float]) -> None:
    with RqSlotting(Slots(amount=amount, kinds=kinds), where.redis_base) as slotting:
        slotting.start()
        for n, seconds in enumerate(bodies):
            slotting.work(n, seconds)
        measure_backlog(row, slotting, bodies)


def run_kill(where: Servers, row: Row) -> None:
    with RqSlotting(Slots(amount=8, lease=3.0), where.redis_base) as slotting:
        measure_kill(
            row, slotting, lambda: slotting.start(*[OURS_SIMPLE] * 4), lambda: slotting.start(*[OURS_SIMPLE] * 10)
        )


def run_429(where: Servers, row: Row) -> None:
    with RqSlotting(Slots(rate="50/s", burst=50, kinds=(OURS_SIMPLE,) * 8), where.redis_base) as slotting:
        slotting.start()
        send_calls(slotting, 500, from_call=150)
        # Jobs that were granted but had not begun count as well as those that had begun.
        measure_429(row, slotting, 500, rate=50, threads=8, beyond=8)


def scenarios(quick: bool) -> list[Scenario]:
    less = 5 if quick else 1
    simple, ours, stock = [OURS_SIMPLE] * 16, [OURS] * 6, [STOCK, *["rq.Worker"] * 5]
    third = 600 // less // 3
    steps = [0.02] * third + [0.5] * third + [0.02] * third
    rows: list[tuple[str, Sequence[str], int, list[float]]] = [
        ("no limit, 16 ours simple, 100 ms", simple, 16, [0.1] * (2000 // less)),
        ("16 ours simple, 100 ms", simple, 10, [0.1] * (2000 // less)),
        ("no limit, 16 ours simple, 500 ms", simple, 16, [0.5] * (600 // less)),
        ("16 ours simple, 500 ms", simple, 10, [0.5] * (600 // less)),
        ("16 ours simple, 20-500-20", simple, 10, steps),
        ("6 ours, 500 ms", ours, 4, [0.5] * (200 // less)),
        ("6 ours, 2 s", ours, 4, [2.0] * (60 // less)),
        ("6 stock, 500 ms", stock, 4, [0.5] * (200 // less)),
        ("6 stock, 2 s", stock, 4, [2.0] * (60 // less)),
    ]
    return [
        *(
            Scenario("Slots", name, lambda where, row, of=of: run_backlog(where, row, *of))  # type: ignore[misc]
            for name, *of in rows
        ),
        Scenario("SIGKILL of workers that hold 4 of 8 slots", "4 of 14 ours simple", run_kill),
        Scenario("429 with Retry-After 10 at full flood, 50/s a key, 8 workers", "ours simple", run_429),
    ]


def main() -> int:
    options = parser_of(__doc__, quick="fewer jobs", only="rows with this in their name, or their table's").parse_args()
    with servers("redis") as where:
        return report([where], scenarios(options.quick), options.only)


if __name__ == "__main__":
    sys.exit(main())
