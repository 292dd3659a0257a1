"""Costs that are known only afterwards: returned or charged, below zero if necessary, never above full."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.servers.blocking import either
from support.servers.stores import Passing
from throttlekit import (
    ConfigurationError,
    Decision,
    FixedWindow,
    Job,
    Limit,
    Limiter,
    SlidingLog,
    SlidingWindow,
    StoreUnavailable,
    TokenBucket,
)
from throttlekit._wiring import wiring_of
from throttlekit.stores import Correction, MemoryStore
from throttlekit.testing import FakeClock

DAY = 86_400.0


def _size(job: Job) -> int:
    return int(job.kwargs["size"])


TOKENS = TokenBucket("tokens", "10/s", burst=100, cost=_size)
PARTNER = TokenBucket("partner", "10/s", burst=5)
ALGORITHMS: list[Limit] = [
    TokenBucket("bucket", "10/minute", burst=10),
    FixedWindow("fixed", "10/minute"),
    SlidingWindow("sliding", "10/minute"),
    SlidingLog("log", "10/minute"),
]
every_algorithm = pytest.mark.parametrize("limit", ALGORITHMS, ids=lambda limit: limit.name)


class Recorder(Passing):
    """A memory store that records its corrections."""

    def __init__(self, clock: FakeClock) -> None:
        self.inner = MemoryStore(clock_us=clock)
        self.settled: list[list[Correction]] = []

    def settle(self, corrections: Sequence[Correction], now_us: int | None = None) -> None:
        self.settled.append(list(corrections))
        self.inner.settle(corrections, now_us)


@pytest.fixture
def store(clock: FakeClock) -> Recorder:
    return Recorder(clock)


@pytest.fixture(params=["sync", "async"])
def limiter(request: pytest.FixtureRequest, store: Recorder) -> Iterator[Limiter]:
    with either(request.param, store) as limiter:
        yield limiter


def job(**kwargs: Any) -> Job:
    return Job(id="1", name="complete", kwargs=kwargs)


def left(limiter: Limiter, limit: Limit) -> int:
    return limiter.peek(limit, cost=0).remaining


# Which limit is settled


def test_limits_with_a_callable_cost_are_settled(limiter: Limiter) -> None:
    """Of several limits, those with a callable cost are settled, because a fixed cost was right."""
    other = TokenBucket("other", "1/s", burst=50, cost=_size)
    decision = limiter.acquire(PARTNER, TOKENS, other, job=job(size=20))
    settled = limiter.settle(decision, actual=5)
    assert (left(limiter, PARTNER), left(limiter, TOKENS), left(limiter, other)) == (4, 95, 45)
    assert [each.cost for each in settled.charged] == [1, 5, 5]


def test_limit_may_be_named(limiter: Limiter) -> None:
    """Of several limits, only the one that is named is settled."""
    decision = limiter.acquire(PARTNER, TOKENS, job=job(size=20))
    limiter.settle(decision, actual=3, limit=PARTNER)
    assert (left(limiter, PARTNER), left(limiter, TOKENS)) == (2, 80)


def test_limit_with_tiers_is_named_as_it_was_declared(limiter: Limiter) -> None:
    """A limit with tiers is named by itself, or by the tier of the decision."""
    api = TokenBucket("api", {"free": "1/s", "pro": "1/s"}, burst=9, tier="{plan}")
    decision = limiter.acquire(api, PARTNER, job=job(plan="pro"))
    decision = limiter.settle(decision, actual=4, limit=api)
    assert api.tiers is not None
    assert left(limiter, api.tiers["pro"]) == 5
    limiter.settle(decision, actual=2, limit=api.tiers["pro"])
    assert (left(limiter, api.tiers["pro"]), left(limiter, api.tiers["free"])) == (7, 9)


def test_settling_reaches_the_key_that_was_charged(limiter: Limiter) -> None:
    """The correction applies to the key, and the queue, that the job was counted under."""
    limit = TokenBucket("account", "1/s", burst=9, key="{account}", scope="queue")
    mine, other = (Job(queue="mail", kwargs={"account": account}) for account in (1, 2))
    decision = limiter.acquire(limit, job=mine, cost=6)
    limiter.acquire(limit, job=other, cost=6)
    limiter.settle(decision, actual=1)
    assert [limiter.peek(limit, job=each, cost=0).remaining for each in (mine, other)] == [8, 3]


@pytest.mark.parametrize(
    ("actual", "shown"), [(-1, "-1"), (1.5, "1.5"), (True, "True"), (None, "NoneType"), ("s3cret", "str")]
)
def test_actual_cost_must_be_a_whole_number(limiter: Limiter, store: Recorder, actual: Any, shown: str) -> None:
    """The actual cost must be a whole number of units; otherwise nothing is corrected."""
    with pytest.raises(ConfigurationError) as caught:
        limiter.settle(limiter.acquire(PARTNER), actual=actual)
    assert str(caught.value) == f"limit 'partner': a cost must be a whole number of at least 0, not {shown}"
    assert store.settled == []


@pytest.mark.parametrize(("taken", "verb"), [(5, "acquire"), (4, "peek")], ids=["denied", "peeked"])
def test_denial_or_peek_cannot_be_settled(limiter: Limiter, store: Recorder, taken: int, verb: str) -> None:
    """A denial or a peek has charged nothing: settling it would return units that somebody else took."""
    limiter.acquire(PARTNER, cost=taken)
    with pytest.raises(ConfigurationError, match="a decision that was denied, or peeked, has charged nothing"):
        limiter.settle(getattr(limiter, verb)(PARTNER), actual=0)
    assert left(limiter, PARTNER) == 5 - taken
    assert store.settled == []


def test_limit_that_was_not_charged_is_an_error(limiter: Limiter) -> None:
    """The error names the limit, and those that the decision charged."""
    decision = limiter.acquire(PARTNER, TOKENS, job=job(size=1))
    with pytest.raises(ConfigurationError) as caught:
        limiter.settle(decision, actual=1, limit=TokenBucket("other", "1/s"))
    assert str(caught.value) == ("limit 'other' is not one that the decision charged; it charged 'partner', 'tokens'")


def test_a_name_in_place_of_a_limit_is_an_error(limiter: Limiter) -> None:
    """The error says what is expected, also for a decision with only one limit."""
    limit: Any = "partner"
    with pytest.raises(ConfigurationError, match="limit= must be a limit that the decision charged, not str"):
        limiter.settle(limiter.acquire(PARTNER), actual=1, limit=limit)


def test_ambiguous_limit_is_an_error(limiter: Limiter) -> None:
    """Of several limits with fixed costs, the one to settle must be named."""
    decision = limiter.acquire(PARTNER, TokenBucket("other", "1/s"))
    with pytest.raises(ConfigurationError) as caught:
        limiter.settle(decision, actual=1)
    assert str(caught.value) == (
        "none of the decision's limits has a callable as its cost: name the one that is meant, as limit=; "
        "it charged 'partner', 'other'"
    )


# The result


@every_algorithm
@pytest.mark.parametrize(("cost", "actual"), [(4, 1), (4, 4), (4, 0), (4, 9), (0, 3), (1, 10)])
def test_settling_at_once_equals_charging_the_actual_cost(
    limiter: Limiter, clock: FakeClock, limit: Limit, cost: int, actual: int
) -> None:
    """For every algorithm, a decision that is settled at once leaves what the actual cost would have left."""
    limiter.settle(limiter.acquire(limit, cost=cost), actual=actual)
    other = Limiter(MemoryStore(clock_us=clock))
    other.acquire(limit, cost=actual)
    for units in range(limit.capacity + 1):
        mine, wanted = limiter.peek(limit, cost=units), other.peek(limit, cost=units)
        for figure in ("allowed", "remaining", "retry_after"):
            assert getattr(mine, figure) == getattr(wanted, figure)


@every_algorithm
def test_settled_cost_may_go_below_zero(limiter: Limiter, clock: FakeClock, limit: Limit) -> None:
    """A cost above what is left drives the limit below zero: no request is granted until the debt is made up for."""
    decision = limiter.settle(limiter.acquire(limit), actual=limit.capacity + 5)
    assert decision.allowed
    denied = limiter.acquire(limit)
    assert (denied.allowed, denied.remaining) == (False, 0)
    assert denied.retry_after > 0
    clock.advance(denied.retry_after - 1e-6)
    assert not limiter.acquire(limit)
    clock.advance(1e-6)
    assert limiter.acquire(limit)


@every_algorithm
def test_never_more_is_returned_than_was_taken(limiter: Limiter, clock: FakeClock, limit: Limit) -> None:
    """After any number of hours, returning a whole cost leaves a limit that is full, and no fuller."""
    for wait in (0.0, 1.0, 59.0, 60.0, 61.0, 125.0, 3600.0, DAY):
        decision = limiter.acquire(limit, cost=limit.capacity)
        clock.advance(wait)
        limiter.settle(decision, actual=0)
        granted = 0
        while limiter.acquire(limit):
            granted += 1
            assert granted <= limit.capacity
        clock.advance(DAY)


@pytest.mark.parametrize(("limit", "wait"), [(ALGORITHMS[1], 60.0), (ALGORITHMS[2], 120.0), (ALGORITHMS[3], 60.0)])
def test_expired_units_are_not_returned(limiter: Limiter, clock: FakeClock, limit: Limit, wait: float) -> None:
    """Units that an earlier window took are not returned to the current one."""
    decision = limiter.acquire(limit, cost=10)
    clock.advance(wait)
    limiter.acquire(limit, cost=4)
    limiter.settle(decision, actual=0)
    assert left(limiter, limit) == 6


def test_deep_debt_is_paid_in_full(limiter: Limiter, clock: FakeClock) -> None:
    """A debt of hours is not mistaken for a wrong clock: it is never forgiven, however many requests there are."""
    limiter.settle(limiter.acquire(PARTNER), actual=30_005)
    for _ in range(29):
        clock.advance(100)
        denied = limiter.acquire(PARTNER)
        assert not denied
    # Each caller gets a retry time of its own.
    assert denied.retry_after == pytest.approx(100.1 + 28 * 0.1)
    assert limiter.peek(PARTNER).retry_after == pytest.approx(100.1)
    clock.advance(100)
    assert not limiter.acquire(PARTNER)
    clock.advance(0.1)
    assert limiter.acquire(PARTNER)
    assert not limiter.acquire(PARTNER)


@given(costs=st.lists(st.tuples(st.integers(0, 10), st.integers(0, 40), st.integers(0, 90)), max_size=12))
@pytest.mark.parametrize("limit", ALGORITHMS, ids=lambda limit: limit.name)
def test_settling_never_grants_more_than_is_left(limit: Limit, costs: list[tuple[int, int, int]]) -> None:
    """Whatever is settled, the remaining units are between 0 and the capacity, and are exactly what is granted."""
    clock = FakeClock()
    limiter = Limiter(MemoryStore(clock_us=clock))
    decisions: list[Decision] = []
    for cost, actual, wait in costs:
        decision = limiter.acquire(limit, cost=cost)
        decisions += [decision] if decision else []
        clock.advance(wait)
        if decisions:
            limiter.settle(decisions.pop(0), actual=actual)
        remaining = left(limiter, limit)
        assert 0 <= remaining <= limit.capacity
        assert limiter.peek(limit, cost=remaining)
        assert remaining == limit.capacity or not limiter.peek(limit, cost=remaining + 1)


# The decision that `settle` returns


def test_cost_of_the_binding_limit_stays_if_another_is_settled(limiter: Limiter) -> None:
    """The decision's cost is that of its binding limit, whichever limit was corrected."""
    decision = limiter.acquire(PARTNER, TOKENS, job=job(size=20))
    assert decision.limit is PARTNER
    settled = limiter.settle(decision, actual=5)
    assert settled.cost == 1
    assert [each.cost for each in settled.charged] == [1, 5]


