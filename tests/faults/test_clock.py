"""
The store's clock was an hour ahead, or an hour behind, for a moment: a time server that was wrong, a virtual machine
that was restored, a fail-over to a server with another clock.

The clock is the `now_us` that every script takes, in the memory store and on a real Redis.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from conformance.bench import NOW_US, SECOND_US, Bench
from throttlekit import Concurrency, FixedWindow, LeakyBucket, Limit, SlidingLog, SlidingWindow, TokenBucket
from throttlekit._core.answer import Caller, Reason
from throttlekit.stores import Lease, MemoryStore
from throttlekit.stores.redis import RedisStore

HOUR = 3600
GRACE = 5
"""What a limit may take besides its own time until it admits again."""

LIMITS: list[Limit] = [
    TokenBucket("small", "10/s"),
    TokenBucket("minute", "100/m", burst=20),
    TokenBucket("large", "100/h", burst=100),
    LeakyBucket("leaky", "5/s"),
    FixedWindow("fixed", "100/m"),
    FixedWindow("daily", "100/d"),
    SlidingWindow("sliding", "100/m"),
    SlidingLog("log", "100/m"),
]
every_limit = pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.name)
SLOTS = Concurrency("slots", 4, lease=30)


class Clock(Bench):
    """A store, and its clock in seconds from an instant."""

    def at(self, seconds: float) -> Clock:
        self.now_us = NOW_US + round(seconds * SECOND_US)
        return self

    def leases(self, holders: list[str]) -> list[Lease]:
        claims = [self.claim(SLOTS, holder=holder) for holder in holders]
        return [Lease(claim.bucket, claim.algorithm, self.now_us) for claim in claims]

    def stop_listening(self) -> None:
        """The process of the jobs that wait is gone."""
        assert self._end is not None
        self._end()

    def renew(self, holders: list[str]) -> list[bool]:
        return list(self.store.renew(self.leases(holders), now_us=self.now_us))

    def release(self, holders: list[str]) -> None:
        self.store.release(self.leases(holders), now_us=self.now_us)


@pytest.fixture(params=["memory", "redis"])
def clock(request: pytest.FixtureRequest) -> Iterator[Clock]:
    store: Any = MemoryStore()
    if request.param == "redis":
        store = RedisStore(request.getfixturevalue("redis_url"), timeout=5)
    with contextlib.closing(store):
        yield Clock(store)


def longest(limit: Limit) -> float:
    """The time in which a limit is itself again: its period, or the time in which its burst fills, and the grace."""
    period = limit.period_us / SECOND_US
    return max(period, limit.capacity * period / limit.amount) + GRACE + 1


def first_newcomer(clock: Clock, limit: Limit, since: float = 0.0) -> float:
    """For how long no new caller passes, of those that come one after the other and keep no position."""
    every = max(0.1, longest(limit) / 500)
    for number in range(1, 1000):
        if clock.at(since + number * every).decide(limit, caller=Caller.WITHOUT_JOB).allowed:
            return (number - 1) * every
    raise AssertionError("no job passed")


# An hour ahead


@every_limit
def test_a_used_up_limit_admits_again_after_its_own_time(clock: Clock, limit: Limit) -> None:
    """All of it was used while the clock was ahead: then it counts as used up just now, once."""
    clock.at(HOUR).drain(limit)
    assert first_newcomer(clock, limit) <= longest(limit)


@every_limit
def test_jobs_that_came_then_hold_no_newcomer_up(clock: Clock, limit: Limit) -> None:
    """Ten jobs came while the clock was ahead, and their process has died: a newcomer passes after the limit's time."""
    clock.at(HOUR).drain(limit)
    for number in range(10):
        assert not clock.decide(limit, job=f"gone-{number}").allowed
    clock.stop_listening()
    assert first_newcomer(clock, limit) <= longest(limit)


@every_limit
def test_jobs_that_came_then_run_too(clock: Clock, limit: Limit) -> None:
    """They pass in their order, after the limit's own time."""
    clock.at(HOUR).drain(limit)
    waiting = [f"waits-{number}" for number in range(3)]
    for id in waiting:
        assert not clock.decide(limit, job=id).allowed
    every = max(1.0, longest(limit) / 500)
    passed: list[str] = []
    for number in range(1, 1500):
        passed += clock.at(number * every).pass_woken(limit)
        if len(passed) == len(waiting):
            break
    assert passed == waiting
    assert number * every <= 2 * longest(limit)


@every_limit
def test_callers_without_a_job_got_instants_then(clock: Clock, limit: Limit) -> None:
    """The next one gets an instant within the limit's time, and not the one after theirs."""
    clock.at(HOUR).drain(limit)
    for _ in range(3):
        assert not clock.decide(limit, caller=Caller.WITHOUT_JOB).allowed
    told = clock.at(1).decide(limit, caller=Caller.WITHOUT_JOB)
    assert not told.allowed
    assert told.retry_us - clock.now_us <= longest(limit) * SECOND_US


@every_limit
def test_a_caller_that_only_looks_is_answered_as_one_that_asks(clock: Clock, limit: Limit) -> None:
    """Each peek used to take the limit for just used up, for as long as the clock had been wrong."""
    clock.at(HOUR).drain(limit)
    seen = clock.at(1).look(limit)
    assert seen.reason is Reason.EXHAUSTED
    for part in (0.5, 0.9):
        waited = clock.at(1 + part * (seen.retry_us - clock.now_us) / SECOND_US).look(limit)
        assert waited.retry_us <= seen.retry_us
    clock.now_us = seen.retry_us
    assert clock.look(limit).allowed
    assert clock.decide(limit).allowed


each_kind = pytest.mark.parametrize("emptied", [False, True], ids=["pause", "429"])


