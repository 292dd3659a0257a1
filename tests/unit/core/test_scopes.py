"""Scopes: what is counted separately, and the share of one process, which is decided before the shared store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from support.servers.away import Away
from support.servers.stores import Recording
from throttlekit import (
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
from throttlekit.stores import MemoryStore, Store
from throttlekit.testing import FakeClock

ALGORITHMS: tuple[Any, ...] = (TokenBucket, LeakyBucket, FixedWindow, SlidingWindow, SlidingLog)
SHARE = TokenBucket("share", "1/s", burst=2, scope="process")
FLEET = TokenBucket("fleet", "1/s", burst=3)


class Shared(Recording):
    """A shared store in memory that also records what is reset."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(MemoryStore(clock_us=clock))
        self.reset_names: list[str] = []

    def reset(self, names: Sequence[str]) -> None:
        self.reset_names += names
        super().reset(names)


class Clocked(Limiter):
    """A limiter whose in-process memory uses the clock of the test."""

    def __init__(self, store: Store, clock: FakeClock) -> None:
        super().__init__(store)
        self._wiring.stores.in_process = MemoryStore(clock_us=clock)


@pytest.fixture
def store(clock: FakeClock) -> Shared:
    return Shared(clock)


@pytest.fixture
def limiter(store: Shared, clock: FakeClock) -> Limiter:
    return Clocked(store, clock)


def job(id: str = "1", /, *, queue: str = "mail", name: str = "send", **kwargs: Any) -> Job:
    return Job(id=id, name=name, queue=queue, kwargs=kwargs)


# Scopes "queue" and "job"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    ("scope", "other", "keys"),
    [("queue", {"queue": "fax"}, ("mail", "fax")), ("job", {"name": "print"}, ("send", "print"))],
)
def test_each_queue_or_job_is_counted_apart(
    limiter: Limiter, algorithm: Any, scope: str, other: dict[str, str], keys: tuple[str, str]
) -> None:
    """Each queue, or job, of the scope has a budget of its own, and the decision names it."""
    limit = algorithm("api", "1/day", scope=scope)
    granted = limiter.acquire(limit, job=job())
    assert granted
    assert not limiter.acquire(limit, job=job())
    apart = limiter.acquire(limit, job=job(**other))
    assert apart
    assert (granted.key, apart.key) == keys


@pytest.mark.parametrize(("scope", "other"), [("queue", {"name": "print"}), ("job", {"queue": "fax"})])
def test_jobs_of_one_scope_are_counted_together(limiter: Limiter, scope: Any, other: dict[str, Any]) -> None:
    """Jobs of one queue share a budget whatever their names, and jobs of one name whatever their queues."""
    limit = FixedWindow("api", "1/day", scope=scope)
    limiter.acquire(limit, job=job())
    assert not limiter.acquire(limit, job=job(**other))


@pytest.mark.parametrize("scope", ["queue", "job"])
def test_each_pair_of_scope_and_key_is_counted_separately(limiter: Limiter, scope: Any) -> None:
    """With a key as well, each pair has a budget; queue "a" with key "b:c" is not queue "a:b" with key "c"."""
    limit = FixedWindow("api", "1/day", scope=scope, key="{account}")
    decisions = [
        limiter.acquire(limit, job=job(queue=part, name=part, account=account))
        for part in ("a", "a:b", "", "b")
        for account in ("c", "b:c", "", "a")
    ]
    assert all(decisions)
    assert decisions[0].key == "a:c"
    assert not limiter.acquire(limit, job=job(queue="a", name="a", account="c"))


@pytest.mark.parametrize("scope", ["queue", "job"])
@pytest.mark.parametrize("verb", ["acquire", "peek", "reset"])
def test_scope_without_a_job_is_refused(limiter: Limiter, store: Shared, scope: Any, verb: str) -> None:
    """Only a job determines the queue or the name: without one, the message says what to pass."""
    with pytest.raises(ConfigurationError) as caught:
        getattr(limiter, verb)(TokenBucket("api", "1/s", scope=scope))
    assert str(caught.value) == f"limit 'api' counts each {scope} apart: pass job="
    assert (store.asked, store.reset_names) == ([], [])


def test_reset_applies_to_the_jobs_queue(limiter: Limiter) -> None:
    """A reset forgets what was counted for the queue of the given job, and for no other."""
    limit = FixedWindow("api", "1/day", scope="queue")
    for queue in ("mail", "fax"):
        limiter.acquire(limit, job=job(queue=queue))
    limiter.reset(limit, job=job(queue="fax"))
    assert limiter.acquire(limit, job=job(queue="fax"))
    assert not limiter.acquire(limit, job=job(queue="mail"))


