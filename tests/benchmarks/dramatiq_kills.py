"""
SIGKILL of every worker process, six times during a flood: which jobs are lost, and which run twice?

    python tests/benchmarks/dramatiq_kills.py [--broker redis|rabbitmq|both] [--seeds 1]

The same kills for throttlekit and for Dramatiq alone with the same body: once with as many jobs as it can run (kills
then interrupt busy threads), once with jobs sent at the limit's rate. On Redis a dead worker is reported to both at
once, instead of being detected after a minute. Exits with 1 if throttlekit loses a job, or begins more jobs twice than
each of the two runs of Dramatiq alone; if it exceeds only one of them, it reports that. One schedule is a small sample:
take several seeds.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.flood.run import Flood
from support.reports.command import each_broker
from support.reports.kills import Run, compare, flood_of, kill_options, moments


def floods(seed: int) -> dict[str, Flood]:
    return {
        "throttlekit": flood_of(Flood, moments(seed)),
        "Dramatiq alone, flat out": flood_of(Flood, moments(seed), jobs=6000, mode="none"),
        "Dramatiq alone, 50/s": flood_of(Flood, moments(seed), mode="none", pace=50),
    }


def main() -> int:
    options = kill_options(__doc__)
    seeds = range(1, options.seeds + 1)
    runs = (Run(where, seed, floods(seed)) for where in each_broker(options) for seed in seeds)
    title = "SIGKILL of 2 processes × 4 threads, body 20 ms"
    return compare(title, runs, twice=lambda ours, others: ours > max(others))


if __name__ == "__main__":
    sys.exit(main())
