"""The hook `throttlekit_decided`: each call of `acquire` is told once, with what those who count need."""

from __future__ import annotations

from itertools import accumulate

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
from throttlekit.adapter.rate_limited import limited
from throttlekit.hookspecs import Decided
from throttlekit.stores import MemoryStore, Store
from throttlekit.testing import FakeClock

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


def _limiter(store: Store | None = None) -> tuple[Limiter, Listener, FakeClock]:
    listener, clock = Listener(), FakeClock()
    return Limiter(store or MemoryStore(clock_us=clock), plugins=[listener]), listener, clock


def test_each_acquire_is_told_once() -> None:
    """Allowed or denied, with a job or without, each call is one event, which holds what its caller got."""
    limiter, listener, _ = _limiter()
    made = [limiter.acquire(LIMIT), limiter.acquire(LIMIT), limiter.acquire(LIMIT, job=Job(id="a"))]
    limiter.peek(LIMIT)
    assert [event.decision for event in listener.events] == made
    assert [event.decision.allowed for event in listener.events] == [True, False, False]
    assert [event.job.id if event.job else None for event in listener.events] == [None, None, "a"]


def test_the_slot_is_told_beyond_what_one_delay_carries() -> None:
    """`due` is how far off the job's slot is, however short the delay that its framework carries."""
    limiter, listener, _ = _limiter()
    decisions: list[Decision] = [limiter.acquire(LIMIT, job=Job(), delivery=Delivery(longest=0.15)) for _ in range(4)]
    assert [decision.delay for decision in decisions] == [0.0, 0.1, 0.15, 0.15]
    assert [event.due for event in listener.events] == pytest.approx([0.0, 0.1, 0.2, 0.3], rel=0.05)


def test_all_limits_are_told_with_what_is_used_of_them() -> None:
    """The limits of a call come with their use after it: of a concurrency limit, its holders."""
    limiter, listener, _ = _limiter()
    limiter.acquire(SLOTS, OTHER, job=Job())
    limiter.acquire(SLOTS, OTHER, job=Job())
    limiter.acquire(SLOTS, OTHER, job=Job())
    assert {event.limits for event in listener.events} == {(SLOTS, OTHER)}
    assert [event.uses[0].units for event in listener.events if event.uses[0]] == [1, 2, 2]


def test_the_time_of_the_store_is_told_only_if_it_was_asked() -> None:
    """A limit that this process keeps alone asks no store, whatever it answers; neither does an open outage."""
    limiter, listener, _ = _limiter()
    limiter.acquire(OWN)
    limiter.acquire(OWN, LIMIT)
    limiter.acquire(LIMIT)
    silent, heard, _ = _limiter(Away())
    silent.acquire(LIMIT)
    silent.acquire(LIMIT)
    assert [event.took is not None for event in listener.events] == [False, False, True]
    assert [event.took is not None for event in heard.events] == [True, False]


def test_a_decision_without_the_store_is_told() -> None:
    """An outage leaves no call untold: there is a decision, and nothing is known of uses and waits."""
    limiter, listener, _ = _limiter(Away())
    decision = limiter.acquire(LIMIT, job=Job())
    assert decision.reason == "store unavailable"
    assert [(e.decision, e.uses, e.due) for e in listener.events] == [(decision, (), 0.0)]
    assert (decision.waited, decision.deferrals, decision.position) == (0.0, 0, None)


def test_a_429_is_told_as_the_denial_that_it_is() -> None:
    """A body that heard "429" is asked for once more behind the pause: a decision with the reason "paused"."""
    limiter, listener, _ = _limiter()
    limited(limiter, RateLimited(retry_after=30), [LIMIT], job=Job(), delivery=Delivery(), release=lambda: None)
    assert [(event.decision.reason, event.due) for event in listener.events] == [("paused", pytest.approx(30, abs=0.2))]


def test_nobody_listens_nothing_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a plugin that has the hook, no event is made."""

    def made(*_: object) -> Decided:
        raise AssertionError("an event was made for nobody")

    monkeypatch.setattr("throttlekit._engine.events.Decided", made)
    assert Limiter().acquire(LIMIT).allowed


def test_a_job_on_a_waitlist_is_told_with_its_deferrals_and_what_it_waited() -> None:
    """Each denial is one deferral more, and none is forgotten while the store is away; what it waited is true."""
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
    wait_until(lambda: ask(limiter, waker, LIMIT, job=second).allowed, description="a unit comes")
    mine = decided.events[1:]
    reasons = [event.decision.reason for event in mine]
    assert (reasons[:2], reasons[-1]) == (["exhausted", "store unavailable"], "allowed")
    denials = list(accumulate(reason not in ("store unavailable", "allowed") for reason in reasons))
    assert [event.decision.deferrals for event in mine] == denials, "nothing was denied while the store was away"
    assert [event.decision for event in deferred.events] == [event.decision for event in mine[:-1]]
    assert mine[0].decision.waited < 0.05 < mine[-1].decision.waited
    assert {event.waited_for for event in mine if event.decision.reason != "store unavailable"} == {"partner"}
    assert [(event.due > 0.0, event.due == event.decision.delay) for event in mine[:1]] == [(True, True)]
    waker.close()
    limiter.close()