# Scope "process"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_process_limit_makes_no_request(limiter: Limiter, store: Shared, algorithm: Any) -> None:
    """A limit of scope "process" is decided in memory, with and without a job: no round trip."""
    limit = algorithm("share", "1/day", scope="process")
    decisions = [limiter.acquire(limit, job=job()), limiter.acquire(limit, job=job()), limiter.acquire(limit)]
    assert [decision.allowed for decision in decisions] == [True, False, False]
    assert not limiter.peek(limit)
    limiter.reset(limit)
    assert limiter.peek(limit)
    assert (store.asked, store.reset_names) == ([], [])


def test_each_process_has_its_own_share(store: Shared, clock: FakeClock) -> None:
    """What one process has used does not change another's share; a shared limit applies to both."""
    one, other = Clocked(store, clock), Clocked(store, clock)
    granted = [bool(limiter.acquire(SHARE, FLEET)) for limiter in (one, one, one, other, other)]
    assert granted == [True, True, False, True, False]
    assert one.peek(SHARE).reason == "exhausted"
    assert other.peek(SHARE).remaining == 1
    assert other.peek(FLEET).reason == "exhausted"


@pytest.mark.parametrize("order", [(SHARE, FLEET), (FLEET, SHARE)])
def test_process_over_its_share_makes_no_request(limiter: Limiter, store: Shared, order: tuple[Limit, ...]) -> None:
    """The process's own share is decided first, in any order: its denial costs no round trip and no charge."""
    limiter.acquire(SHARE, cost=2)
    denied = limiter.acquire(*order, job=job())
    assert (denied.allowed, denied.limit, denied.reason, denied.delay) == (False, SHARE, "exhausted", 1.0)
    assert store.asked == []
    assert limiter.peek(FLEET).remaining == 3


