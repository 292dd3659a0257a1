"""The hook `throttlekit_decided`: each call of `acquire` is one event, with everything that a counter needs."""

from __future__ import annotations

from itertools import accumulate
from unittest.mock import Mock

import pytest

from support.hearing import Deferrals
from support.servers.away import Away
from support.waiting import wait_until
from support.waitlists import ask, held
from throttlekit import (
    Concurrency,
    Decision,
    Delivery,
    Job,
    Limiter,
    RateLimited,
    TokenBucket,
    hookimpl,
)
from throttlekit.adapter import Run
from throttlekit.adapter.rate_limited import deny_after_429
from throttlekit.hookspecs import Decided
from throttlekit.stores import MemoryStore

LIMIT = TokenBucket("partner", "10/s", burst=1)
OTHER = TokenBucket("other", "1/s", burst=5)
SLOTS = Concurrency("slots", 2)
OWN = TokenBucket("own", "10/s", burst=1, scope="process")


class Listener:
    def __init__(self) -> None:
        self.events: list[Decided] = []

    @hookimpl
    def throttlekit_decided(self, event: Decided) -> None:
        self.events.append(event)


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def limiter(store: MemoryStore, listener: Listener) -> Limiter:
    return Limiter(store, plugins=[listener])


def test_each_acquire_is_one_event(limiter: Limiter, listener: Listener) -> None:
    """Allowed or denied, with a job or without, each call is one event with the decision that its caller got."""
    made = [limiter.acquire(LIMIT), limiter.acquire(LIMIT), limiter.acquire(LIMIT, job=Job(id="a"))]
    limiter.peek(LIMIT)
    assert [event.decision for event in listener.events] == made
    assert [event.decision.allowed for event in listener.events] == [True, False, False]
    assert [event.job.id if event.job else None for event in listener.events] == [None, None, "a"]


def test_due_may_be_longer_than_the_delay(limiter: Limiter, listener: Listener) -> None:
    """`due` is the time until the job's slot, however short the delay that its framework supports."""
    decisions: list[Decision] = [limiter.acquire(LIMIT, job=Job(), delivery=Delivery(longest=0.15)) for _ in range(4)]
    assert [decision.delay for decision in decisions] == [0.0, 0.1, 0.15, 0.15]
    assert [event.due for event in listener.events] == pytest.approx([0.0, 0.1, 0.2, 0.3], rel=0.05)


def test_event_has_all_limits_and_their_uses(limiter: Limiter, listener: Listener) -> None:
    """The uses are those after the call: for a concurrency limit, its holders."""
    for _ in range(3):
        limiter.acquire(SLOTS, OTHER, job=Job())
    assert {event.limits for event in listener.events} == {(SLOTS, OTHER)}
    assert [event.uses[0].units for event in listener.events if event.uses[0]] == [1, 2, 2]


def test_took_is_set_only_if_the_store_was_called(limiter: Limiter, listener: Listener) -> None:
    """A limit of scope "process" calls no store; neither does a call while the circuit is open."""
    limiter.acquire(OWN)
    limiter.acquire(OWN, LIMIT)
    limiter.acquire(LIMIT)
    outage = Listener()
    unavailable = Limiter(Away(), plugins=[outage])
    unavailable.acquire(LIMIT)
    unavailable.acquire(LIMIT)
    assert [event.took is not None for event in listener.events] == [False, False, True]
    assert [event.took is not None for event in outage.events] == [True, False]


def test_a_decision_without_the_store_is_an_event(listener: Listener) -> None:
    """An outage skips no event: there is a decision, but uses and waits are unknown."""
    decision = Limiter(Away(), plugins=[listener]).acquire(LIMIT, job=Job())
    assert decision.reason == "store unavailable"
    assert [(e.decision, e.uses, e.due) for e in listener.events] == [(decision, (), 0.0)]
    assert (decision.waited, decision.deferrals, decision.position) == (0.0, 0, None)


def test_a_429_is_an_event_with_a_denial(limiter: Limiter, listener: Listener) -> None:
    """A body that received a 429 is decided again during the pause: the reason of the decision is "paused"."""
    run = Run(Job(), (LIMIT,), None, Delivery())
    deny_after_429(limiter, run, RateLimited(retry_after=30), release=lambda: None)
    assert [(event.decision.reason, event.due) for event in listener.events] == [("paused", pytest.approx(30, abs=0.2))]


def test_no_event_is_created_without_a_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a plugin that has the hook, no event is created."""
    monkeypatch.setattr("throttlekit._engine.events.Decided", Mock(side_effect=AssertionError("an event was created")))
    assert Limiter().acquire(LIMIT).allowed


def test_an_event_has_the_deferrals_and_the_wait_of_a_job_on_a_waitlist() -> None:
    """Each denial counts as one deferral, also across an outage; the time waited is the true one."""
    store, decided, deferred = Away(), Listener(), Deferrals()
    store.is_away = False
    limiter = Limiter(store, plugins=[decided, deferred])
    waker = held(limiter)
    ask(limiter, waker, LIMIT, job=Job(id="first"))
    second = Job(id="second")
    ask(limiter, waker, LIMIT, job=second)
    store.is_away = True
    ask(limiter, waker, LIMIT, job=second)
    store.is_away = False
    wait_until(lambda: ask(limiter, waker, LIMIT, job=second).allowed, description="a unit becomes free")
    mine = decided.events[1:]
    reasons = [event.decision.reason for event in mine]
    assert (reasons[:2], reasons[-1]) == (["exhausted", "store unavailable"], "allowed")
    denials = list(accumulate(reason not in ("store unavailable", "allowed") for reason in reasons))
    assert [event.decision.deferrals for event in mine] == denials, "nothing was denied while the store was unavailable"
    assert [event.decision for event in deferred.events] == [event.decision for event in mine[:-1]]
    assert mine[0].decision.waited < 0.05 < mine[-1].decision.waited
    assert {event.decision.waited_for for event in mine if event.decision.reason != "store unavailable"} == {"partner"}
    assert [(event.due > 0.0, event.due == event.decision.delay) for event in mine[:1]] == [(True, True)]
    waker.close()
    limiter.close()
