"""Hooks that configure limits, keys, costs, and the policy of an outage. None of them overturns a denial."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import pytest

from support.servers.away import Away
from throttlekit import (
    ByLatency,
    Concurrency,
    ConfigurationError,
    Job,
    Limit,
    Limiter,
    StoreUnavailable,
    TokenBucket,
    hookimpl,
)
from throttlekit.hookspecs import Finished, RateLimitReceived, Settled, Started, StoreFailing
from throttlekit.plugins import CostFor, FailureFor, KeyFor, LimitsFor, RunLog
from throttlekit.stores import MemoryStore
from throttlekit.testing import FakeClock

API = TokenBucket("api", "10/s", burst=10)
KEYED = TokenBucket("keyed", "10/s", burst=1, key="{account}")
OTHER = TokenBucket("other", "10/s")
JOB = Job(id="1", name="call", queue="reports", kwargs={"account": "a", "tenant": "t"})


def limiter(*plugins: object) -> Limiter:
    return Limiter(MemoryStore(clock_us=FakeClock()), plugins=plugins)


# Limits


def test_limits_are_added_by_queue_and_name() -> None:
    """`LimitsFor` adds limits to the jobs of a queue or of a name; other jobs get none."""
    events = limiter(LimitsFor(queue={"reports": API}, name={"call": [KEYED]})).events
    assert events.limits(JOB) == (API, KEYED)
    assert events.limits(Job()) == ()


@pytest.mark.parametrize("returned", [API, "api", [API, None], 3, {"api": 1}])
def test_invalid_limits_are_ignored(returned: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A value that is not a list of limits is logged and ignored; the limits of other plugins are added."""

    class Wrong:
        @hookimpl
        def throttlekit_limits(self, job: Job) -> Any:
            return returned

    assert limiter(LimitsFor(queue={"reports": OTHER}), Wrong()).events.limits(JOB) == (OTHER,)
    assert "A plugin failed in throttlekit_limits" in caplog.text


def test_a_plugin_that_returns_no_limits() -> None:
    """A plugin may return None; limits of the same name are added once."""
    empty: Iterable[Limit] | None = None

    class Nothing:
        @hookimpl
        def throttlekit_limits(self) -> Iterable[Limit] | None:
            return empty

    made = limiter(Nothing(), LimitsFor(queue={"reports": API}), LimitsFor(name={"call": API}))
    assert made.events.limits(JOB) == (API,)
    with pytest.raises(ConfigurationError, match="is not a limit"):
        LimitsFor(queue={"reports": ["api"]})  # type: ignore[list-item]


# Costs and keys


def test_cost_of_a_plugin_is_charged() -> None:
    """A plugin's cost replaces the limit's; a cost in the call overrides it."""
    made = limiter(CostFor({"api": lambda job: 4, "other": 1}))
    assert made.acquire(API, job=JOB).remaining == 6
    assert made.acquire(API, job=JOB, cost=1).remaining == 5
    assert made.acquire(API).remaining == 4, "a call without a job has its limits' costs"
    assert made.peek(API, job=JOB).cost == 4


