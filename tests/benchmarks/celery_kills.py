"""
Every worker stopped or killed, six times during a flood: what is lost, and what runs twice?

    python tests/benchmarks/celery_kills.py [--broker redis|rabbitmq|both] [--signal SIGTERM|SIGQUIT|SIGKILL|all]
                                            [--acks late|early|both] [--seeds 1]

The same signals for throttlekit and for Celery alone, with jobs sent at the limit's own pace: each stop makes a
backlog under the limit, that nobody can work off. Redis gives back what a dead worker had after 30 s, not after an
hour. Acknowledged late, a job is lost that no body has finished; acknowledged early, one that no body has begun:
Celery promises no more. Exits with 1 if throttlekit loses a job or breaks the bound; where it begins more jobs twice
than Celery alone, it says so. One schedule is a small sample: take several seeds. A row takes about a minute.

On Redis with SIGKILL, Celery alone may lose a job as well, and so with throttlekit: its transport takes a message
from the queue before it notes that it has it.
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
from support.flood.run import Flood, Told
from support.reports.command import each_broker
from support.reports.kills import Run, compare, flood_of, kill_options, moments

_SIGNALS = (signal.SIGTERM, signal.SIGQUIT, signal.SIGKILL)
_RECOVERY = {
    "broker_transport_options": {
        "visibility_timeout": 30,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
        "unacked_mutex_expire": 5,  # a worker killed while it gives back what another had keeps the others from it
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


def lost(told: Told) -> tuple[int, dict[str, str]]:
    """Acknowledged late: those that no body has finished; early: those that no body has begun."""
    assert isinstance(told.flood, CeleryFlood)
    seen = told.ends if "task_acks_late" in told.flood.conf else [start.job for start in told.starts]
    return told.flood.jobs - len(set(seen)), {}


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
