"""One limit for running workers of every framework."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

import pytest

from support.celery.flood import CeleryFlood
from support.celery.quiet import QUIET
from support.flood.checks import assert_bound, starts_of
from support.flood.run import Flood, Flooding, FloodLimit
from support.huey.flood import HueyFlood
from support.rq.flood import OURS, RqFlood
from support.servers.flood import Servers, servers
from support.taskiq.flood import TaskiqFlood
from support.waiting import wait_until

pytestmark = [pytest.mark.workers, *QUIET]

_LIMITS = (FloodLimit("one", "60/s", 10),)
_JOBS, _AHEAD = 60, 20

FLOODS: dict[str, Flood] = {
    "celery": CeleryFlood(limits=_LIMITS, jobs=_JOBS, processes=1),
    "dramatiq": Flood(limits=_LIMITS, jobs=_JOBS, processes=1),
    "huey": HueyFlood(limits=_LIMITS, jobs=_JOBS, processes=1),
    "rq": RqFlood(limits=_LIMITS, jobs=_JOBS, kinds=(OURS,)),
    "taskiq": TaskiqFlood(limits=_LIMITS, jobs=_JOBS, processes=1),
}


def test_workers_of_every_framework_share_one_limit() -> None:
    """The sum of all grants stays within the bound, each framework runs its jobs, and each job runs once."""
    with ExitStack() as stack:
        shared = stack.enter_context(servers("redis"))
        fleets: dict[str, Flooding] = {}
        for name, flood in FLOODS.items():
            broker_url = stack.enter_context(servers("redis")).broker_url
            fleets[name] = flood.flooding(flood, Servers("redis", broker_url, shared.redis_base))
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