def test_grant_of_both_is_one_round_trip(limiter: Limiter, store: Shared) -> None:
    """However many limits there are, the shared store gets one request, for its own limits only."""
    other = SlidingLog("other", "9/s")
    decision = limiter.acquire(FLEET, SHARE, other, TokenBucket("mine", "9/s", scope="process"))
    assert decision
    assert [len(request.claims) for request, _ in store.asked] == [2]
    assert (decision.limit, decision.remaining) == (SHARE, 1)
    assert [each.limit.name for each in decision.charged] == ["fleet", "share", "other", "mine"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("caller", [None, job()])
def test_share_is_returned_when_the_fleet_denies(limiter: Limiter, algorithm: Any, caller: Job | None) -> None:
    """A denial by the shared store charges nothing: the units of the process's share are returned."""
    share = algorithm("own", "3/day", scope="process", **({"burst": 3} if algorithm is TokenBucket else {}))
    limiter.acquire(FLEET, cost=3)
    before = limiter.peek(share, cost=0).remaining
    for _ in range(5):
        denied = limiter.acquire(share, FLEET, job=caller)
        assert (denied.allowed, denied.limit) == (False, FLEET)
    assert limiter.peek(share, cost=0).remaining == before


def test_share_is_returned_when_the_store_is_unavailable(clock: FakeClock) -> None:
    """While the shared store is unavailable, jobs are deferred uncharged: the units of their share are returned."""
    limiter = Clocked(Away(), clock)
    for _ in range(5):
        decision = limiter.acquire(SHARE, FLEET, job=job())
        assert (decision.allowed, decision.reason) == (False, "store unavailable")
        assert decision.charged == ()
    assert limiter.peek(SHARE).remaining == 2


@pytest.mark.parametrize("caller", [None, job()])
def test_outage_names_the_first_limit_that_needs_the_store(clock: FakeClock, caller: Job | None) -> None:
    """
    In an outage the decision names the first limit of the shared store, because limits of the process did not fail.
    """
    limiter = Clocked(Away(), clock)
    other = SlidingLog("other", "9/s", key="{account}")
    for limits, first in (
        ((SHARE, FLEET, other), FLEET),
        ((SHARE, other, FLEET), other),
        ((FLEET, SHARE), FLEET),
    ):
        decision = limiter.acquire(*limits, job=caller, key=7 if other in limits else None, cost=2)
        assert (decision.reason, decision.limit, decision.cost) == ("store unavailable", first, 2)
        assert decision.key == ("7" if first is other else "")


def test_waiting_for_the_share_gives_no_position_in_the_fleets_waitlist(limiter: Limiter, clock: FakeClock) -> None:
    """A job that waited for its process's share is behind the jobs that wait for the fleet's limit."""
    limiter.acquire(SHARE, cost=2)
    waits = limiter.acquire(SHARE, FLEET, job=job())
    assert (waits.limit, waits.delay) == (SHARE, 1.0)
    limiter.acquire(FLEET, cost=3)
    fleets = [limiter.acquire(FLEET, job=job(id)) for id in "abc"]
    assert [decision.delay for decision in fleets] == [1.0, 2.0, 3.0]
    clock.advance(1)
    waits = limiter.acquire(SHARE, FLEET, job=job())
    assert (waits.limit, waits.reason, waits.retry_after) == (FLEET, "in line", 3.0)
    assert limiter.acquire(FLEET, job=job("a"))


def test_early_job_keeps_its_position_in_the_fleets_waitlist(limiter: Limiter, clock: FakeClock) -> None:
    """A job that requests again too early keeps its position in the shared waitlist, and its share is not charged."""
    limiter.acquire(FLEET, cost=3)
    waits = limiter.acquire(SHARE, FLEET, job=job())
    assert (waits.limit, waits.delay) == (FLEET, 1.0)
    limiter.acquire(FLEET, job=job("other"))
    clock.advance(0.4)
    early = limiter.acquire(SHARE, FLEET, job=job())
    assert (early.reason, early.limit, early.delay) == ("exhausted", FLEET, 0.6)
    assert limiter.peek(SHARE).remaining == 2
    clock.advance(0.6)
    assert not limiter.acquire(FLEET, job=job("other"))
    assert limiter.acquire(SHARE, FLEET, job=job())
    assert limiter.peek(SHARE).remaining == 1


def test_early_job_keeps_its_position_in_its_process(limiter: Limiter, store: Shared, clock: FakeClock) -> None:
    """A job that requests again too early gets the remaining delay, without a request to the store."""
    limiter.acquire(SHARE, cost=2)
    limiter.acquire(SHARE, FLEET, job=job())
    limiter.acquire(SHARE, job=job("other"))
    clock.advance(0.4)
    early = limiter.acquire(FLEET, SHARE, job=job())
    assert (early.reason, early.limit, early.delay) == ("exhausted", SHARE, 0.6)
    assert store.asked == []


def test_job_that_the_fleet_denies_is_not_charged_by_its_share(limiter: Limiter, clock: FakeClock) -> None:
    """A job that gets a unit of its share, and is denied by the fleet, waits on the fleet's waitlist."""
    limiter.acquire(SHARE, cost=2)
    limiter.acquire(SHARE, FLEET, job=job())
    clock.advance(1)
    limiter.acquire(FLEET, cost=3)
    first = limiter.acquire(FLEET, job=job("other"))
    second = limiter.acquire(SHARE, FLEET, job=job())
    assert (second.limit, second.reason, first.delay, second.delay) == (FLEET, "exhausted", 1.0, 2.0)
    assert limiter.peek(SHARE).remaining == 1


@pytest.mark.parametrize("order", [(SHARE, FLEET), (FLEET, SHARE)])
def test_peek_at_both_reports_the_later_limit_and_changes_nothing(
    limiter: Limiter, store: Shared, order: tuple[Limit, ...]
) -> None:
    """A peek reads both limits, and reports the one that admits last."""
    assert limiter.peek(*order).allowed
    limiter.acquire(SHARE, cost=2)
    limiter.acquire(FLEET, cost=3)
    limiter.acquire(FLEET, job=job())
    for _ in range(3):
        peeked = limiter.peek(*order)
        assert (peeked.limit, peeked.retry_after) == (FLEET, 2.0)
    limiter.reset(FLEET)
    assert limiter.peek(*order).limit is SHARE


def test_full_queue_of_a_process_refuses_without_a_request(limiter: Limiter, store: Shared) -> None:
    """A leaky bucket of the process refuses by itself, and the fleet's limit is not charged."""
    even = LeakyBucket("even", "1/s", queue=0, scope="process")
    limiter.acquire(even)
    refused = limiter.acquire(even, FLEET, job=job())
    assert (refused.reason, refused.final, refused.delay) == ("queue full", True, 0.0)
    assert store.asked == []
