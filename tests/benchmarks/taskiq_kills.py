"""
SIGKILL of every worker process, six times during a flood: which jobs are lost, and which run twice?

    python tests/benchmarks/taskiq_kills.py [--broker redis|rabbitmq|both] [--seeds 1]

The same kills for throttlekit and for taskiq alone with the same body, with jobs sent at the limit's rate. On Redis the
broker is a stream, which redelivers the messages of a dead worker after 5 s instead of ten minutes. Exits with 1 if
throttlekit loses a job or breaks the bound; where it begins more jobs twice than taskiq alone, it reports that. One
schedule is a small sample: take several seeds. A list of Redis has no acknowledgements: the jobs of a killed worker are
lost.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.flood.run import Flood
from support.reports.command import each_broker
from support.reports.kills import Run, compare, flood_of, kill_options, moments
from support.taskiq.flood import TaskiqFlood


def floods(seed: int) -> dict[str, Flood]:
    return {
        "throttlekit": flood_of(TaskiqFlood, moments(seed)),
        "taskiq alone, 50/s": flood_of(TaskiqFlood, moments(seed), mode="none", pace=50),
    }


def main() -> int:
    options = kill_options(__doc__)
    seeds = range(1, options.seeds + 1)
    runs = (Run(where, seed, floods(seed)) for where in each_broker(options) for seed in seeds)
    return compare("SIGKILL of 2 processes × 10 places, body 20 ms", runs)


if __name__ == "__main__":
    sys.exit(main())
