"""`acquire_many`: up to n units, as many as are free, each of them charged, behind the jobs that wait."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.servers.away import Away
from support.servers.blocking import either
from support.servers.stores import Passing
from throttlekit import (
    Concurrency,
    ConfigurationError,
    FixedWindow,
    Job,
    LeakyBucket,
    Limit,
    Limiter,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
)
from throttlekit._core.answer import Answer, Caller
from throttlekit.stores import MemoryStore
from throttlekit.testing import FakeClock

BUCKET = TokenBucket("bucket", "10/s", burst=50)
KEYED = TokenBucket("keyed", "10/s", burst=50, key="{account_id}")
EVERY: list[Limit] = [
    BUCKET,
    TokenBucket("uneven", "30000/s", burst=70),
    TokenBucket("varying", lambda job: "10/s").at("40/s"),
    LeakyBucket("leaky", "10/s"),
    FixedWindow("fixed", "50/minute"),
    FixedWindow("zoned", "50/day", tz="Europe/Berlin"),
    SlidingWindow("sliding", "50/minute"),
    SlidingLog("log", "50/minute"),
]


class HookedStore(Passing):
    """A memory store that calls `after_peek` once a peek is answered."""

    def __init__(self, clock: FakeClock) -> None:
        self.inner = MemoryStore(clock_us=clock)
        self.requests: list[tuple[Caller, int]] = []
        self.after_peek: Callable[[], object] = lambda: None

    def decide(self, claims: Any, requester: Any, now_us: int | None = None, *, attempt: str = "") -> Answer:
        self.requests.append((requester.caller, claims[0].cost))
        verdict = self.inner.decide(claims, requester, now_us, attempt=attempt)
        if requester.caller is Caller.PEEK:
            self.after_peek()
        return verdict


@pytest.fixture
def store(clock: FakeClock) -> HookedStore:
    return HookedStore(clock)


@pytest.fixture(params=["sync", "async"])
def limiter(request: pytest.FixtureRequest, store: HookedStore) -> Iterator[Limiter]:
    with either(request.param, store) as limiter:
        yield limiter


def job(number: int = 1) -> Job:
    return Job(id=str(number), name="call_partner", kwargs={"account_id": 42})


def test_free_units_are_granted(limiter: Limiter, store: HookedStore, clock: FakeClock) -> None:
    """If fewer units are free than requested, these are granted, still in two round trips; then nothing is left."""
    limiter.acquire(BUCKET, cost=50)
    clock.advance(1.25)
    store.requests.clear()
    decision = limiter.acquire_many(BUCKET, 30)
    assert (decision.allowed, decision.cost, decision.remaining) == (True, 12, 0)
    assert store.requests == [(Caller.PEEK, 30), (Caller.WITHOUT_JOB, 12)]


@pytest.mark.parametrize("limit", EVERY, ids=lambda limit: limit.name)
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**64 - 1))
def test_grant_is_the_maximum_and_is_charged_to_the_unit(limit: Limit, seed: int) -> None:
    """
    If no job waits, one unit more would have been denied, exactly the granted units are missing afterwards, and it
    takes two round trips. A bucket whose charges are rounded up one by one may keep one unit.
    """
    rnd, clock = random.Random(seed), FakeClock()
    store = HookedStore(clock)
    limiter = Limiter(store)
    for _ in range(rnd.randint(1, 8)):
        clock.advance(rnd.choice([0.0, rnd.uniform(0, 0.01), rnd.uniform(0, 1), rnd.uniform(0, 60)]))
        used = limiter.acquire_many(limit, rnd.randint(1, 30))
        assert used.cost <= 30
        most = rnd.randint(1, 80)
        free = max(units for units in range(limit.capacity + 1) if limiter.peek(limit, cost=units))
        left = limiter.peek(limit).remaining
        store.requests.clear()
        decision = limiter.acquire_many(limit, most)
        assert len(store.requests) == 2 or limit.name == "uneven"
        assert decision.allowed or not free
        if decision.allowed:
            assert min(most, free) - (limit.name == "uneven") <= decision.cost <= min(most, free)
            assert left - 1 - (limit.name == "uneven") <= decision.remaining + decision.cost - 1 < left
            assert [each.cost for each in decision.charged] == [decision.cost]


def test_denial_charges_nothing_and_has_a_retry_time(limiter: Limiter, store: HookedStore, clock: FakeClock) -> None:
    """If no unit is free, the decision is a denial like that of one unit."""
    limiter.acquire(BUCKET, cost=50)
    clock.advance(0.04)
    decision = limiter.acquire_many(BUCKET, 30)
    assert (decision.allowed, decision.reason, decision.cost, decision.charged) == (False, "exhausted", 1, ())
    assert decision.retry_after == pytest.approx(0.06)
    clock.advance(decision.delay)
    assert limiter.acquire_many(BUCKET, 30).cost == 1


def test_job_gets_no_position(limiter: Limiter, store: HookedStore) -> None:
    """The job is used for the key only: it does not join a waitlist."""
    limiter.acquire(KEYED, key=42, cost=50)
    decision = limiter.acquire_many(KEYED, 10, job=job())
    assert (decision.allowed, decision.key) == (False, "42")
    assert Caller.JOB not in {caller for caller, _ in store.requests}


@pytest.mark.parametrize(("taken", "granted"), [(20, 30), (30, 20), (45, 5), (48, 2)])
def test_units_taken_by_others_in_between_reduce_the_grant(
    limiter: Limiter, store: HookedStore, taken: int, granted: int
) -> None:
    """Units that other callers took between the peek and the request are not granted twice."""
    other = Limiter(store.inner)
    store.after_peek = lambda: other.acquire(BUCKET, cost=taken)
    decision = limiter.acquire_many(BUCKET, 40)
    assert decision.allowed
    assert 1 <= decision.cost <= granted
    assert decision.remaining == 50 - taken - decision.cost
    assert len(store.requests) <= 4


def test_all_units_taken_in_between_cause_a_denial(limiter: Limiter, store: HookedStore) -> None:
    """After at most four round trips, the decision is a denial of one unit."""
    other = Limiter(store.inner)
    store.after_peek = lambda: other.acquire(BUCKET, cost=50)
    decision = limiter.acquire_many(BUCKET, 40)
    assert (decision.allowed, decision.cost, decision.charged) == (False, 1, ())
    assert len(store.requests) <= 4


def test_unused_units_can_be_returned(limiter: Limiter) -> None:
    """The decision can be settled and cancelled like any other."""
    limiter.settle(limiter.acquire_many(BUCKET, 40), 15)
    assert limiter.peek(BUCKET).remaining == 35
    limiter.cancel(limiter.acquire_many(BUCKET, 40))
    assert limiter.peek(BUCKET).remaining == 35


def test_nothing_is_granted_in_a_pause(limiter: Limiter) -> None:
    """A paused limit grants nothing, until the pause ends."""
    limiter.pause(BUCKET, 30)
    decision = limiter.acquire_many(BUCKET, 40)
    assert (decision.allowed, decision.reason) == (False, "paused")
    assert decision.retry_after == 30


def test_cost_key_and_tier(limiter: Limiter) -> None:
    """The limit's own cost does not count; key, tier and rate come from the job."""
    dear = TokenBucket("dear", {"free": "1/s", "pro": "10/s"}, tier=lambda job: "pro", key="{account_id}", cost=7)
    decision = limiter.acquire_many(dear, 8, job=job())
    assert (decision.cost, decision.key, decision.limit.of_tier) == (8, "42", "pro")
    rated = TokenBucket("rated", lambda job: "20/s")
    assert limiter.acquire_many(rated, 50, job=job()).cost == 20
    assert limiter.acquire_many(KEYED, 8, key=7).key == "7"
    assert limiter.acquire_many(TokenBucket("mine", "9/s", scope="process"), 50).cost == 9


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(("policy", "cost"), [("open", 1), ("local", 1), ("closed", 0)])
def test_outage_counts_as_a_request_for_one_unit(kind: str, policy: Any, cost: int) -> None:
    """An unavailable store is no error: the decision is for one unit, according to the limit's `on_store_failure`."""
    limit = TokenBucket("away", "10/s", on_store_failure=policy, processes=2 if policy == "local" else None)
    with either(kind, Away()) as limiter:
        decision = limiter.acquire_many(limit, 5)
    assert decision.reason == "store unavailable"
    assert decision.allowed is bool(cost)
    assert decision.cost == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"limit": Concurrency("slots", 5)}, "limit 'slots' grants slots, each to one holder: take them one by one"),
        (
            {"limit": TokenBucket("a", "1/s", scope="queue")},
            "limit 'a' counts each queue separately: acquire_many needs a limit that counts all together, or by key=",
        ),
        ({"most": 0}, "limit 'bucket': acquire_many takes up to a number of at least 1, not 0"),
        ({"most": -1}, "limit 'bucket': a cost must be a whole number of at least 0, not -1"),
        ({"most": True}, "limit 'bucket': a cost must be a whole number of at least 0, not True"),
        ({"limit": [BUCKET]}, "a limit was expected, not several in one: pass them one by one: acquire(a, b)"),
        ({"key": "a"}, "limit 'bucket' has no key: drop key=, or give the limit one"),
        ({"limit": KEYED}, "limit 'keyed'"),
    ],
    ids=["slots", "scope", "zero", "negative", "bool", "several", "key", "no-key"],
)
def test_invalid_arguments_are_refused(
    limiter: Limiter, store: HookedStore, arguments: dict[str, Any], message: str
) -> None:
    """Arguments are checked before the store gets a request."""
    with pytest.raises(ConfigurationError) as error:
        limiter.acquire_many(**{"limit": BUCKET, "most": 5, **arguments})
    assert str(error.value).startswith(message)
    assert store.requests == []
