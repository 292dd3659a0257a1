"""
The store's clock is an hour ahead or behind for a short time, after a wrong time server, a restored virtual machine, or
a fail-over to a server with another clock.

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
"""How many seconds a limit may take, in addition to its own time, until it admits again."""

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
HOLDERS = [f"holder-{number}" for number in range(4)]


class Clock(Bench):
    """A store, and its clock in seconds from `NOW_US`."""

    def at(self, seconds: float) -> Clock:
        self.now_us = NOW_US + round(seconds * SECOND_US)
        return self

    def hold_all(self) -> None:
        """Let each of `HOLDERS` take one of `SLOTS`."""
        for holder in HOLDERS:
            assert self.decide(SLOTS, holder=holder).allowed

    def leases(self, holders: list[str]) -> list[Lease]:
        return [self.lease(SLOTS, holder) for holder in holders]

    def stop_listening(self) -> None:
        """Stop listening, as if the process of the waiting jobs had died."""
        assert self._stop_listening is not None
        self._stop_listening()


@pytest.fixture(params=["memory", "redis"])
def clock(request: pytest.FixtureRequest) -> Iterator[Clock]:
    store: Any = MemoryStore()
    if request.param == "redis":
        store = RedisStore(request.getfixturevalue("redis_url"), timeout=5)
    with contextlib.closing(store):
        yield Clock(store)


def longest(limit: Limit) -> float:
    """Return the time after which a limit admits again: its period, or the time to fill its burst, and the grace."""
    period = limit.period_us / SECOND_US
    return max(period, limit.capacity * period / limit.amount) + GRACE + 1


def first_newcomer(clock: Clock, limit: Limit, since: float = 0.0) -> float:
    """Return for how long no new caller is admitted. The callers request one after the other, without a position."""
    every = max(0.1, longest(limit) / 500)
    for number in range(1, 1000):
        if clock.at(since + number * every).decide(limit, caller=Caller.WITHOUT_JOB).allowed:
            return (number - 1) * every
    raise AssertionError("no job was admitted")


# An hour ahead


@every_limit
def test_a_used_up_limit_admits_again_after_its_own_time(clock: Clock, limit: Limit) -> None:
    """A limit that was used up while the clock was ahead counts as used up now, once."""
    clock.at(HOUR).drain(limit)
    assert first_newcomer(clock, limit) <= longest(limit)


@every_limit
def test_dead_jobs_from_the_future_hold_up_no_newcomer(clock: Clock, limit: Limit) -> None:
    """Ten jobs were denied while the clock was ahead, and their process died: a newcomer is admitted in time."""
    clock.at(HOUR).drain(limit)
    for number in range(10):
        assert not clock.decide(limit, job=f"gone-{number}").allowed
    clock.stop_listening()
    assert first_newcomer(clock, limit) <= longest(limit)


@every_limit
def test_jobs_from_the_future_run_in_order(clock: Clock, limit: Limit) -> None:
    """Jobs that were denied while the clock was ahead are admitted in their order, after the limit's own time."""
    clock.at(HOUR).drain(limit)
    waiting = [f"waits-{number}" for number in range(3)]
    for id in waiting:
        assert not clock.decide(limit, job=id).allowed
    every = max(1.0, longest(limit) / 500)
    admitted: list[str] = []
    for number in range(1, 1500):
        admitted += clock.at(number * every).admit_woken(limit)
        if len(admitted) == len(waiting):
            break
    assert admitted == waiting
    assert number * every <= 2 * longest(limit)


@every_limit
def test_retry_times_from_the_future_delay_no_new_caller(clock: Clock, limit: Limit) -> None:
    """The next caller gets a retry time within the limit's time, and not one after those from the future."""
    clock.at(HOUR).drain(limit)
    for _ in range(3):
        assert not clock.decide(limit, caller=Caller.WITHOUT_JOB).allowed
    denied = clock.at(1).decide(limit, caller=Caller.WITHOUT_JOB)
    assert not denied.allowed
    assert denied.retry_us - clock.now_us <= longest(limit) * SECOND_US


@every_limit
def test_a_peek_gets_the_same_retry_time_as_a_request(clock: Clock, limit: Limit) -> None:
    """Repeated peeks do not move the retry time. They once did, for as long as the clock had been wrong."""
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
def test_a_pause_from_the_future_has_its_own_length(clock: Clock, limit: Limit, emptied: bool) -> None:
    """A pause of 30 s lasts 30 s from the first call, for peeks and requests, and can be ended."""
    clock.at(HOUR).pause(limit, 30 * SECOND_US, emptied=emptied)
    for second in (1, 15, 30):
        seen = clock.at(second).look(limit)
        assert seen.reason is Reason.PAUSED
    assert clock.at(31).look(limit).reason is not Reason.PAUSED
    assert first_newcomer(clock, limit, 31) <= longest(limit)
    clock.at(2 * HOUR).pause(limit, 30 * SECOND_US, emptied=emptied)
    clock.at(HOUR).pause(limit, None)
    assert clock.look(limit).reason is not Reason.PAUSED


