"""
Slots of a concurrency limit in real `dramatiq` workers, compared with Dramatiq's own ConcurrentRateLimiter; the cost of
a kill; and the number of calls that a partner gets after a 429.

    python tests/benchmarks/dramatiq_concurrency.py [--broker redis|rabbitmq|both] [--jobs 2000] [--only TEXT]

Jobs on one key, ten slots, two processes of eight threads: bodies of 100 ms, and bodies that change from 20 ms to
500 ms and back. Two processes of five threads without a limit show the capacity of the machine. Dramatiq's own limiter
retries the jobs that it denies, here without a maximum and with a back-off of half a second to two. Then: a process
that holds four of eight slots is killed; and a partner answers 429 with Retry-After 10 at full flood.

Exits with 1 if throttlekit runs more jobs at once than the limit allows, loses or fails a job, uses less than 0.9 of
the slots' time, needs more than three deliveries a job, or admits a call during the pause.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.dramatiq.slots import DramatiqSlotting, Slots
from support.reports.command import each_broker, parser_of
from support.reports.slots import Row, Scenario, measure_429, measure_backlog, measure_kill, report, send_calls
from support.servers.flood import Servers

_NATIVE: dict[str, Any] = {
    "mode": "native",
    "options": {"max_retries": 1_000_000, "min_backoff": 500, "max_backoff": 2000},
}
_FREE, _NO_LIMIT = "no limit, 10 threads", {"mode": "none", "threads": 5}


def run_backlog(where: Servers, row: Row, bodies: list[float], how: dict[str, Any]) -> None:
    with DramatiqSlotting(Slots(amount=10, **how), where) as slotting:
        for n, seconds in enumerate(bodies):
            slotting.work(n, seconds)
        slotting.start()
        measure_backlog(row, slotting, bodies, least_use=0.9, most_deliveries=3)


def run_kill(where: Servers, row: Row, how: dict[str, Any]) -> None:
    with DramatiqSlotting(Slots(amount=8, lease=5.0, **how), where) as slotting:
        measure_kill(
            row,
            slotting,
            lambda: slotting.start(processes=1, threads=4),
            lambda: slotting.start(processes=1, threads=12),
        )


def run_429(where: Servers, row: Row) -> None:
    with DramatiqSlotting(Slots(rate="100/s", burst=50), where) as slotting:
        send_calls(slotting, 1000, from_call=300)
        slotting.start()
        measure_429(row, slotting, 1000, rate=100, threads=16, beyond=2)


def scenarios(jobs: int) -> list[Scenario]:
    third = jobs // 3
    jumping = [0.02] * third + [0.5] * third + [0.02] * third
    listed: list[Scenario] = []
    for who, how in (("throttlekit", dict[str, Any]()), ("ConcurrentRateLimiter", _NATIVE), (_FREE, _NO_LIMIT)):
        for what, bodies in ((f"{jobs} of 100 ms", [0.1] * jobs), ("20 → 500 → 20 ms", jumping)):
            run = lambda where, row, bodies=bodies, how=how: run_backlog(where, row, bodies, how)  # noqa: E731
            listed.append(Scenario("10 slots, 2 processes × 8 threads", f"{who}, {what}", run, who == "throttlekit"))
        if how is _NO_LIMIT:
            continue
        run = lambda where, row, how=how: run_kill(where, row, how)  # noqa: E731
        listed.append(Scenario("SIGKILL of a process that holds 4 of 8 slots", who, run, who == "throttlekit"))
    return [*listed, Scenario("429 with Retry-After 10 at full flood, 100/s a key, 16 threads", "throttlekit", run_429)]


def main() -> int:
    parser = parser_of(__doc__, broker=True, only="rows with this in their name, or their table's")
    parser.add_argument("--jobs", type=int, default=2000)
    options = parser.parse_args()
    return report(each_broker(options), scenarios(options.jobs), options.only)


if __name__ == "__main__":
    sys.exit(main())