@every_algorithm
def test_settling_the_returned_decision_charges_the_difference(limiter: Limiter, limit: Limit) -> None:
    """To correct again, settle the returned decision: only the difference is charged."""
    decision = limiter.acquire(limit, cost=2)
    for actual in (6, 3, 3, 8, 1):
        decision = limiter.settle(decision, actual=actual)
        assert decision.cost == actual
        assert left(limiter, limit) == limit.capacity - actual


def test_correct_cost_makes_no_request(limiter: Limiter, store: Recorder) -> None:
    """A cost that was right needs no round trip."""
    decision = limiter.acquire(PARTNER, cost=3)
    assert limiter.settle(decision, actual=3) == decision
    assert store.settled == []


def test_several_limits_are_corrected_in_one_call(limiter: Limiter, store: Recorder, clock: FakeClock) -> None:
    """All corrections go to the store in one call, with the time of the grant."""
    other = TokenBucket("other", "1/s", burst=50, cost=_size)
    granted_us = clock()
    decision = limiter.acquire(PARTNER, TOKENS, other, job=job(size=20))
    clock.advance(0.5)
    limiter.settle(decision, actual=5)
    ((first, second),) = store.settled
    assert (first.by, second.by) == (-15 * 100_000, -15 * 1_000_000)
    assert (first.granted_us, second.granted_us) == (granted_us, granted_us)
    assert [each.at_us for each in decision.charged] == [granted_us] * 3
    assert [first.bucket, second.bucket] == [each.bucket for each in decision.charged[1:]]


