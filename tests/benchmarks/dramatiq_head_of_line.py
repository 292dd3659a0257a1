"""
Thousands of messages denied with long delays, then a short one: does it wait behind them?

    python tests/benchmarks/dramatiq_head_of_line.py [--broker redis|rabbitmq|both] [--jobs 5000]

One process of 4 threads, on one queue; Dramatiq alone, with the same delays given by hand, beside ours. Exits with
1 if ours starts more than 2 s after its slot.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import get_args

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.table import Table

from support.dramatiq.workers import clean_up_when_terminated
from support.flood.run import Flood, Flooding, FloodLimit
from support.servers.flood import Kind, Servers, servers
from support.waiting import wait_until

MOST_LATE = 2.0
_PATIENCE = 15.0
_LONG = (FloodLimit("long", "1/m", 1),)
_SHORT = (FloodLimit("short", "1/3s", 1),)


def ours(where: Servers, jobs: int = 5000) -> float:
    """Seconds from the slot of one short deferral to its start, behind *jobs* long ones; inf if it does not come."""
    flood = Flood(limits=_LONG, jobs=jobs, processes=1, others={"short": _SHORT}, slots_of=("job", "short"))
    with Flooding(flood, where) as flooding:
        for index in range(jobs):
            flooding.send("job", str(index))
        flooding.start()
        # The limit lets the first one run.
        wait_until(lambda: len(flooding.slots("job")) >= jobs - 1, description="all are denied", timeout=120, every=0.2)
        flooding.send("short", "passes")
        wait_until(lambda: _started(flooding, "passes"), description="the limit's one unit is taken")
        flooding.send("short", "waits")
        wait_until(lambda: flooding.slots("short"), description="the short one is denied")
        return _late(flooding, "waits", flooding.slots("short")[0])


def alone(where: Servers, jobs: int = 5000) -> float:
    """The same of Dramatiq's own delayed messages: a minute each, then one of three seconds."""
    flood = Flood(limits=_LONG, jobs=jobs, processes=1, mode="none", others={"short": _SHORT})
    with Flooding(flood, where) as flooding:
        for index in range(jobs):
            flooding.send("job", str(index), delay_ms=60_000)
        flooding.start()
        time.sleep(5)  # nothing tells when the consumer has taken all that it holds
        flooding.send("short", "waits", delay_ms=3000)
        return _late(flooding, "waits", round((time.time() + 3) * 1e6))


def _started(flooding: Flooding, job: str) -> int:
    return next((start.at_us for start in flooding.starts() if start.job == job), 0)


def _late(flooding: Flooding, job: str, due_us: int) -> float:
    deadline = time.monotonic() + _PATIENCE
    while not (started_us := _started(flooding, job)):
        if time.monotonic() > deadline:
            return float("inf")
        time.sleep(0.02)
    return (started_us - due_us) / 1e6


def main() -> int:
    clean_up_when_terminated()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", choices=(*get_args(Kind), "both"), default="both")
    parser.add_argument("--jobs", type=int, default=5000, help="how many wait long")
    options = parser.parse_args()
    table = Table("broker", "who", "late s", title=f"One short delay behind {options.jobs} long ones")
    kept = True
    for kind in get_args(Kind) if options.broker == "both" else (options.broker,):
        with servers(kind) as where:
            late = ours(where, options.jobs)
            kept &= late <= MOST_LATE
            table.add_row(kind, "throttlekit", f"{late:.2f}")
            late = alone(where, options.jobs)
            table.add_row(kind, "Dramatiq alone", f"{late:.2f}" if late < _PATIENCE else f"> {_PATIENCE - 3:.0f}")
    Console(highlight=False, width=None if sys.stdout.isatty() else 120).print(table)
    print("Kept." if kept else f"BROKEN  ours started more than {MOST_LATE} s after its slot")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
