"""
Every worker is killed six times during a flood: which jobs are lost, and which run twice?

    python tests/benchmarks/kills.py dramatiq|celery|taskiq|huey [--broker redis|rabbitmq|both] [--seeds 1]
                                     [--signal SIGTERM|SIGQUIT|SIGKILL|all] [--acks late|early|both]
                                     [--type thread|process|greenlet|all]

The same kills for throttlekit and for the framework alone with the same body, with jobs sent at the limit's rate, or
flat out (kills then interrupt busy workers). Exits with 1 if throttlekit loses a job or breaks the bound. One schedule
is a small sample: take several seeds. A row takes up to a minute.

Dramatiq: on Redis a dead worker is reported to both at once, instead of being detected after a minute. Exits with 1
also if more jobs begin twice than in each of the two runs of Dramatiq alone.

Celery: --signal and --acks. Redis redelivers the messages of a dead worker after 30 s instead of an hour. With late
acknowledgement, a job counts as lost if no body has finished it; with early acknowledgement, if no body has begun it:
Celery promises no more. On Redis with SIGKILL, Celery may lose a job, with and without throttlekit: its transport
removes a message from the queue before it records the message as unacknowledged.

taskiq: on Redis the broker is a stream, which redelivers the messages of a dead worker after 5 s instead of ten
minutes. A list of Redis has no acknowledgements: the jobs of a killed worker are lost.

huey: --type, always on Redis. Huey removes a job from its queue before it runs the job, and has no acknowledgement: a
job that a worker has begun is lost with the worker. So a waiting job, or one without a decision, must not be lost; a
granted job is lost as it is with huey alone. Exits with 1 also if a body runs twice.
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
from support.huey.flood import HueyFlood
from support.huey.workers import WORKER_TYPES
from support.reports.command import each_broker, parser_of
from support.reports.kills import Run, compare, flood_of, moments
from support.taskiq.flood import TaskiqFlood

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


def of_dramatiq(options: argparse.Namespace) -> Iterator[Run]:
    for where in each_broker(options):
        for seed in range(1, options.seeds + 1):
            kills = moments(seed)
            floods = {
                "throttlekit": flood_of(Flood, kills),
                "Dramatiq alone, flat out": flood_of(Flood, kills, jobs=6000, mode="none"),
                "Dramatiq alone, 50/s": flood_of(Flood, kills, mode="none", pace=50),
            }
            yield Run(where, seed, floods)


def of_celery(options: argparse.Namespace) -> Iterator[Run]:
    signals = [each for each in _SIGNALS if options.signal in (each.name, "all")]
    acknowledged = ("late", "early") if options.acks == "both" else (options.acks,)
    for where in each_broker(options):
        for how in signals:
            for acks in acknowledged:
                for seed in range(1, options.seeds + 1):
                    kills, conf = moments(seed, every=4.5, last=2.5), _RECOVERY | (_LATE if acks == "late" else {})
                    common: dict[str, Any] = {
                        "jobs": 1500,
                        "pace": 50,
                        "kill_with": how,
                        "give_up": 180.0,
                        "conf": conf,
                    }
                    floods = {
                        "throttlekit": flood_of(CeleryFlood, kills, **common),
                        "Celery alone": flood_of(CeleryFlood, kills, mode="none", **common),
                    }
                    yield Run(where, seed, floods, {"signal": how.name, "acks": acks})


def of_taskiq(options: argparse.Namespace) -> Iterator[Run]:
    for where in each_broker(options):
        for seed in range(1, options.seeds + 1):
            floods = {
                "throttlekit": flood_of(TaskiqFlood, moments(seed)),
                "taskiq alone, 50/s": flood_of(TaskiqFlood, moments(seed), mode="none", pace=50),
            }
            yield Run(where, seed, floods)


def of_huey(options: argparse.Namespace) -> Iterator[Run]:
    options.broker = "redis"
    for where in each_broker(options):
        for kind in WORKER_TYPES if options.type == "all" else (options.type,):
            for seed in range(1, options.seeds + 1):
                kills, how = moments(seed, first=0.1), {"worker_type": kind, "settle": 12.0}
                floods = {
                    "throttlekit": flood_of(HueyFlood, kills, **how),
                    "huey alone, flat out": flood_of(HueyFlood, kills, jobs=6000, mode="none", **how),
                    "huey alone, 50/s": flood_of(HueyFlood, kills, mode="none", pace=50, **how),
                }
                yield Run(where, seed, floods, {"workers": kind})


def lost_of_celery(result: FloodRecord) -> tuple[int, dict[str, str]]:
    """Return the lost jobs: with late acknowledgement, those that no body has finished; with early, those not begun."""
    assert isinstance(result.flood, CeleryFlood)
    seen = result.ends if "task_acks_late" in result.flood.conf else [start.job for start in result.starts]
    return result.flood.jobs - len(set(seen)), {}


def lost_of_huey(result: FloodRecord) -> tuple[int, dict[str, str]]:
    """
    Return the jobs that no body has begun. If a worker is killed between a grant and the record of the grant, no other
    worker runs that job.
    """
    begun, jobs = len({start.job for start in result.starts}), result.flood.jobs
    granted_only = min(jobs - begun, max(0, len(result.grants) - begun))
    cut_short = begun - len(set(result.ends))
    shown = {"granted only": str(granted_only) if result.grants else "-", "cut short": str(cut_short)}
    return max(jobs - begun - granted_only, result.left if result.grants else 0), shown


def main() -> int:
    parser = parser_of(__doc__, broker=True)
    parser.add_argument("framework", choices=("dramatiq", "celery", "taskiq", "huey"))
    parser.add_argument("--seeds", type=int, default=1, help="how many schedules of kills")
    parser.add_argument("--signal", choices=(*(each.name for each in _SIGNALS), "all"), default="all")
    parser.add_argument("--acks", choices=("late", "early", "both"), default="both")
    parser.add_argument("--type", choices=(*WORKER_TYPES, "all"), default="all")
    options = parser.parse_args()
    if options.framework == "dramatiq":
        title = "SIGKILL of 2 processes × 4 threads, body 20 ms"
        return compare(title, of_dramatiq(options), twice=lambda ours, others: ours > max(others))
    if options.framework == "celery":
        title = "a signal to 2 workers × 2 processes, 1500 jobs of 20 ms"
        return compare(title, of_celery(options), lost=lost_of_celery)
    if options.framework == "taskiq":
        return compare("SIGKILL of 2 processes × 10 places, body 20 ms", of_taskiq(options))
    title = "SIGKILL of 2 consumers × 4 workers, body 20 ms"
    return compare(title, of_huey(options), lost=lost_of_huey, twice=lambda ours, others: ours > 0)


if __name__ == "__main__":
    sys.exit(main())