def test_process_limits_are_settled_in_the_process(limiter: Limiter, store: Recorder) -> None:
    """A limit of scope "process" is corrected in memory, and the shared limit in its store."""
    share = TokenBucket("share", "1/s", burst=50, scope="process", cost=_size)
    decision = limiter.acquire(share, TOKENS, job=job(size=20))
    limiter.settle(decision, actual=5)
    assert (left(limiter, share), left(limiter, TOKENS)) == (45, 95)
    assert [[each.bucket for each in corrected] for corrected in store.settled] == [[decision.charged[1].bucket]]
    limiter.settle(limiter.acquire(share, job=job(size=7)), actual=1)
    assert left(limiter, share) == 44
    assert len(store.settled) == 1


def test_unavailable_store_raises(clock: FakeClock) -> None:
    """The caller cannot know whether the cost was corrected: the error is raised, and the caller may try again."""

    class Unavailable(Recorder):
        def settle(self, corrections: Sequence[Correction], now_us: int | None = None) -> None:
            raise StoreUnavailable("the store gave no usable answer: TimeoutError")

    limiter = Limiter(Unavailable(clock))
    with pytest.raises(StoreUnavailable):
        limiter.settle(limiter.acquire(PARTNER), actual=3)


@every_algorithm
def test_key_that_was_reset_returns_nothing(limiter: Limiter, limit: Limit) -> None:
    """After a reset no units are returned; a higher cost is still charged."""
    decision = limiter.acquire(limit, cost=5)
    limiter.reset(limit)
    limiter.settle(decision, actual=1)
    assert left(limiter, limit) == limit.capacity
    limiter.settle(decision, actual=8)
    assert left(limiter, limit) == limit.capacity - 3


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_units_of_a_process_are_returned_by_its_own_clock(
    store: Recorder, clock: FakeClock, order: tuple[int, int]
) -> None:
    """However wrong the server's clock is, the job's own unit is returned to the process's log."""
    own = FakeClock(clock() - 30_000_000)
    limiter = Limiter(store)
    wiring_of(limiter).stores.in_process = MemoryStore(clock_us=own)
    share, fleet = SlidingLog("share", "3/minute", scope="process"), TokenBucket("fleet", "9/s")
    decision = limiter.acquire(*((share, fleet)[i] for i in order))
    assert [each.at_us for each in decision.charged] == [(own(), clock())[i] for i in order]
    own.advance(20)
    assert limiter.acquire(share)
    limiter.settle(decision, actual=0, limit=share)
    own.advance(41)
    assert left(limiter, share) == 2


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_each_limit_is_reported_by_the_clock_that_counts_it(
    store: Recorder, clock: FakeClock, order: tuple[int, int]
) -> None:
    """However far apart the clocks are, the figures of the binding limit use the clock of its own store."""
    own = FakeClock(clock() - 30_000_000)
    limiter = Limiter(store)
    wiring_of(limiter).stores.in_process = MemoryStore(clock_us=own)
    share, fleet = TokenBucket("share", "1/s", burst=4, scope="process"), TokenBucket("fleet", "1/s", burst=9)
    limits = [(share, fleet)[i] for i in order]
    decision = limiter.acquire(*limits, cost=2)
    assert (decision.limit, decision.remaining, decision.reset_after) == (share, 2, 2.0)
    assert [each.at_us for each in decision.charged] == [(own(), clock())[i] for i in order]
    limiter.acquire(fleet, cost=6)
    decision = limiter.acquire(*limits)
    assert (decision.limit, decision.remaining, decision.reset_after) == (fleet, 0, 9.0)
    denied = limiter.acquire(*limits)
    assert (denied.limit, denied.remaining, denied.retry_after, denied.reset_after) == (fleet, 0, 1.0, 9.0)
    assert denied.charged == ()
