"""
SIGKILL of every worker process, six times during a flood: what is lost, and what runs twice?

    python tests/benchmarks/dramatiq_kills.py [--broker redis|rabbitmq|both] [--seeds 1]

The same kills for throttlekit and for Dramatiq alone with the same body: once with as many jobs as it can take
(kills then meet busy threads), once with jobs sent at the limit's own pace. On Redis both are told at once that a
worker is dead, and do not find out after a minute. Exits with 1 if throttlekit loses a job, or begins more of them
twice than both runs of Dramatiq alone; where it is more than one of them only, it says so. One schedule is a small
sample: take several seeds.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path
from typing import Any, get_args

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.table import Table

from support.dramatiq.workers import clean_up_when_terminated
from support.flood.figures import figures
from support.flood.run import Flood, FloodLimit, Told, run
from support.servers.flood import Kind, servers

KILLS = 6
_BODY = 0.02
_LIMITS = (FloodLimit("partner", "50/s", 50),)


def moments(seed: int) -> tuple[float, ...]:
    """Six moments in 15 s, far enough apart for the workers to have come back."""
    chance = random.Random(seed)
    return tuple(2.5 * i + chance.uniform(0.5, 1.9) for i in range(KILLS))


def floods(seed: int) -> dict[str, Flood]:
    common: dict[str, Any] = {"limits": _LIMITS, "body": _BODY, "kills": moments(seed), "settle": 8.0, "give_up": 120.0}
    return {
        "throttlekit": Flood(jobs=1000, **common),
        "Dramatiq alone, flat out": Flood(jobs=6000, mode="none", **common),
        "Dramatiq alone, 50/s": Flood(jobs=1000, mode="none", pace=50, **common),
    }


def begun_twice(told: Told) -> int:
    """Bodies begun beyond one a job. Those that a kill cut short had to be."""
    return len(told.starts) - len({start.job for start in told.starts})


def ended_twice(told: Told) -> int:
    return len(told.ends) - len(set(told.ends))


def main() -> int:
    clean_up_when_terminated()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", choices=(*get_args(Kind), "both"), default="both")
    parser.add_argument("--seeds", type=int, default=1, help="how many schedules of kills")
    options = parser.parse_args()
    table = Table(title=f"{KILLS} × SIGKILL of 2 processes × 4 threads, body {1000 * _BODY:.0f} ms")
    for title in ("broker", "who", "seed", "jobs", "ended", "begun twice", "ended twice", "lost", "bound, grants"):
        table.add_column(title, no_wrap=True)
    faults, notes = list[str](), list[str]()
    for kind in get_args(Kind) if options.broker == "both" else (options.broker,):
        with servers(kind) as where:
            for seed in range(1, options.seeds + 1):
                begun: dict[str, int] = {}
                for who, flood in floods(seed).items():
                    told = run(flood, where)
                    found = figures(told)
                    begun[who] = begun_twice(told)
                    bound = "-" if found.grants_beyond_us is None else f"{found.grants_beyond_us / 1000:+.1f} ms"
                    lost = str(found.lost) + (f" ({found.left} left)" if found.left else "")
                    table.add_row(
                        kind, who, str(seed), str(flood.jobs), str(found.done),
                        str(begun[who]), str(ended_twice(told)), lost, bound,
                    )  # fmt: skip
                    if who == "throttlekit" and (found.lost or not found.bound_holds):
                        faults.append(f"{kind}, seed {seed}: lost {found.lost}, bound {bound}")
                ours = begun.pop("throttlekit")
                for who, count in begun.items():
                    if ours > count:
                        told_to = faults if ours > max(begun.values()) else notes
                        told_to.append(f"{kind}, seed {seed}: {ours} begun twice, {who} {count}")
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    console.print(table)
    console.print("\n".join([f"BROKEN  {fault}" for fault in faults] + [f"MORE    {note}" for note in notes]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
