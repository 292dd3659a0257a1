"""Jobs of two kinds share a limit. Whatever stops those of one kind, the others go on."""

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
RATE = 20
SHARED = TokenBucket("shared", (RATE, 1), burst=1)
ACCOUNT = TokenBucket("account", "1000/s", burst=1000, key="{who}")
SECOND = TokenBucket("x-second", "1000/s", burst=1000)
JOBS = 150


class Fleet:
    """
    Two workers, and jobs of "a", which a test stops, and of "b"; all of them need units of `SHARED`.

    Attributes:
        ran: The kind of each job that has run, in order.
        refused: The kind whose bodies get a 429.
    """

    def __init__(self, url: str, stores: dict[str, str] | None = None) -> None:
        self.huey: Any = RedisHuey(f"others{next(_NUMBERS)}", url=url)
        self.limiter, self.control = Limiter(url, stores=stores), Control(url)
        install(self.huey, self.limiter)
        self.ran: list[str] = []
        self.refused = ""
        self.by_key = self.huey.task(name="by_key", throttle=[SHARED, ACCOUNT], throttle_on_429=ACCOUNT)(self._body)
        self.two = self.huey.task(name="two", throttle=[SHARED, SECOND])(self._body)
        self.one = self.huey.task(name="one", throttle=SHARED)(self._body)
        self.consumer = self.huey.create_consumer(workers=2, check_worker_health=False)

    def _body(self, who: str) -> None:
        self.ran.append(who)
        if who == self.refused:
            raise RateLimited(600)

    def start(self, a: Any, b: Any, *, a_first: bool) -> None:
        """Send the jobs, all of "a" in front or every other one, and wait until they wait and some have run."""
        tasks = [(a, "a"), (b, "b")] * JOBS
        for task, who in sorted(tasks, key=lambda each: each[1]) if a_first else tasks:
            task(who)
        self.consumer.start()
        wait_until(lambda: len(self.huey) == 0, description="every job has asked once")

    def count(self, who: str) -> int:
        return self.ran.count(who)

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


def _pause_key(fleet: Fleet) -> None:
    fleet.control.pause("account", key="a", for_=600)


def _pause_second(fleet: Fleet) -> None:
    fleet.control.pause("x-second")


def _lower_second(fleet: Fleet) -> None:
    fleet.control.set("x-second", "1/hour", burst=1)


def _answer_429(fleet: Fleet) -> None:
    fleet.refused = "a"


def _rename(fleet: Fleet) -> None:
    fleet.two.unregister()


def _revoke(fleet: Fleet) -> None:
    fleet.two.revoke()


FAULTS: dict[str, tuple[str, str, Callable[[Fleet], None]]] = {
    "paused key": ("by_key", "by_key", _pause_key),
    "paused second limit": ("two", "one", _pause_second),
    "second limit set to a low rate": ("two", "one", _lower_second),
    "429": ("by_key", "by_key", _answer_429),
    "renamed task": ("two", "one", _rename),
    "revoked task": ("two", "one", _revoke),
}
"""The task of "a", that of "b", and what stops the jobs of "a"."""


@pytest.mark.parametrize("a_first", [False, True], ids=["every other job", "all in front"])
@pytest.mark.parametrize("fault", FAULTS)
def test_others_go_on(fleet: Fleet, fault: str, a_first: bool) -> None:
    """Jobs that share a limit with jobs that something else stops run, and do not wait until these may run."""
    a, b, strike = FAULTS[fault]
    fleet.start(getattr(fleet, a), getattr(fleet, b), a_first=a_first)
    strike(fleet)
    before = fleet.count("b")
    wait_until(lambda: fleet.count("b") >= before + RATE, description="jobs of the other kind ran", timeout=30)


@pytest.mark.parametrize("a_first", [False, True], ids=["every other job", "all in front"])
def test_others_go_on_while_a_groups_store_is_away(redis_url: str, a_first: bool) -> None:
    """Jobs that use no limit of a dead store run beside jobs that do."""
    fleet = Fleet(redis_url, stores={"x-*": "redis://127.0.0.1:1/0"})
    try:
        fleet.start(fleet.two, fleet.one, a_first=a_first)
        wait_until(lambda: fleet.count("b") >= RATE, description="jobs of the other kind ran", timeout=30)
        assert fleet.count("a") == 0
    finally:
        fleet.close()


@pytest.mark.parametrize("fault", ["paused key", "429", "renamed task"])
def test_others_use_the_whole_limit(fleet: Fleet, fault: str) -> None:
    """The units that stopped jobs do not take go to the others."""
    a, b, strike = FAULTS[fault]
    fleet.start(getattr(fleet, a), getattr(fleet, b), a_first=False)
    strike(fleet)
    started = [(fleet.count("b"), time.monotonic())]

    def is_limit_used() -> bool:
        """Two seconds' units took no longer than 2.8 s, at some point: the machine may be busy for a while."""
        count, now = fleet.count("b"), time.monotonic()
        if count > started[-1][0]:
            started.append((count, now))
        return any(count >= then + 2 * RATE and now - began < 2.8 for then, began in started)

    wait_until(is_limit_used, description="the others use the limit")


def test_jobs_of_a_key_go_on_when_it_is_resumed(fleet: Fleet) -> None:
    """Those that waited as the pause began, and those that came in it: long before the pause was to end."""
    fleet.control.pause("account", key="a", for_=600)
    fleet.start(fleet.by_key, fleet.by_key, a_first=False)
    wait_until(lambda: fleet.count("b") >= RATE // 2, description="jobs of the other key ran")
    assert fleet.count("a") == 0
    fleet.control.resume("account", key="a")
    wait_until(lambda: fleet.count("a") == JOBS, description="all jobs of the key ran", timeout=60)