@pytest.mark.parametrize("alive", [0, 1, 3])
def test_free_slots_are_given_to_newcomers(clock: Clock, alive: int) -> None:
    """Four jobs got slots while the clock was ahead, and one waits. When some end, a newcomer gets a free slot."""
    clock.at(HOUR).hold_all()
    assert not clock.at(HOUR + 1).decide(SLOTS, holder="waits", job="waits").allowed
    clock.stop_listening()
    clock.at(2).release(*clock.leases(HOLDERS[alive:]))
    for second in range(3, 60):
        if second % 10 == 0:
            assert clock.at(second).renew(*clock.leases(HOLDERS[:alive])) == [True] * alive
        if clock.at(second).decide(SLOTS, holder="newcomer", caller=Caller.WITHOUT_JOB).allowed:
            break
    assert second <= 2 + GRACE + 1
    assert clock.use(SLOTS).units == alive + 1


def test_the_first_waiting_job_gets_a_slot_from_the_future(clock: Clock) -> None:
    """When a job that began while the clock was ahead ends, the first job that waits since then gets its slot."""
    single = Concurrency("single", 1, lease=30)
    assert clock.at(HOUR).decide(single, holder="runs").allowed
    for id in ("first", "second"):
        assert not clock.decide(single, holder=id, job=id).allowed
    clock.at(2).release(clock.lease(single, "runs"))
    assert clock.woken_jobs(single) == ["first"]
    assert not clock.decide(single, holder="newcomer").allowed
    assert clock.decide(single, holder="first", job="first").allowed


def test_slots_of_dead_holders_from_the_future_are_free_after_a_lease(clock: Clock) -> None:
    """If no process renews or releases slots that were granted while the clock was ahead, their leases still end."""
    clock.at(HOUR).hold_all()
    assert not clock.at(1).decide(SLOTS, holder="first").allowed
    assert clock.at(1 + 30 + GRACE).decide(SLOTS, holder="newcomer").allowed


def test_a_release_while_the_clock_is_ahead_causes_no_long_wait(clock: Clock) -> None:
    """A job that ended while the clock was ahead seems to have held its slot for an hour: no job gets such a wait."""
    clock.at(0).hold_all()
    clock.at(HOUR).release(*clock.leases(HOLDERS[:1]))
    clock.at(1).renew(*clock.leases(HOLDERS[1:]))
    while clock.decide(SLOTS, holder="more").allowed:
        pass
    waits = clock.decide(SLOTS, holder="waits")
    assert waits.retry_us - clock.now_us <= 60 * SECOND_US


# An hour behind


@every_limit
def test_a_clock_an_hour_behind_admits_at_most_one_more_capacity(clock: Clock, limit: Limit) -> None:
    """
    While the clock is behind, the limit is used up. When the clock is right again, it is as if an hour had passed: one
    capacity is admitted, and then the rate.
    """
    clock.at(0).drain(limit)
    assert not clock.at(-HOUR).decide(limit, caller=Caller.WITHOUT_JOB).allowed
    assert clock.at(1).count_admitted(limit) <= limit.capacity
    assert clock.count_admitted(limit) == 0
    assert first_newcomer(clock, limit, 1) <= longest(limit)


@every_limit
@each_kind
def test_a_pause_continues_while_the_clock_is_behind(clock: Clock, limit: Limit, emptied: bool) -> None:
    """A pause begins again while the clock is behind, and is over when the clock is right: it is never longer."""
    clock.at(0).pause(limit, 30 * SECOND_US, emptied=emptied)
    seen = clock.at(-HOUR).decide(limit, caller=Caller.WITHOUT_JOB)
    assert seen.reason is Reason.PAUSED
    assert clock.at(-HOUR + 29).look(limit).reason is Reason.PAUSED
    assert clock.at(-HOUR + 30).look(limit).reason is not Reason.PAUSED
    assert first_newcomer(clock, limit) <= 30 + longest(limit)


def test_holders_keep_their_slots_after_the_clock_was_behind(clock: Clock) -> None:
    """The leases were shortened while the clock was behind. The holders renew them, and no other job is admitted."""
    clock.at(0).hold_all()
    assert not clock.at(-HOUR).decide(SLOTS, holder="newcomer").allowed
    assert clock.at(1).renew(*clock.leases(HOLDERS)) == [True] * 4
    assert not clock.decide(SLOTS, holder="newcomer").allowed
