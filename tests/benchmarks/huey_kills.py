"""
SIGKILL of every consumer, six times during a flood: which jobs are lost, and which run twice?

    python tests/benchmarks/huey_kills.py [--type thread|process|greenlet|all] [--seeds 1]

The same kills for throttlekit, for huey alone with as many jobs as it can run, and for huey alone with jobs sent at the
limit's rate. Huey removes a job from its queue before it runs the job, and has no acknowledgement: a job that a worker
has begun is lost with the worker. So a waiting job, or one without a decision, must not be lost; a granted job is lost
as it is with huey alone. Exits with 1 if throttlekit loses more jobs before their bodies than were granted, or a body
runs twice, or the bound breaks. A row takes half a minute.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.flood.run import Flood, FloodRecord
from support.huey.flood import HueyFlood
from support.huey.workers import WORKER_TYPES
from support.reports.kills import Run, compare, flood_of, kill_options, moments
from support.servers.flood import servers


def floods(kind: str, seed: int) -> dict[str, Flood]:
    kills, how = moments(seed, first=0.1), {"worker_type": kind, "settle": 12.0}
    return {
        "throttlekit": flood_of(HueyFlood, kills, **how),
        "huey alone, flat out": flood_of(HueyFlood, kills, jobs=6000, mode="none", **how),
        "huey alone, 50/s": flood_of(HueyFlood, kills, mode="none", pace=50, **how),
    }


def lost(result: FloodRecord) -> tuple[int, dict[str, str]]:
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
    options = kill_options(__doc__, broker=False, type=(*WORKER_TYPES, "all"))
    kinds = WORKER_TYPES if options.type == "all" else (options.type,)
    runs = [(kind, seed) for kind in kinds for seed in range(1, options.seeds + 1)]
    with servers("redis") as where:
        each = (Run(where, seed, floods(kind, seed), {"workers": kind}) for kind, seed in runs)
        title = "SIGKILL of 2 consumers × 4 workers, body 20 ms"
        return compare(title, each, lost=lost, twice=lambda ours, others: ours > 0)


if __name__ == "__main__":
    sys.exit(main())
