"""
The fundamentals: the system in twelve short tests, in reading order. A new reader begins here.

A limit is a value. A limiter makes decisions with a store. A `FakeClock` sets the time of that store, so no test
sleeps.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Literal

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker

from throttlekit import (
    Concurrency,
    FixedWindow,
    Job,
    Limiter,
    RateLimited,
    StoreUnavailable,
    TokenBucket,
)
from throttlekit._core.answer import Answer
from throttlekit.stores import MemoryStore, Request
from throttlekit.stores.redis import RedisStore
from throttlekit.testing import FakeClock
from throttlekit_dramatiq import Throttle

PARTNER = TokenBucket("partner", "10/s", burst=2)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def limiter(clock: FakeClock) -> Limiter:
    return Limiter(MemoryStore(clock_us=clock))


def test_a_bucket_admits_its_burst_and_then_one_unit_per_interval(limiter: Limiter, clock: FakeClock) -> None:
    """At 10/s with a burst of 2, two jobs are admitted at once, and one more every 0.1 s."""
    assert [limiter.acquire(PARTNER).allowed for _ in range(3)] == [True, True, False]
    clock.advance(0.1)
    assert [limiter.acquire(PARTNER).allowed for _ in range(2)] == [True, False]


def test_a_denial_is_a_value_that_charges_nothing(limiter: Limiter, clock: FakeClock) -> None:
    """A denied job gets a decision, not an exception. The decision has the time to wait."""
    limiter.acquire(PARTNER, cost=2)
    denied = limiter.acquire(PARTNER, job=Job(id="1"))
    assert (denied.allowed, denied.reason, denied.charged) == (False, "exhausted", ())
    assert denied.delay == pytest.approx(0.1)


def test_a_denied_job_keeps_its_position(limiter: Limiter, clock: FakeClock) -> None:
    """
    The store identifies a job by its id. A job that requests again is admitted before a job that has just arrived.
    """
    five = TokenBucket("five", "10/s", burst=5)
    limiter.acquire(five, cost=5)
    first_process = limiter.acquire(five, job=Job(id="first"))
    clock.advance(first_process.delay)
    assert limiter.acquire(five, job=Job(id="newcomer")).reason == "in line"
    assert limiter.acquire(five, job=Job(id="first")).allowed


def test_several_limits_charge_all_or_nothing(limiter: Limiter) -> None:
    """A job with two limits is admitted by both or denied by both. A denial charges neither limit."""
    account = TokenBucket("account", "1/minute", burst=1)
    assert limiter.acquire(PARTNER, account)
    denied = limiter.acquire(PARTNER, account)
    assert (denied.allowed, denied.limit) == (False, account)
    assert limiter.peek(PARTNER).remaining == 1


def test_each_key_counts_on_its_own(limiter: Limiter) -> None:
    """A limit with a key has one bucket for each value of the job's argument."""
    tenant = TokenBucket("tenant", "1/minute", burst=1, key="{tenant}")
    jobs = [Job(kwargs={"tenant": name}) for name in ("a", "b", "a")]
    assert [limiter.acquire(tenant, job=job).allowed for job in jobs] == [True, True, False]


def test_a_slot_is_free_when_it_is_released_or_its_lease_ends(limiter: Limiter, clock: FakeClock) -> None:
    """A concurrency limit with one slot admits the next job after a release, or 30 s after the holder has died."""
    database = Concurrency("database", 1, lease=30)
    held = limiter.acquire(database)
    assert not limiter.acquire(database)
    limiter.release(held)
    assert limiter.acquire(database)
    clock.advance(31)
    assert limiter.acquire(database)


def test_settle_corrects_a_cost(limiter: Limiter) -> None:
    """A job that used fewer units than it was charged returns the others."""
    tokens = FixedWindow("tokens", "1000/minute")
    decision = limiter.acquire(tokens, cost=900)
    assert not limiter.acquire(tokens, cost=500)
    limiter.settle(decision, actual=300)
    assert limiter.acquire(tokens, cost=500)


def test_a_pause_holds_every_process(redis_url: str) -> None:
    """A pause that one process sets denies the jobs of all other processes that use the same store."""
    here, other_process = Limiter(redis_url), Limiter(redis_url)
    here.pause(PARTNER, duration=30)
    denied = other_process.acquire(PARTNER)
    assert (denied.allowed, denied.reason) == (False, "paused")
    assert denied.retry_after == pytest.approx(30, abs=1)


class Away(MemoryStore):
    """A store whose server does not answer."""

    def decide(self, claims: Any, requester: Any, now_us: int | None = None, *, attempt: str = "") -> Answer:
        Request(claims, requester, attempt)
        raise StoreUnavailable("the server does not answer")


@pytest.mark.parametrize(("choice", "allowed"), [("closed", False), ("open", True)])
def test_without_its_store_a_limit_fails_closed_or_open(choice: Literal["closed", "open"], allowed: bool) -> None:
    """
    While the store is unavailable, a limit defers its jobs ("closed", the default) or runs them uncharged ("open").
    """
    limit = TokenBucket("partner", "10/s", on_store_failure=choice)
    decision = Limiter(Away()).acquire(limit)
    assert (decision.allowed, decision.reason) == (allowed, "store unavailable")


def test_memory_and_redis_make_the_same_decisions(redis_url: str, clock: FakeClock) -> None:
    """The store in memory and the scripts on a real Redis return equal decisions at equal times."""

    class AtClockTime(RedisStore):
        def decide(self, claims: Any, requester: Any, now_us: int | None = None, *, attempt: str = "") -> Answer:
            request = Request(claims, requester, attempt)
            return super().decide(request.claims, request.requester, clock(), attempt=request.attempt)

    in_memory, on_redis = MemoryStore(clock_us=clock), AtClockTime(redis_url)
    for _ in range(8):
        one, other = (Limiter(store).acquire(PARTNER, job=Job(id="1")) for store in (in_memory, on_redis))
        assert (one.allowed, one.reason, one.remaining) == (other.allowed, other.reason, other.remaining)
        assert (one.delay, one.reset_after) == (other.delay, other.reset_after)
        clock.advance(0.04)


@pytest.fixture
def broker() -> Iterator[StubBroker]:
    broker = StubBroker()
    broker.add_middleware(Throttle(Limiter()))
    worker = dramatiq.Worker(broker, worker_timeout=50, worker_threads=2)
    worker.start()
    yield broker
    worker.stop()


def test_a_dramatiq_job_is_deferred_and_then_runs(broker: StubBroker) -> None:
    """Of three messages under a limit of one at a time, two wait. All of them run, and no retry is used."""
    ran: list[int] = []

    @dramatiq.actor(broker=broker, throttle=TokenBucket("partner", "10/s", burst=1), max_retries=0)
    def call_partner(number: int) -> None:
        ran.append(number)

    for number in range(3):
        call_partner.send(number)
    broker.join("default", timeout=60_000)
    assert sorted(ran) == [0, 1, 2]


def test_a_job_that_receives_a_429_is_deferred_until_the_pause_ends(broker: StubBroker) -> None:
    """A body that raises RateLimited pauses its limit for the fleet, and runs again afterwards. No retry is used."""
    started: list[float] = []

    @dramatiq.actor(broker=broker, throttle=PARTNER, max_retries=0)
    def call_partner() -> None:
        started.append(time.monotonic())
        if len(started) == 1:
            raise RateLimited(retry_after=0.3)

    call_partner.send()
    broker.join("default", timeout=60_000)
    assert started[1] - started[0] >= 0.3
