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
import random
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.table import Table

from support.celery.flood import CeleryFlood, CeleryFlooding
from support.flood.figures import figures
from support.flood.run import FloodLimit, Told, run
from support.reports.command import each_broker, parser_of, show

KILLS = 6
_JOBS = 1500
_BODY = 0.02
_LIMITS = (FloodLimit("partner", "50/s", 50),)
_TITLES = "broker", "signal", "acks", "who", "seed", "ended", "begun twice", "ended twice", "lost", "bound, grants"
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


def moments(seed: int) -> tuple[float, ...]:
    """Six moments in half a minute, far enough apart for the workers to have come back."""
    chance = random.Random(seed)
    return tuple(4.5 * i + chance.uniform(0.5, 2.5) for i in range(KILLS))


def floods(how: signal.Signals, acks: str, seed: int) -> dict[str, CeleryFlood]:
    common: dict[str, Any] = {
        "jobs": _JOBS, "pace": 50, "body": _BODY, "kills": moments(seed), "kill_with": how,
        "limits": _LIMITS, "settle": 8.0, "give_up": 180.0, "conf": _RECOVERY | (_LATE if acks == "late" else {}),
    }  # fmt: skip
    return {"throttlekit": CeleryFlood(**common), "Celery alone": CeleryFlood(mode="none", **common)}


def lost(told: Told, acks: str) -> int:
    seen = told.ends if acks == "late" else [start.job for start in told.starts]
    return told.flood.jobs - len(set(seen))


def main() -> int:
    parser = parser_of(__doc__, broker=True)
    parser.add_argument("--signal", choices=(*(each.name for each in _SIGNALS), "all"), default="all")
    parser.add_argument("--acks", choices=("late", "early", "both"), default="both")
    parser.add_argument("--seeds", type=int, default=1, help="how many schedules of signals")
    options = parser.parse_args()
    table = Table(title=f"{KILLS} × a signal to 2 workers × 2 processes, {_JOBS} jobs of {1000 * _BODY:.0f} ms")
    for title in _TITLES:
        table.add_column(title, no_wrap=True)
    faults, notes = list[str](), list[str]()
    for where in each_broker(options):
        for how, acks, seed in _runs(options):
            twice: dict[str, int] = {}
            for who, flood in floods(how, acks, seed).items():
                told = run(flood, where, CeleryFlooding)
                found, gone = figures(told), lost(told, acks)
                twice[who] = told.begun_twice
                bound = "-" if found.grants_beyond_us is None else f"{found.grants_beyond_us / 1000:+.1f} ms"
                table.add_row(
                    where.kind, how.name, acks, who, str(seed), str(found.done), str(twice[who]),
                    str(told.ended_twice), str(gone) + (f" ({told.left} left)" if told.left else ""), bound,
                )  # fmt: skip
                print(f"{where.kind} {how.name} {acks} {who}: {gone} lost, {twice[who]} begun twice", flush=True)
                if who == "throttlekit" and (gone or not found.bound_holds):
                    faults.append(f"{where.kind}, {how.name}, {acks}, seed {seed}: lost {gone}, bound {bound}")
            ours, theirs = twice.values()
            if ours > theirs:
                notes.append(
                    f"{where.kind}, {how.name}, {acks}, seed {seed}: {ours} begun twice, Celery alone {theirs}"
                )
    return show([table], faults, notes)


def _runs(options: argparse.Namespace) -> list[tuple[signal.Signals, str, int]]:
    signals = [each for each in _SIGNALS if options.signal in (each.name, "all")]
    acknowledged = ("late", "early") if options.acks == "both" else (options.acks,)
    return [(how, acks, seed) for how in signals for acks in acknowledged for seed in range(1, options.seeds + 1)]


if __name__ == "__main__":
    sys.exit(main())