@every_limit
@each_kind
def test_a_pause_that_began_then_lasts_as_long_as_was_said(clock: Clock, limit: Limit, emptied: bool) -> None:
    """Thirty seconds from the first question on; for one who looks, one who asks, and one who ends it."""
    clock.at(HOUR).store.pause([clock.claim(limit)], 30 * SECOND_US, now_us=clock.now_us, emptied=emptied)
    for second in (1, 15, 30):
        seen = clock.at(second).look(limit)
        assert seen.reason is Reason.PAUSED
    assert clock.at(31).look(limit).reason is not Reason.PAUSED
    assert first_newcomer(clock, limit, 31) <= longest(limit)
    clock.at(2 * HOUR).store.pause([clock.claim(limit)], 30 * SECOND_US, now_us=clock.now_us, emptied=emptied)
    clock.at(HOUR).store.pause([clock.claim(limit)], None, now_us=clock.now_us)
    assert clock.look(limit).reason is not Reason.PAUSED


@pytest.mark.parametrize("alive", [0, 1, 3])
def test_free_slots_are_given_to_newcomers(clock: Clock, alive: int) -> None:
    """Four jobs got their slots while the clock was ahead, and one waits; some have ended since, some are at work."""
    holders = [f"holder-{number}" for number in range(4)]
    clock.at(HOUR)
    for holder in holders:
        assert clock.decide(SLOTS, holder=holder).allowed
    assert not clock.at(HOUR + 1).decide(SLOTS, holder="waits", job="waits").allowed
    clock.stop_listening()
    clock.at(2).release(holders[alive:])
    for second in range(3, 60):
        if second % 10 == 0:
            assert clock.at(second).renew(holders[:alive]) == [True] * alive
        if clock.at(second).decide(SLOTS, holder="newcomer", caller=Caller.WITHOUT_JOB).allowed:
            break
    assert second <= 2 + GRACE + 1
    assert clock.use(SLOTS).units == alive + 1


def test_first_that_waits_gets_the_slot_of_a_job_that_began_then(clock: Clock) -> None:
    """As it ends: those who came then still wait in their order."""
    single = Concurrency("single", 1, lease=30)
    assert clock.at(HOUR).decide(single, holder="runs").allowed
    for id in ("first", "second"):
        assert not clock.decide(single, holder=id, job=id).allowed
    claim = clock.at(2).claim(single, holder="runs")
    clock.store.release([Lease(claim.bucket, claim.algorithm, clock.now_us)], now_us=clock.now_us)
    assert clock.woken(single) == ["first"]
    assert not clock.decide(single, holder="newcomer").allowed
    assert clock.decide(single, holder="first", job="first").allowed


def test_slots_of_holders_that_died_then_are_free_after_a_lease(clock: Clock) -> None:
    """No process renews or gives back what was granted while the clock was ahead."""
    clock.at(HOUR)
    for number in range(4):
        assert clock.decide(SLOTS, holder=f"dead-{number}").allowed
    assert not clock.at(1).decide(SLOTS, holder="first").allowed
    assert clock.at(1 + 30 + GRACE).decide(SLOTS, holder="newcomer").allowed


def test_a_release_while_the_clock_was_ahead_paces_no_job_by_the_hour(clock: Clock) -> None:
    """A job that ended meanwhile seems to have held its slot for an hour: no waiter gets such a wait."""
    holders = [f"holder-{number}" for number in range(4)]
    for holder in holders:
        assert clock.at(0).decide(SLOTS, holder=holder).allowed
    clock.at(HOUR).release(holders[:1])
    clock.at(1).renew(holders[1:])
    while clock.decide(SLOTS, holder="more").allowed:
        holders.append("more")
    waits = clock.decide(SLOTS, holder="waits")
    assert waits.retry_us - clock.now_us <= 60 * SECOND_US


# An hour behind


@every_limit
def test_an_hour_behind_admits_one_more_capacity_at_most(clock: Clock, limit: Limit) -> None:
    """Behind, the limit counts as used up; right again, it is as if an hour had passed: one capacity, then its rate."""
    clock.at(0).drain(limit)
    assert not clock.at(-HOUR).decide(limit, caller=Caller.WITHOUT_JOB).allowed
    assert clock.at(1).passing(limit) <= limit.capacity
    assert clock.passing(limit) == 0
    assert first_newcomer(clock, limit, 1) <= longest(limit)


@every_limit
@each_kind
def test_a_pause_outlives_an_hour_behind(clock: Clock, limit: Limit, emptied: bool) -> None:
    """It begins anew while the clock is behind, and is over when the clock is right: never longer than was said."""
    clock.at(0).store.pause([clock.claim(limit)], 30 * SECOND_US, now_us=clock.now_us, emptied=emptied)
    seen = clock.at(-HOUR).decide(limit, caller=Caller.WITHOUT_JOB)
    assert seen.reason is Reason.PAUSED
    assert clock.at(-HOUR + 29).look(limit).reason is Reason.PAUSED
    assert clock.at(-HOUR + 30).look(limit).reason is not Reason.PAUSED
    assert first_newcomer(clock, limit) <= 30 + longest(limit)


def test_holders_take_their_slots_again_after_an_hour_behind(clock: Clock) -> None:
    """Their leases were cut to what they could be; the holders renew, and no other job is let in besides."""
    holders = [f"holder-{number}" for number in range(4)]
    for holder in holders:
        assert clock.at(0).decide(SLOTS, holder=holder).allowed
    assert not clock.at(-HOUR).decide(SLOTS, holder="newcomer").allowed
    assert clock.at(1).renew(holders) == [True] * 4
    assert not clock.decide(SLOTS, holder="newcomer").allowed
