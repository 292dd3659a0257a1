"""
Every worker is stopped or killed six times during a flood: which jobs are lost, and which run twice?

    python tests/benchmarks/celery_kills.py [--broker redis|rabbitmq|both] [--signal SIGTERM|SIGQUIT|SIGKILL|all]
                                            [--acks late|early|both] [--seeds 1]

The same signals for throttlekit and for Celery alone, with jobs sent at the limit's rate: each stop leaves a backlog
that the limit does not allow to shrink. Redis redelivers the messages of a dead worker after 30 s instead of an hour.
With late acknowledgement, a job counts as lost if no body has finished it; with early acknowledgement, if no body has
begun it: Celery promises no more. Exits with 1 if throttlekit loses a job or breaks the bound; where it begins more
jobs twice than Celery alone, it reports that. One schedule is a small sample: take several seeds. A row takes about a
minute.

On Redis with SIGKILL, Celery may lose a job, with and without throttlekit: its transport removes a message from the
queue before it records the message as unacknowledged.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.celery.flood import CeleryFlood
from support.flood.run import Flood, FloodRecord
from support.reports.command import each_broker
from support.reports.kills import Run, compare, flood_of, kill_options, moments

_SIGNALS = (signal.SIGTERM, signal.SIGQUIT, signal.SIGKILL)
_RECOVERY = {
    "broker_transport_options": {
        "visibility_timeout": 30,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
        "unacked_mutex_expire": 5,  # a worker that is killed while it restores messages holds this mutex
    }
}
_LATE = {"task_acks_late": True, "task_reject_on_worker_lost": True}


def floods(how: signal.Signals, acks: str, seed: int) -> dict[str, Flood]:
    kills = moments(seed, every=4.5, last=2.5)
    common: dict[str, Any] = {
        "jobs": 1500, "pace": 50, "kill_with": how, "give_up": 180.0,
        "conf": _RECOVERY | (_LATE if acks == "late" else {}),
    }  # fmt: skip
    return {
        "throttlekit": flood_of(CeleryFlood, kills, **common),
        "Celery alone": flood_of(CeleryFlood, kills, mode="none", **common),
    }


def lost(result: FloodRecord) -> tuple[int, dict[str, str]]:
    """Return the lost jobs: with late acknowledgement, those that no body has finished; with early, those not begun."""
    assert isinstance(result.flood, CeleryFlood)
    seen = result.ends if "task_acks_late" in result.flood.conf else [start.job for start in result.starts]
    return result.flood.jobs - len(set(seen)), {}


def runs(options: argparse.Namespace) -> Iterator[Run]:
    signals = [each for each in _SIGNALS if options.signal in (each.name, "all")]
    acknowledged = ("late", "early") if options.acks == "both" else (options.acks,)
    for where in each_broker(options):
        for how in signals:
            for acks in acknowledged:
                for seed in range(1, options.seeds + 1):
                    yield Run(where, seed, floods(how, acks, seed), {"signal": how.name, "acks": acks})


def main() -> int:
    options = kill_options(__doc__, signal=(*(each.name for each in _SIGNALS), "all"), acks=("late", "early", "both"))
    return compare("a signal to 2 workers × 2 processes, 1500 jobs of 20 ms", runs(options), lost=lost)


if __name__ == "__main__":
    sys.exit(main())
