"""
A rolling deploy: workers of the release before and of this one, on one store and one broker.

    python tests/benchmarks/rolling_deploy.py --before CHECKOUT [--jobs 2000] [--rate 100] [--only TEXT]

A backlog of --jobs under one limit of --rate a second. It is begun by two worker processes of the release whose sources
are in CHECKOUT, then two of this one work beside them, and when half of it is done the former get SIGTERM. Exits
with 1 if the limit is broken, or a job lost or run twice.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.celery.flood import CeleryFlood, CeleryFlooding
from support.flood.figures import bursts_beyond_us
from support.flood.run import Flood, Flooding, FloodLimit, Told
from support.huey.flood import HueyFlood, HueyFlooding
from support.reports.command import parser_of
from support.reports.tables import Promise, about, promises, table
from support.rq.flood import OURS_SIMPLE, STOCK, RqFlood, RqFlooding
from support.servers.flood import Kind, servers
from support.taskiq.flood import TaskiqFlood, TaskiqFlooding
from support.waiting import wait_until

_TITLES = ["workers", "done", "lost", "twice", "left", "bound", "use", "by the release before, while both ran"]
_OLD_FIELDS = {"slots_of": [], "parking": True}
"""What the workers of the release before read of a flood besides."""


@dataclass(frozen=True)
class Case:
    """One framework on one broker."""

    name: str
    broker: Kind
    flooding: type[Flooding]
    flood: Callable[..., Flood]
    options: Any = ()


CASES = (
    Case("Dramatiq, Redis", "redis", Flooding, Flood),
    Case("Dramatiq, RabbitMQ", "rabbitmq", Flooding, Flood),
    Case("RQ, ours", "redis", RqFlooding, RqFlood, {"kinds": (OURS_SIMPLE, OURS_SIMPLE)}),
    Case("RQ, stock", "redis", RqFlooding, RqFlood, {"kinds": (STOCK, STOCK)}),
    Case("Celery, Redis", "redis", CeleryFlooding, CeleryFlood),
    Case("Celery, RabbitMQ", "rabbitmq", CeleryFlooding, CeleryFlood),
    Case("huey, Redis", "redis", HueyFlooding, HueyFlood),
    Case("taskiq, stream", "redis", TaskiqFlooding, TaskiqFlood, {"on": "stream"}),
    Case("taskiq, list", "redis", TaskiqFlooding, TaskiqFlood, {"on": "list"}),
    Case("taskiq, RabbitMQ", "rabbitmq", TaskiqFlooding, TaskiqFlood),
)


def deploy(case: Case, before: Path, jobs: int, rate: int) -> tuple[Told, float]:
    """What happened, and which share of the bodies the release before began while both ran."""
    limits = (FloodLimit("partner", f"{rate}/s", max(1, rate // 2)),)
    flood = case.flood(limits=limits, jobs=jobs, give_up=60 + 3 * jobs / rate, **dict(case.options))
    with servers(case.broker) as where, case.flooding(flood, where) as flooding:
        for index in range(jobs):
            flooding.send("job", str(index), "one")
        new = flooding._environment
        flooding._environment = _environment_of(before, new)
        with _inside(before):
            flooding.start()
        old = flooding._workers
        _until(flooding, jobs // 10, "the release before has done a tenth")
        former = {start.process for start in flooding.starts()}
        flooding._environment = new
        flooding.start()
        began = len(flooding.starts())
        _until(flooding, jobs // 2, "half is done")
        both = flooding.starts()[began:]
        old.stop()
        log = old.log()
        old.close()
        assert "Traceback" not in log, log[-3000:]
        _until(flooding, jobs, "all is done", timeout=flood.give_up, fails=False)
        wait_until(lambda: flooding.left() == 0, description="the broker is empty", timeout=30)
        share = sum(start.process in former for start in both) / max(1, len(both))
        return flooding.stop(), share


@contextlib.contextmanager
def _inside(directory: Path) -> Iterator[None]:
    """Dramatiq's command imports from where it is started."""
    here = Path.cwd()
    os.chdir(directory)
    try:
        yield
    finally:
        os.chdir(here)


def _until(flooding: Flooding, done: int, what: str, timeout: float = 120, *, fails: bool = True) -> None:
    def is_done() -> bool:
        assert flooding.running, f"the workers have ended: {flooding.log()[-3000:]}"
        return int(flooding.record.scard("ended")) >= done

    try:
        wait_until(is_done, description=what, timeout=timeout, every=0.1)
    except AssertionError:
        if fails:
            raise AssertionError(flooding.log()[-3000:]) from None


def _environment_of(checkout: Path, environment: dict[str, str]) -> dict[str, str]:
    """That of this release's workers, for those of a checkout: its packages, and what its tests read besides."""
    tests = checkout / "tests"
    path = [tests / "support" / "absent", tests, checkout, checkout / "adapters", checkout / "lua"]
    told = json.dumps(json.loads(environment["TK_FLOOD"]) | _OLD_FIELDS)
    return environment | {"TK_FLOOD": told, "PYTHONPATH": os.pathsep.join(map(str, path))}


def row(case: Case, told: Told, share: float, rate: int) -> list[str]:
    times, burst = [grant.at_us for grant in told.grants], max(1, rate // 2)
    beyond_us = bursts_beyond_us(times, burst, 1_000_000 / rate)
    use = (len(times) - burst) * 1_000_000 / rate / (times[-1] - times[0])
    done = len(set(told.ends))
    return [
        case.name, str(done), str(told.flood.jobs - done), str(told.begun_twice), str(told.left),
        f"{beyond_us / 1000:+.1f} ms", f"{use:.2f}", f"{100 * share:.0f} %",
    ]  # fmt: skip


def judged(rows: list[list[str]]) -> Iterator[Promise]:
    for name, _, lost, twice, left, bound, *_ in rows:
        kept = lost == twice == left == "0" and float(bound.removesuffix(" ms")) <= 0
        told = f"{lost} lost, {twice} run twice, bound {bound}"
        yield Promise(f"{name}: all jobs run once, and the bound holds", told, "0, 0, <= 0", kept)


def main() -> int:
    parser = parser_of(__doc__, quick="a small backlog", only="a part of a row's name")
    parser.add_argument("--before", type=Path, required=True, help="a checkout of the release before")
    parser.add_argument("--jobs", type=int, default=2_000)
    parser.add_argument("--rate", type=int, default=100, help="of the limit, a second (%(default)s)")
    options = parser.parse_args()
    jobs = 300 if options.quick else options.jobs
    rows: list[list[str]] = []
    for case in CASES:
        if options.only in case.name:
            rows.append(row(case, *deploy(case, options.before.resolve(), jobs, options.rate), options.rate))
            print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    shown = list(judged(rows))
    print(about("dramatiq", "rq", "celery", "huey", "taskiq", "redis"))
    print(f"A backlog of {jobs} jobs under one limit of {options.rate}/s.\n")
    print(table(_TITLES, rows), promises("rolling_deploy", shown), sep="\n\n")
    return 1 if any(not each.kept for each in shown) else 0


if __name__ == "__main__":
    sys.exit(main())
