"""
SIGKILL of every worker process, six times during a flood: what is lost, and what runs twice?

    python tests/benchmarks/taskiq_kills.py [--broker redis|rabbitmq|both] [--seeds 1]

The same kills for throttlekit and for taskiq alone with the same body, with jobs sent at the limit's own pace. On Redis
the broker is a stream, which gives back what a dead worker had after 5 s, and not after ten minutes. Exits with 1 if
throttlekit loses a job or breaks the bound; where it begins more jobs twice than taskiq alone, it says so. One schedule
is a small sample: take several seeds. A list of Redis has no acknowledgements: it loses what a killed worker holds.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.table import Table

from support.flood.figures import figures
from support.flood.run import FloodLimit
from support.reports.command import each_broker, parser_of, show
from support.taskiq.flood import TaskiqFlood, run_taskiq

KILLS = 6
_JOBS = 1000
_BODY = 0.02
_LIMITS = (FloodLimit("partner", "50/s", 50),)


def moments(seed: int) -> tuple[float, ...]:
    """Six moments in 15 s, far enough apart for the workers to have come back."""
    chance = random.Random(seed)
    return tuple(2.5 * i + chance.uniform(0.5, 1.9) for i in range(KILLS))


def floods(seed: int) -> dict[str, TaskiqFlood]:
    common: dict[str, Any] = {
        "limits": _LIMITS, "jobs": _JOBS, "body": _BODY, "kills": moments(seed), "settle": 8.0, "give_up": 120.0,
    }  # fmt: skip
    return {"throttlekit": TaskiqFlood(**common), "taskiq alone, 50/s": TaskiqFlood(mode="none", pace=50, **common)}


def main() -> int:
    parser = parser_of(__doc__, broker=True)
    parser.add_argument("--seeds", type=int, default=1, help="how many schedules of kills")
    options = parser.parse_args()
    table = Table(title=f"{KILLS} × SIGKILL of 2 processes × 10 places, body {1000 * _BODY:.0f} ms")
    for title in ("broker", "who", "seed", "jobs", "ended", "begun twice", "ended twice", "lost", "bound, grants"):
        table.add_column(title, no_wrap=True)
    faults, notes = list[str](), list[str]()
    for where in each_broker(options):
        for seed in range(1, options.seeds + 1):
            begun: dict[str, int] = {}
            for who, flood in floods(seed).items():
                told = run_taskiq(flood, where)
                found = figures(told)
                begun[who] = told.begun_twice
                bound = "-" if found.grants_beyond_us is None else f"{found.grants_beyond_us / 1000:+.1f} ms"
                table.add_row(
                    where.kind, who, str(seed), str(flood.jobs), str(found.done), str(begun[who]),
                    str(told.ended_twice), str(found.lost) + (f" ({found.left} left)" if found.left else ""), bound,
                )  # fmt: skip
                if who == "throttlekit" and (found.lost or not found.bound_holds):
                    faults.append(f"{where.kind}, seed {seed}: lost {found.lost}, bound {bound}")
            ours, theirs = begun.values()
            if ours > theirs:
                notes.append(f"{where.kind}, seed {seed}: {ours} begun twice, taskiq alone {theirs}")
    return show([table], faults, notes)


if __name__ == "__main__":
    sys.exit(main())
