"""
SIGKILL of every consumer, six times during a flood: what is lost, and what runs twice?

    python tests/benchmarks/huey_kills.py [--type thread|process|greenlet|all] [--seeds 1]

The same kills for throttlekit, for huey alone with as many jobs as it can take, and for huey alone with jobs sent at
the limit's own pace. Huey takes a job off its queue before it runs it, and has no acknowledgement: what a worker had
begun is lost with it. So a job that waits, or of which no limit has decided yet, must not be lost; one that was
granted is lost as huey alone loses it. Exits with 1 if throttlekit loses more jobs before their bodies than were
granted, or a body runs twice, or the bound breaks. A row takes half a minute.
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
from support.huey.flood import HueyFlood, run_huey
from support.huey.workers import WORKER_TYPES
from support.reports.command import parser_of, show
from support.servers.flood import servers

KILLS = 6
_BODY = 0.02
_LIMITS = (FloodLimit("partner", "50/s", 50),)
_TITLES = (
    "workers",
    "who",
    "seed",
    "jobs",
    "ended",
    "cut short",
    "granted only",
    "lost waiting",
    "twice",
    "bound, grants",
)


def moments(seed: int) -> tuple[float, ...]:
    """Six moments in 15 s, far enough apart for the workers to have come back."""
    chance = random.Random(seed)
    return tuple(2.5 * i + chance.uniform(0.1, 1.9) for i in range(KILLS))


def floods(kind: str, seed: int) -> dict[str, HueyFlood]:
    common: dict[str, Any] = {
        "limits": _LIMITS, "body": _BODY, "kills": moments(seed), "settle": 12.0, "give_up": 120.0, "worker_type": kind,
    }  # fmt: skip
    return {
        "throttlekit": HueyFlood(jobs=1000, **common),
        "huey alone, flat out": HueyFlood(jobs=6000, mode="none", **common),
        "huey alone, 50/s": HueyFlood(jobs=1000, mode="none", pace=50, **common),
    }


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--type", choices=(*WORKER_TYPES, "all"), default="all")
    parser.add_argument("--seeds", type=int, default=1, help="how many schedules of kills")
    options = parser.parse_args()
    table = Table(title=f"{KILLS} × SIGKILL of 2 consumers × 4 workers, body {1000 * _BODY:.0f} ms")
    for title in _TITLES:
        table.add_column(title, no_wrap=True)
    faults = list[str]()
    kinds = WORKER_TYPES if options.type == "all" else (options.type,)
    runs = [(kind, seed) for kind in kinds for seed in range(1, options.seeds + 1)]
    with servers("redis") as where:
        for kind, seed in runs:
            for who, flood in floods(kind, seed).items():
                told = run_huey(flood, where)
                found, begun = figures(told), len({start.job for start in told.starts})
                limited = who == "throttlekit"
                # A worker that is killed between a grant and its note of it leaves the job to be granted again.
                granted_only = min(flood.jobs - begun, max(0, len(told.grants) - begun)) if limited else 0
                lost = flood.jobs - begun - granted_only
                bound = "-" if found.grants_beyond_us is None else f"{found.grants_beyond_us / 1000:+.1f} ms"
                table.add_row(
                    kind, who, str(seed), str(flood.jobs), str(found.done), str(begun - found.done),
                    str(granted_only) if limited else "-", str(lost), str(told.begun_twice), bound,
                )  # fmt: skip
                print(f"{kind} {who}, seed {seed}: {lost} lost, {begun - found.done} cut short", file=sys.stderr)
                if limited and (lost > 0 or told.begun_twice or told.left or not found.bound_holds):
                    faults.append(
                        f"{kind}, seed {seed}: {lost} lost, {told.left} left, {told.begun_twice} twice, bound {bound}"
                    )
    return show([table], faults, [])


if __name__ == "__main__":
    sys.exit(main())
