"""`acquire_many` on every kind of store: threads, waiting jobs, round trips, and the rules of live control."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from conformance.conftest import store_named
from support.servers.blocking import either
from support.servers.processes import patient
from support.servers.stores import Recording
from throttlekit import Control, FixedWindow, Job, Limit, Limiter, SlidingLog, SlidingWindow, TokenBucket
from throttlekit.stores import Store
from throttlekit.stores.redis import RedisStore

BUCKET = TokenBucket("bucket", "1/day", burst=50)
ALL_LIMITS: list[Limit] = [
    BUCKET,
    FixedWindow("fixed", "50/year"),
    FixedWindow("zoned", "50/year", tz="Europe/Berlin"),
    SlidingWindow("sliding", "50/365d"),
    SlidingLog("log", "50/365d"),
]


@pytest.fixture(params=["memory", "redis", "cluster"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    with contextlib.closing(store_named(request.param, request)) as store:
        yield store


@pytest.mark.parametrize("limit", ALL_LIMITS, ids=lambda limit: limit.name)
def test_batches_that_race_take_no_unit_twice(store: Store, limit: Limit) -> None:
    """With 16 concurrent requests, the granted units are exactly the capacity. Each takes at most four calls."""
    recording = Recording(store)
    limiter = Limiter(recording)
    with ThreadPoolExecutor(8) as threads:
        decisions = list(threads.map(lambda most: limiter.acquire_many(limit, most), [7, 13] * 8))
    assert len(recording.asked) <= 4 * len(decisions)
    granted = sum(each.cost for each in decisions if each.allowed)
    assert granted + limiter.peek(limit).remaining == 50
    assert granted <= 50


def test_acquire_many_takes_two_round_trips(redis_url: str) -> None:
    """A call looks, then takes, whether all requested units are free or fewer."""
    recording = Recording(RedisStore(redis_url, timeout=5))
    with contextlib.closing(Limiter(recording)) as limiter:
        for most, granted in ((40, 40), (40, 10), (40, 1)):
            before = len(recording.asked)
            assert limiter.acquire_many(BUCKET, most).cost == granted
            assert len(recording.asked) - before == 2


def test_waiting_jobs_come_before_acquire_many(store: Store) -> None:
    """Units that jobs wait for are not granted. When the waitlist is empty, they are."""
    limiter = Limiter(store)
    limiter.acquire(BUCKET, cost=45)
    waiting = limiter.acquire(BUCKET, job=Job(id="1"), cost=6)
    assert waiting.reason == "exhausted"
    assert not limiter.acquire_many(BUCKET, 40)
    limiter.clear_waitlist(BUCKET)
    assert limiter.acquire_many(BUCKET, 40).cost == 5


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_acquire_many_follows_live_control(redis_url: str, kind: str) -> None:
    """A call grants at most a lower burst that is set, nothing for a paused limit, and all in shadow mode."""
    verbs: list[tuple[Any, tuple[bool, int]]] = [
        (lambda control: control.set("bucket", "1/day", burst=20), (True, 20)),
        (lambda control: control.shadow("bucket"), (True, 20)),
        (lambda control: control.pause("bucket"), (False, 1)),
    ]
    with Control(patient(redis_url)) as control:
        for verb, expected in verbs:
            verb(control)
            with either(kind, patient(redis_url)) as limiter:
                decision = limiter.acquire_many(BUCKET, 40)
                assert (decision.allowed, decision.cost) == expected
