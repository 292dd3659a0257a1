"""What only the memory store guarantees: its own clock, and that it removes old entries by itself."""

from __future__ import annotations

import time

import pytest

from throttlekit import FixedWindow, Job, LeakyBucket, Limiter, SlidingLog, SlidingWindow, TokenBucket
from throttlekit._core.limit.base import Limit
from throttlekit.stores import MemoryStore
from throttlekit.testing import FakeClock

LIMIT = TokenBucket("partner", "10/s", burst=5, key="{account}")
# For each limit, the seconds after which nothing of it counts, if one unit was taken at the start of a second.
EVERY = {
    LIMIT: 0.1,
    LeakyBucket("partner", "10/s", key="{account}"): 0.1,
    FixedWindow("partner", "10/s", key="{account}"): 1.0,
    SlidingWindow("partner", "10/s", key="{account}"): 2.0,
    SlidingLog("partner", "10/s", key="{account}"): 1.0,
}
every_algorithm = pytest.mark.parametrize("limit", EVERY, ids=lambda limit: limit.algorithm)


def test_fake_clock_moves_only_on_request() -> None:
    """The clock stands still until it is moved, forward or back, by whole microseconds."""
    clock = FakeClock(1_000_000)
    readings = [clock(), clock()]
    for seconds in (0.1, 1, -0.6, 1e-6):
        clock.advance(seconds)
        readings.append(clock())
    assert readings == [1_000_000, 1_000_000, 1_100_000, 2_100_000, 1_500_000, 1_500_001]


def test_own_clock_shows_the_wall_time() -> None:
    """Without a given clock, the store starts at the time of the wall clock."""
    store = MemoryStore()
    before_us = time.time_ns() // 1000
    assert abs(store._clock_us() - before_us) < 5_000_000


@every_algorithm
def test_unused_keys_are_swept(store: MemoryStore, limiter: Limiter, clock: FakeClock, limit: Limit) -> None:
    """Unused limits are removed automatically: a store with ever new keys does not grow without bound."""
    for account in range(10_000):
        clock.advance(0.01)
        limiter.acquire(limit, key=account)
    assert len(store) < 6_000


def test_abandoned_waitlists_are_swept(store: MemoryStore, limiter: Limiter, clock: FakeClock) -> None:
    """Waitlists of lost jobs are removed after two days: 1440 are kept here, plus those since the last sweep."""
    limit = LeakyBucket("partner", "10/s", key="{account}")
    for account in range(5_000):
        clock.advance(120)
        limiter.acquire(limit, key=account)
        assert not limiter.acquire(limit, key=account, job=Job(id="1"))
    assert len(store) < 6_000


@every_algorithm
def test_live_keys_survive_the_sweep(store: MemoryStore, limiter: Limiter, limit: Limit) -> None:
    """A sweep removes nothing that still matters."""
    for account in range(9_000):
        limiter.acquire(limit, key=account)
    assert len(store) == 9_000
    assert limiter.peek(limit, key=0).remaining == limit.capacity - 1


@every_algorithm
def test_limit_is_removed_a_grace_time_after_it_is_full(
    store: MemoryStore, limiter: Limiter, clock: FakeClock, limit: Limit
) -> None:
    """State is kept until nothing of it has counted for the grace time."""
    limiter.acquire(limit, key=1)
    assert limiter.peek(limit, key=1).reset_after == EVERY[limit]
    [(_, expires_us)] = store._values.values()
    assert expires_us == clock() + round((EVERY[limit] + 5) * 1_000_000)
    clock.advance(EVERY[limit] + 5)
    decision = limiter.peek(limit, key=1)
    assert (decision.remaining, decision.reset_after) == (limit.capacity, 0.0)


@every_algorithm
def test_settled_debt_is_stored_as_long_as_it_counts(
    store: MemoryStore, limiter: Limiter, clock: FakeClock, limit: Limit
) -> None:
    """A limit that was settled below empty is kept for as long as that counts, and no longer than necessary."""
    limiter.settle(limiter.acquire(limit, key=1), actual=limit.capacity + 10)
    reset_after = limiter.peek(limit, key=1).reset_after
    [(_, expires_us)] = store._values.values()
    assert reset_after >= EVERY[limit]
    assert expires_us == clock() + round((reset_after + 5) * 1_000_000)