@pytest.mark.parametrize("cost", [-1, 11, 1.5, True, "2", RuntimeError("mine")])
def test_invalid_cost_is_ignored(cost: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A plugin's cost below 0, above the capacity or of another type is logged, and the limit's own cost applies."""

    def wrong(job: Job) -> Any:
        if isinstance(cost, Exception):
            raise cost
        return cost

    made = limiter(CostFor({"api": wrong}))
    assert made.acquire(API, job=JOB).remaining == 9
    assert "A plugin failed in throttlekit_cost; what it returned is not used." in caplog.text


def test_cost_of_a_plugin_is_a_number_of_slots() -> None:
    """A plugin may set how many slots a job holds. If each job, or each workflow, holds one, that is an error."""
    adaptive = Concurrency("adaptive", 4, adapt=ByLatency(floor=2))
    shared = Concurrency("shared", 4, held_by="{account}")
    made = limiter(CostFor({"slots": 3, "adaptive": 3, "shared": 3}))
    decision = made.acquire(Concurrency("slots", 4), job=JOB)
    assert (decision.cost, decision.remaining) == (3, 1)
    for limit, option in ((adaptive, "adapt="), (shared, "held_by=")):
        with pytest.raises(ConfigurationError, match=f"sets the cost 3, but with {option} a job holds one slot"):
            made.acquire(limit, job=JOB)
    made = limiter(CostFor({"adaptive": 1, "shared": 0}))
    assert [made.acquire(limit, job=JOB).cost for limit in (adaptive, shared)] == [1, 0]


def test_key_of_a_plugin_replaces_the_limits_key() -> None:
    """A plugin's key is used by all verbs; a key in the call overrides it."""
    made = limiter(KeyFor({"keyed": "{tenant}"}))
    assert made.acquire(KEYED, job=JOB).key == "t"
    assert not made.acquire(KEYED, key="t").allowed
    assert made.acquire(KEYED, key="a").allowed
    made.reset(KEYED, job=JOB)
    assert made.peek(KEYED, key="t").allowed
    made.pause(KEYED, 5, job=JOB)
    assert made.peek(KEYED, key="t").reason == "paused"


def test_invalid_key_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    """An invalid key is logged, and the limit's own key applies. A limit without a key keeps one count for all."""
    made = limiter(KeyFor({"keyed": lambda job: 1.5, "api": lambda job: "x"}))  # type: ignore[dict-item, return-value]
    assert made.acquire(KEYED, job=JOB).key == "a"
    assert "A plugin failed in throttlekit_key" in caplog.text
    assert made.acquire(API, job=JOB).key == ""


# The store is unavailable


def test_configuring_plugins_apply_to_prefetched_units_too() -> None:
    """Prefetched units are spent under the plugin's key and at its cost."""
    ahead = TokenBucket("ahead", "1000/s", burst=400, prefetch=16, key="{account}")
    made = limiter(KeyFor({"ahead": "{tenant}"}), CostFor({"ahead": 2}))
    keys = {made.acquire(ahead, job=JOB).key for _ in range(20)}
    assert keys == {"t"}
    assert made.acquire(ahead, job=JOB).cost == 2


CLOSED = TokenBucket("closed", "10/s")
LOCAL = TokenBucket("local", "10/s", burst=2, on_store_failure="local", processes=2)
OPEN = TokenBucket("open", "10/s", on_store_failure="open")


def test_failure_policy_of_a_plugin() -> None:
    """`FailureFor` sets the policy of its limits; the strictest of several limits decides; others keep their own."""
    made = Limiter(Away(), plugins=[FailureFor({"closed": "open", "local": "closed"})])
    assert made.acquire(CLOSED, job=JOB).allowed
    assert made.acquire(CLOSED, job=JOB).charged == ()
    assert not made.acquire(LOCAL, job=JOB).allowed
    assert made.acquire(OPEN, job=JOB).allowed
    assert made.acquire(CLOSED, OPEN, job=JOB).allowed
    assert not made.acquire(CLOSED, LOCAL, job=JOB).allowed
    with pytest.raises(ConfigurationError, match="a policy is"):
        FailureFor({"closed": "ajar"})  # type: ignore[dict-item]


def test_open_by_a_plugin_charges_no_share() -> None:
    """A limit with a share that a plugin opens runs uncharged; with "local" its share counts."""
    opened = Limiter(Away(), plugins=[FailureFor({"local": "open"})])
    assert [opened.acquire(LOCAL).allowed for _ in range(5)] == [True] * 5
    own = Limiter(Away(), plugins=[FailureFor({"local": "local"})])
    assert [own.acquire(LOCAL).allowed for _ in range(3)] == [True, False, False]


@pytest.mark.parametrize("policy", ["local", "ajar", 1, RuntimeError("mine")])
def test_invalid_policy_is_ignored(policy: Any, caplog: pytest.LogCaptureFixture) -> None:
    """An unknown policy, or "local" for a limit without a share: the limit's own applies, and the log says so."""

    class Wrong:
        @hookimpl
        def throttlekit_on_store_failure(self, event: StoreFailing) -> Any:
            assert (event.error, event.limits, event.job) == ("StoreUnavailable", (CLOSED,), JOB)
            if isinstance(policy, Exception):
                raise policy
            return policy

    assert not Limiter(Away(), plugins=[Wrong()]).acquire(CLOSED, job=JOB).allowed
    assert "A plugin failed in throttlekit_on_store_failure" in caplog.text


# Events


class Listener:
    def __init__(self) -> None:
        self.events: list[Any] = []

    @hookimpl
    def throttlekit_settled(self, event: Settled) -> None:
        self.events.append(event)

    @hookimpl
    def throttlekit_started(self, event: Started) -> None:
        self.events.append(event)

    @hookimpl
    def throttlekit_finished(self, event: Finished) -> None:
        self.events.append(event)

    @hookimpl
    def throttlekit_rate_limited(self, event: RateLimitReceived) -> None:
        self.events.append(event)


def test_events_of_adapters_are_emitted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """What an adapter reports is passed to every plugin, and to the log."""
    listener = Listener()
    made = limiter(listener, RunLog())
    decision = made.acquire(API, job=JOB)
    with caplog.at_level(logging.DEBUG, "throttlekit"):
        made.events.started.emit(Started(JOB, decision))
        made.events.finished.emit(Finished(JOB, decision, "succeeded", 1.5))
        made.events.rate_limited.emit(RateLimitReceived(JOB, API, 30.0))
        made.settle(decision, actual=2)
    assert listener.events == [
        Started(JOB, decision),
        Finished(JOB, decision, "succeeded", 1.5),
        RateLimitReceived(JOB, API, 30.0),
        Settled(decision, API, 1, 2),
    ]
    assert [record.getMessage() for record in caplog.records] == [
        "Job 1 (call) starts.",
        "Job 1 (call) succeeded after 1.500 s.",
        "Limit 'api': downstream said 429: paused for 30 s in the whole fleet (job 1).",
        "Limit 'api': a job took 2 units, and was charged 1.",
    ]


# Cancel


def test_cancel_returns_units_and_slots() -> None:
    """A job that will not run leaves nothing charged; cancelling a denial does nothing."""
    made, slots = limiter(), Concurrency("slots", 1)
    decision = made.acquire(API, slots, cost=1)
    denial = made.acquire(API, slots, cost=1)
    assert (decision.allowed, denial.allowed) == (True, False)
    made.cancel(denial)
    made.cancel(decision)
    assert made.acquire(slots).allowed
    assert made.peek(API).remaining == 10


def test_cancel_raises_nothing_while_the_store_is_unavailable() -> None:
    """Without the store, `cancel` raises nothing, and the units stay charged: this is stricter, never looser."""

    class Failing(MemoryStore):
        def settle(self, corrections: Any, now_us: int | None = None) -> None:
            raise StoreUnavailable("failed")

    store = Failing(clock_us=FakeClock())
    made = Limiter(store)
    made.cancel(made.acquire(API))
    assert Limiter(store).peek(API).remaining == 9


def test_cancel_returns_the_units_of_a_store_that_answers() -> None:
    """If one of several stores is unavailable, the units in the others are returned."""

    class Failing(MemoryStore):
        def settle(self, corrections: Any, now_us: int | None = None) -> None:
            raise StoreUnavailable("failed")

    other = TokenBucket("other", "10/s")
    stores = Failing(clock_us=FakeClock()), MemoryStore(clock_us=FakeClock())
    made = Limiter(stores[0], stores={"other": stores[1]})
    made.cancel(made.acquire(API, other))
    assert [Limiter(store).peek(limit).remaining for store, limit in zip(stores, (API, other), strict=False)] == [9, 10]
