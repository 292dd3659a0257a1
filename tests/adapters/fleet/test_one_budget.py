"""One limit for running workers of every framework."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import pytest

from support.celery.flood import CeleryFlood, CeleryFlooding
from support.flood.checks import assert_bound, starts_of
from support.flood.run import Flood, Flooding, FloodLimit
from support.huey.flood import HueyFlood, HueyFlooding
from support.rq.flood import OURS, RqFlood, RqFlooding
from support.servers.flood import Servers, servers
from support.taskiq.flood import TaskiqFlood, TaskiqFlooding
from support.waiting import wait_until

pytestmark = [
    pytest.mark.workers,
    # Celery's client leaves sockets for the garbage collector to close.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]

_LIMITS = (FloodLimit("one", "60/s", 10),)
_JOBS, _AHEAD = 60, 20

FRAMEWORKS: dict[str, Callable[[Servers], Flooding]] = {
    "celery": lambda flood_servers: CeleryFlooding(CeleryFlood(limits=_LIMITS, jobs=_JOBS, processes=1), flood_servers),
    "dramatiq": lambda flood_servers: Flooding(Flood(limits=_LIMITS, jobs=_JOBS, processes=1), flood_servers),
    "huey": lambda flood_servers: HueyFlooding(HueyFlood(limits=_LIMITS, jobs=_JOBS, processes=1), flood_servers),
    "rq": lambda flood_servers: RqFlooding(RqFlood(limits=_LIMITS, jobs=_JOBS, kinds=(OURS,)), flood_servers),
    "taskiq": lambda flood_servers: TaskiqFlooding(TaskiqFlood(limits=_LIMITS, jobs=_JOBS, processes=1), flood_servers),
}


def test_workers_of_every_framework_share_one_limit() -> None:
    """The sum of all grants stays within the bound, each framework runs its jobs, and each job runs once."""
    with ExitStack() as stack:
        shared = stack.enter_context(servers("redis"))
        fleets: dict[str, Flooding] = {}
        for name, make in FRAMEWORKS.items():
            broker_url = stack.enter_context(servers("redis")).broker_url
            fleets[name] = make(Servers("redis", broker_url, shared.redis_base))
        for name, fleet in fleets.items():
            stack.enter_context(fleet).start()
            fleet.send("job", f"{name}-first")
        record = next(iter(fleets.values()))

        def have_started(so_far: int) -> bool:
            return len(record.starts()) >= so_far

        wait_until(lambda: have_started(len(fleets)), description="each framework runs jobs")
        for n in range(_JOBS):
            # At most this many jobs of each framework wait. If one framework were starved, the loop would stop here.
            due = len(fleets) * (n + 1 - _AHEAD)
            wait_until(partial(have_started, due), description="the jobs before are running")
            for name, fleet in fleets.items():
                fleet.send("job", f"{name}{n}")
        wait_until(lambda: have_started(len(fleets) * (_JOBS + 1)), description="all jobs have run")
        outcome = [fleet.stop() for fleet in fleets.values()][-1]
    assert assert_bound(outcome, "one", 16_667, 10) == len(fleets) * (_JOBS + 1)
    assert starts_of(outcome) == {f"{name}{n}": 1 for name in fleets for n in ("-first", *range(_JOBS))}
