"""
Jobs of two kinds share a limit. If the jobs of one kind are stopped, the others use the limit.

For each framework and fault, `tests/adapters/fleet/test_others_go_on.py` shows that the others run.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from huey import RedisHuey

from support.waiting import wait_until
from throttlekit import Control, Limiter, RateLimited, TokenBucket
from throttlekit_huey import install

pytestmark = pytest.mark.workers

_NUMBERS = itertools.count(1)
RATE = 10
SHARED = TokenBucket("shared", (RATE, 1), burst=1)
ACCOUNT = TokenBucket("account", "1000/s", burst=1000, key="{kind}")
SECOND = TokenBucket("x-second", "1000/s", burst=1000)
JOBS = 100


class Fleet:
    """
    Two workers, with jobs of "a", which a test stops, and jobs of "b". All of them need units of `SHARED`.

    Attributes:
        ran: The kind of each job that has run, in order.
        refused: The kind whose bodies get a 429.
    """

    def __init__(self, url: str) -> None:
        self.huey: Any = RedisHuey(f"others{next(_NUMBERS)}", url=url)
        self.limiter, self.control = Limiter(url), Control(url)
        install(self.huey, self.limiter)
        self.ran: list[str] = []
        self.refused = ""
        self.by_key = self.huey.task(name="by_key", throttle=[SHARED, ACCOUNT], throttle_on_429=ACCOUNT)(self._body)
        self.two = self.huey.task(name="two", throttle=[SHARED, SECOND])(self._body)
        self.one = self.huey.task(name="one", throttle=SHARED)(self._body)
        self.consumer = self.huey.create_consumer(workers=2, check_worker_health=False)

    def _body(self, kind: str) -> None:
        self.ran.append(kind)
        if kind == self.refused:
            raise RateLimited(600)

    def start(self, a: Any, b: Any) -> None:
        """Send the jobs of "a" and "b" in turn, and wait until every job has made its first request."""
        for task, kind in [(a, "a"), (b, "b")] * JOBS:
            task(kind)
        self.consumer.start()
        wait_until(lambda: len(self.huey) == 0, description="every job has made one request")

    def count(self, kind: str) -> int:
        return self.ran.count(kind)

    def close(self) -> None:
        self.consumer.stop(graceful=True)
        self.control.close()
        self.limiter.close()
        self.huey.storage.pool.disconnect()


@pytest.fixture
def fleet(redis_url: str) -> Iterator[Fleet]:
    fleet = Fleet(redis_url)
    yield fleet
    fleet.close()


FAULTS: dict[str, tuple[str, str, Callable[[Fleet], object]]] = {
    "paused key": ("by_key", "by_key", lambda fleet: fleet.control.pause("account", key="a", duration=600)),
    "429": ("by_key", "by_key", lambda fleet: setattr(fleet, "refused", "a")),
    "renamed task": ("two", "one", lambda fleet: fleet.two.unregister()),
    "revoked task": ("two", "one", lambda fleet: fleet.two.revoke()),
}
"""The task of "a", that of "b", and what stops the jobs of "a"."""


@pytest.mark.parametrize("fault", FAULTS)
def test_other_jobs_use_the_whole_limit(fleet: Fleet, fault: str) -> None:
    """The units that stopped jobs do not use are used by the others."""
    a, b, strike = FAULTS[fault]
    fleet.limiter.pause(SHARED, 600)  # on a slow machine, most jobs would have run before the fault
    fleet.start(getattr(fleet, a), getattr(fleet, b))
    strike(fleet)
    fleet.limiter.resume(SHARED)
    started = [(fleet.count("b"), time.monotonic())]

    def is_limit_used() -> bool:
        """At some point, the units of two seconds were used within 2.8 s. The machine can be busy for a while."""
        count, now = fleet.count("b"), time.monotonic()
        if count > started[-1][0]:
            started.append((count, now))
        return any(count >= then + 2 * RATE and now - began < 2.8 for then, began in started)

    wait_until(is_limit_used, description="the other jobs use the limit")


def test_jobs_of_a_key_run_when_it_is_resumed(fleet: Fleet) -> None:
    """
    Jobs that waited when the pause began, and jobs that were sent during it, run long before the original end of the
    pause.
    """
    fleet.control.pause("account", key="a", duration=600)
    fleet.start(fleet.by_key, fleet.by_key)
    wait_until(lambda: fleet.count("b") >= RATE // 2, description="jobs of the other key ran")
    assert fleet.count("a") == 0
    fleet.control.resume("account", key="a")
    wait_until(lambda: fleet.count("a") == JOBS, description="all jobs of the key ran", timeout=60)


def test_a_consumer_that_stops_passes_waiting_jobs_to_others(fleet: Fleet) -> None:
    """The consumer's own workers, which listen until it has stopped, take none of the jobs."""
    fleet.limiter.pause(SHARED, 600)
    for _ in range(20):
        fleet.one("b")
    fleet.consumer.start()
    wait_until(lambda: fleet.huey.scheduled_count() == 20, description="every job waits")
    fleet.consumer.stop()
    woken = f"throttlekit:huey:{fleet.huey.storage.name}:woken"
    assert fleet.huey.storage.conn.llen(woken) == 20
