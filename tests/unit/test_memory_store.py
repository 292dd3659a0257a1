"""What only the memory store promises: its own clock, and that it forgets by itself."""

from __future__ import annotations

import time

from throttlekit import Limiter, TokenBucket
from throttlekit.stores import MemoryStore
from throttlekit.testing import FakeClock

LIMIT = TokenBucket("partner", "10/s", burst=5, key="{account}")


def test_clock_may_be_given() -> None:
    """A test moves the store's time by hand."""
    clock = FakeClock()
    limiter = Limiter(MemoryStore(clock_us=clock))
    passed = [bool(limiter.acquire(LIMIT, key=1)) for _ in range(6)]
    clock.advance(0.1)
    assert [*passed, bool(limiter.acquire(LIMIT, key=1))] == [True] * 5 + [False, True]


def test_fake_clock_moves_as_told() -> None:
    """The clock stands still until it is moved, forward or back, by whole microseconds."""
    clock = FakeClock(1_000_000)
    readings = [clock(), clock()]
    for seconds in (0.1, 1, -0.6, 1e-6):
        clock.advance(seconds)
        readings.append(clock())
    assert readings == [1_000_000, 1_000_000, 1_100_000, 2_100_000, 1_500_000, 1_500_001]


def test_own_clock_tells_the_wall_time() -> None:
    """Without a clock given, the store begins at the wall clock's time."""
    store = MemoryStore()
    before_us = time.time_ns() // 1000
    assert abs(store._clock_us() - before_us) < 5_000_000


def test_keys_that_say_nothing_any_more_are_swept() -> None:
    """Full buckets are forgotten by themselves: a store with ever new keys does not grow without end."""
    clock = FakeClock()
    store = MemoryStore(clock_us=clock)
    limiter = Limiter(store)
    for account in range(10_000):
        clock.advance(0.01)
        limiter.acquire(LIMIT, key=account)
    assert len(store) < 6_000


def test_live_keys_survive_the_sweep() -> None:
    """A sweep forgets nothing that still says something."""
    clock = FakeClock()
    store = MemoryStore(clock_us=clock)
    limiter = Limiter(store)
    for account in range(9_000):
        limiter.acquire(LIMIT, key=account)
    assert len(store) == 9_000
    assert limiter.peek(LIMIT, key=0).remaining == 4


def test_bucket_is_forgotten_a_grace_time_after_it_is_full() -> None:
    """What is kept says nothing any more once the bucket has been full for the grace time."""
    clock = FakeClock()
    limiter = Limiter(MemoryStore(clock_us=clock))
    limiter.acquire(LIMIT, key=1)
    clock.advance(5.1)
    decision = limiter.peek(LIMIT, key=1)
    assert (decision.remaining, decision.reset_after) == (5, 0.0)
