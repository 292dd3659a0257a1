"""Token leases of a limiter: what asks the store and what does not, and what becomes of units in hand."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from support.servers.stores import Recording
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
    StoreUnavailable,
    TokenBucket,
)
from throttlekit._core.answer import Answer
from throttlekit._core.limit.base import altered
from throttlekit._engine import prefetch as prefetching
from throttlekit._wiring import wiring_of
from throttlekit.fleet.activity import Counts
from throttlekit.stores import MemoryStore, Request
from throttlekit.testing import FakeClock

API = TokenBucket("api", "1000/s", burst=1000, prefetch=16)
PLAIN = TokenBucket("plain", "1000/s", burst=1000)
TENANTS = TokenBucket("tenants", "1000/s", burst=1000, prefetch=16, key="{account}")
TIGHT = TokenBucket("tight", "1/s", burst=1)


class Fleet(Recording):
    """A store whose clock stands still, that tells what was charged, and can be down."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(MemoryStore(clock_us=clock))
        self.down = False

    def _decide(self, request: Request, now_us: int | None) -> Answer:
        if self.down:
            raise StoreUnavailable("the store gave no usable answer: TimeoutError")
        return super()._decide(request, now_us)

    def left(self, limit: Limit = API, **which: Any) -> int:
        """What another process sees."""
        return Limiter(self.inner).peek(limit, **which).remaining


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> Fleet:
    return Fleet(clock)


@pytest.fixture
def limiter(store: Fleet, clock: FakeClock) -> Limiter:
    limiter = Limiter(store)
    wiring_of(limiter).prefetcher._clock_us = clock
    return limiter


def job(account: object = "a") -> Job:
    return Job(id="1", name="call", queue="q", kwargs={"account": account})


def held(limiter: Limiter) -> Any:
    """The units in hand."""
    return wiring_of(limiter).prefetcher._held


def fill(limiter: Limiter, limit: Limit = API, *, until: int = 16, **which: Any) -> int:
    """Ask until as many were taken ahead as ever are; tells how many are in hand."""
    for _ in range(200):
        limiter.acquire(limit, **which)
        (*_, entry) = held(limiter).entries.values()
        if entry.quota.left == until - 1:
            return until - 1
    raise AssertionError("no lease was taken")


def spendable(limiter: Limiter, *limits: Limit, **which: Any) -> int:
    """How many pass without a question, at the most 100."""
    store: Any = wiring_of(limiter).stores.shared._store
    asked = len(store.asked)
    for number in range(100):
        decision = limiter.acquire(*limits, **which)
        if len(store.asked) > asked:
            return number
        assert decision.allowed
    return 100


# What is asked


@pytest.mark.parametrize(
    ("limit", "which"),
    [
        (API, {}),
        (API, {"job": job()}),
        (TENANTS, {"key": "a"}),
        (TENANTS, {"job": job()}),
        (TENANTS, {"key": 7}),
    ],
)
def test_one_question_for_so_many_units(limiter: Limiter, limit: Limit, which: dict[str, Any]) -> None:
    """A process that is busy asks once for `prefetch` jobs; the others pass with no question."""
    assert fill(limiter, limit, **which) == 15
    assert spendable(limiter, limit, **which) == 15
    assert spendable(limiter, limit, **which) == 15


def test_every_unit_is_charged_before_it_is_spent(limiter: Limiter, store: Fleet) -> None:
    """What others see left is what is left, less what this process has in hand: never more."""
    passed = 0
    for _ in range(200):
        passed += limiter.acquire(API).allowed
        (entry,) = held(limiter).entries.values()
        assert store.left() == 1000 - passed - entry.quota.left


def test_decision_is_that_of_the_instant_of_taking(limiter: Limiter, store: Fleet, clock: FakeClock) -> None:
    """`remaining`, `reset_after` and the instant of the charge are of when the units were taken."""
    fill(limiter)
    at_us = clock()
    first = limiter.acquire(API)
    clock.advance(0.2)
    later = limiter.acquire(API, job=job())
    for decision in (first, later):
        assert decision.allowed
        assert (decision.reason, decision.delay, decision.retry_after) == ("allowed", 0, 0)
        assert (decision.limit, decision.key, decision.cost) == (API, "", 1)
        assert (decision.remaining, decision.reset_after) == (first.remaining, first.reset_after)
        assert [(each.cost, each.at_us) for each in decision.charged] == [(1, at_us)]


def test_units_in_hand_end_with_their_lease(limiter: Limiter, store: Fleet, clock: FakeClock) -> None:
    """After `prefetch_for` what is left is lost, and the store is asked again, for one."""
    fill(limiter)
    clock.advance(0.25)
    assert spendable(limiter, API) == 0
    assert store.asked[-1][0].claims[0].algorithm.size == API.bind(1).size


def test_a_process_that_asks_seldom_takes_nothing_ahead(limiter: Limiter, store: Fleet, clock: FakeClock) -> None:
    """One job in a quarter of a second costs one unit and one question, as without a lease."""
    for number in range(1, 20):
        limiter.acquire(API)
        assert len(store.asked) == number
        clock.advance(0.25)
    assert {request.claims[0].algorithm.size for request, _ in store.asked} == {API.bind(1).size}


@pytest.mark.parametrize("cost", [3, 16, 17, 500])
def test_costs_of_more_than_one(limiter: Limiter, store: Fleet, cost: int) -> None:
    """Each job takes its own cost, from what is in hand where that is enough; a larger one asks for itself."""
    fill(limiter)
    assert limiter.acquire(API, cost=cost)
    asked = len(store.asked)
    limiter.acquire(API, cost=cost)
    assert len(store.asked) == asked + (cost > 10)


def test_cost_0_and_peek_take_nothing(limiter: Limiter, store: Fleet) -> None:
    """A cost of 0 asks the store; a peek tells what `acquire` would answer, and both leave what is in hand."""
    fill(limiter)
    assert limiter.acquire(API, cost=0).remaining == store.left()
    asked = len(store.asked)
    assert limiter.peek(API).allowed
    assert limiter.peek(API, cost=15).allowed
    assert len(store.asked) == asked
    assert limiter.peek(API, cost=20).allowed
    assert len(store.asked) == asked + 1
    assert spendable(limiter, API) == 15


# Others


def test_nothing_is_taken_ahead_while_somebody_waits(limiter: Limiter, store: Fleet, clock: FakeClock) -> None:
    """Units in hand end, and then new jobs join the waitlist as usual."""
    fill(limiter)
    other = Limiter(store.inner)
    assert other.acquire(API, cost=store.left())
    assert not other.acquire(API, cost=300, job=replace(job(), id="first"))
    clock.advance(0.25)  # 250 units have come in, for the one who waits
    denied = limiter.acquire(API, job=job())
    assert (denied.allowed, denied.reason) == (False, "in line")
    assert spendable(limiter, API, job=job()) == 0


def test_saturated_a_job_costs_one_question(limiter: Limiter, store: Fleet, clock: FakeClock) -> None:
    """A denied question for more is put again for the job alone, and then plainly, for as long as a lease."""
    fill(limiter)
    spendable(limiter, API)
    Limiter(store.inner).acquire(API, cost=store.left())
    while limiter.acquire(API).allowed:
        pass
    asked = len(store.asked)
    for _ in range(100):
        clock.advance(0.001)
        limiter.acquire(API)
    assert len(store.asked) == asked + 100


def test_a_returning_job_has_right_of_way_for_itself(limiter: Limiter, store: Fleet, clock: FakeClock) -> None:
    """A job that brings its slot asks for its own cost, not for more."""
    denied = limiter.acquire(API, cost=1000)
    denied = limiter.acquire(API, job=job())
    clock.advance(denied.delay)
    asked = len(store.asked)
    assert limiter.acquire(API, job=job()).allowed
    assert len(store.asked) > asked
    assert store.asked[-1][0].claims[0].algorithm.size == API.bind(1).size


# Several limits


def test_several_limits_are_all_or_none(limiter: Limiter, store: Fleet) -> None:
    """What was spent from hand for a job that another limit denied goes back to hand."""
    fill(limiter)
    assert limiter.acquire(API, TIGHT).allowed
    for _ in range(5):
        denied = limiter.acquire(API, TIGHT, job=job())
        assert (denied.allowed, denied.limit) == (False, TIGHT)
    assert [claim.bucket.split(":")[1] for claim in store.asked[-1][0].claims] == ["{tight"]
    assert spendable(limiter, API) == 14


def test_several_limits_are_taken_ahead_together(limiter: Limiter, store: Fleet) -> None:
    """One question takes ahead of each limit that is leased, and of the others what the job costs."""
    other = TokenBucket("other", "1000/s", burst=1000, prefetch=8)
    for _ in range(100):
        assert limiter.acquire(API, other, PLAIN).allowed
    assert store.left(PLAIN) == 900
    assert [len(request.claims) for request, _ in store.asked].count(1) > 50  # PLAIN alone: the others were in hand
    assert len(store.asked) == 100
    asked = len(store.asked)
    for _ in range(100):
        assert limiter.acquire(API, other).allowed
    assert len(store.asked) < asked + 25


def test_slots_are_held_beside_units_in_hand(limiter: Limiter, store: Fleet) -> None:
    """A concurrency limit is asked as ever."""
    slots = Concurrency("db", 1, lease=30)
    fill(limiter)
    held = limiter.acquire(API, slots)
    assert len(held.leases) == 1
    assert limiter.acquire(API, slots).limit is slots
    limiter.release(held)
    assert limiter.acquire(API, slots).allowed


# When it must stop


@pytest.mark.parametrize("key", [None, "a"])
def test_pause_stops_at_once(limiter: Limiter, store: Fleet, key: str | None) -> None:
    """A process that hears of a pause spends nothing more; others do so when their leases end."""
    limit, which = (API, {}) if key is None else (TENANTS, {"key": key})
    fill(limiter, limit, **which)
    limiter.pause(limit, 10, key=key)
    assert limiter.acquire(limit, **which).reason == "paused"


def test_reset_forgets_what_is_in_hand(limiter: Limiter, store: Fleet) -> None:
    """A limit that was reset is asked again."""
    fill(limiter)
    limiter.reset(API)
    assert spendable(limiter, API) == 0
    assert store.left() == 999


@pytest.mark.parametrize("verb", ["pause", "reset"])
def test_what_is_on_its_way_meanwhile_is_not_spent(limiter: Limiter, store: Fleet, verb: str) -> None:
    """Units that were granted before the pause, and arrive after it, are lost."""
    fill(limiter)
    spendable(limiter, API)
    fill(limiter)
    while held(limiter).entries and next(iter(held(limiter).entries.values())).quota.left:
        limiter.acquire(API)
    real = store._decide

    def slow(request: Request, now_us: int | None) -> Answer:
        verdict = real(request, now_us)
        store._decide = real  # type: ignore[method-assign]
        if verb == "pause":
            limiter.pause(API, 10)
        else:
            limiter.reset(API)
        return verdict

    store._decide = slow  # type: ignore[method-assign]
    assert limiter.acquire(API).allowed
    assert store.asked[-1][0].claims[0].algorithm.size == API.bind(16).size
    assert spendable(limiter, API) == 0


def test_outage_units_in_hand_are_spent(limiter: Limiter, store: Fleet, clock: FakeClock) -> None:
    """While the store is away jobs pass with what is in hand, until that ends; and nothing is taken for granted."""
    fill(limiter)
    store.down = True
    assert all(limiter.acquire(API) for _ in range(15))
    assert limiter.acquire(API).reason == "store unavailable"
    store.down = False
    wiring_of(limiter).stores.shared._outages.clear()
    assert limiter.acquire(API).allowed


# Threads, forks, and how many


def test_threads_spend_each_unit_once(store: Fleet) -> None:
    """What eight threads pass, and what is in hand at the end, is what was charged, to the unit."""
    limit = TokenBucket("api", "3600/hour", burst=3600, prefetch=50, prefetch_for=60)
    limiter = Limiter(store)
    passed = [0] * 8

    def work(number: int) -> None:
        while limiter.acquire(limit):
            passed[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (entry,) = held(limiter).entries.values()
    assert sum(passed) + entry.quota.left == 3600
    assert entry.quota.left <= 50
    assert len(store.asked) < 3600 / 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_child_spends_nothing_of_its_parents(limiter: Limiter, store: Fleet) -> None:
    """A forked child begins with nothing in hand; its parent has what it had."""
    fill(limiter)
    pid = os.fork()
    if pid == 0:
        with held(limiter).lock:
            empty = not held(limiter).entries
        os._exit(0 if empty and spendable(limiter, API) == 0 else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert spendable(limiter, API) == 15


def test_wallets_are_bounded(limiter: Limiter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many keys, the wallet that asked longest ago goes, with all that is known of it."""
    monkeypatch.setattr(prefetching, "_MOST_ENTRIES", 3)
    for key in "abcd":
        fill(limiter, TENANTS, key=key)
    assert (len(held(limiter).entries), len(held(limiter).quick)) == (3, 3)
    assert spendable(limiter, TENANTS, key="a") == 0
    assert spendable(limiter, TENANTS, key="d") == 15


def test_calls_that_cannot_work_are_refused_as_ever(limiter: Limiter) -> None:
    """What is in hand answers no call that would have been refused."""
    fill(limiter)
    fill(limiter, TENANTS, key="1")
    for refused in (
        lambda: limiter.acquire(API, key="a"),
        lambda: limiter.acquire(API, job="job"),  # type: ignore[arg-type]
        lambda: limiter.acquire(API, API),
        lambda: limiter.acquire(TENANTS),
        lambda: limiter.acquire(TENANTS, key=True),
        lambda: limiter.acquire(TokenBucket("api", "1/s")),
    ):
        with pytest.raises(ConfigurationError):
            refused()


# The options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefetch": 1}, "at least 2"),
        ({"prefetch": True}, "at least 2"),
        ({"prefetch": 2.0}, "at least 2"),
        ({"prefetch": "50"}, "at least 2"),
        ({"prefetch": 1001}, "the burst is 1000"),
        ({"prefetch": 50, "prefetch_for": 0}, "prefetch_for must be"),
        ({"prefetch": 50, "prefetch_for": float("nan")}, "prefetch_for must be"),
        ({"prefetch": 50, "prefetch_for": 61}, "prefetch_for must be"),
        ({"prefetch": 50, "prefetch_for": True}, "prefetch_for must be"),
        ({"prefetch": 50, "prefetch_for": "1"}, "prefetch_for must be"),
        ({"prefetch": 50, "prefetch_for": 0.001}, "never be used"),
        ({"prefetch": 3, "burst": 3}, "never be used"),
        ({"prefetch_for": 0.25}, "prefetch_for= needs prefetch="),
        ({"prefetch": 50, "scope": "process"}, "uses no store"),
        ({"prefetch": {"free": 50}}, "prefetch must be"),
    ],
)
def test_leases_that_cannot_work_are_refused(options: dict[str, Any], message: str) -> None:
    """At once, with the limit's name and what would be right."""
    with pytest.raises(ConfigurationError, match=f"limit 'api': .*{message}"):
        TokenBucket("api", "1000/s", **{"burst": 1000, **options})


@pytest.mark.parametrize("option", ["prefetch", "prefetch_for"])
@pytest.mark.parametrize("algorithm", [LeakyBucket, FixedWindow, SlidingWindow, SlidingLog, Concurrency])
def test_other_algorithms_take_no_leases(algorithm: Callable[..., Limit], option: str) -> None:
    """They say which one does."""
    with pytest.raises(ConfigurationError, match="takes no prefetch=: that is for TokenBucket"):
        algorithm("api", 8 if algorithm is Concurrency else "1000/s", **{option: 2})


def test_a_lease_is_no_part_of_the_definition() -> None:
    """Processes with a lease and without share one budget; a limit equals another if its lease does too."""
    same = TokenBucket("api", "1000/s", burst=1000, prefetch=16, prefetch_for=timedelta(milliseconds=250))
    without = TokenBucket("api", "1000/s", burst=1000)
    assert (same, hash(same), repr(same)) == (API, hash(API), repr(API))
    assert API.fingerprint == without.fingerprint
    assert without != API
    Limiter().declare(API, without)
    assert repr(API) == "TokenBucket('api', '1000/s', burst=1000, prefetch=16, prefetch_for=0.25)"
    assert pickle.loads(pickle.dumps(API)).prefetch_quota == API.prefetch_quota


def test_each_tier_has_its_own_lease(limiter: Limiter, store: Fleet) -> None:
    """One for all tiers, or one for each; None for those that take none."""
    tiers = {"free": "1/s", "pro": "1000/s"}
    plan = TokenBucket("plan", tiers, tier="{account}", prefetch={"free": None, "pro": 16}, prefetch_for=0.1)
    assert plan.tiers is not None
    assert [limit.prefetch_quota and limit.prefetch_quota.tokens for limit in plan.tiers.values()] == [None, 16]
    assert "prefetch={'free': None, 'pro': 16}" in repr(plan)
    assert hash(plan)
    fill(limiter, plan, job=job("pro"))
    assert spendable(limiter, plan, job=job("pro")) == 15
    assert limiter.acquire(plan, job=job("free")).allowed
    assert not limiter.acquire(plan, job=job("free")).allowed


@pytest.mark.parametrize(("rate", "lease"), [("500/s", API.prefetch_quota), ("4/s", None)])
def test_another_rate_keeps_the_lease_if_it_can(rate: str, lease: object) -> None:
    """A rate that is set for the whole fleet is taken ahead of too, unless it is too low for that."""
    assert altered(API, rate).prefetch_quota == lease


def test_units_ahead_are_taken_at_the_rate_in_force(limiter: Limiter, store: Fleet, clock: FakeClock) -> None:
    """Rates that count in one bucket share no units in hand: each takes ahead what its own rate allows."""
    slower = altered(API, "400/s", 400)
    assert slower.prefetch_quota == API.prefetch_quota
    fill(limiter)
    assert store.left() < 1000
    before = len(store.asked)
    fill(limiter, slower)
    asked = [request.claims[0].algorithm for request, _ in store.asked[before:]]
    assert {algorithm.params[1:] for algorithm in asked} == {slower.bind(1).params[1:]}
    assert {name[2] for name in wiring_of(limiter).prefetcher._held.entries} == {API.bucket, slower.bucket}
    assert store.left(slower) <= 400 - 16
    assert spendable(limiter, API) == 15


def test_what_passes_from_hand_is_counted(limiter: Limiter, store: Fleet) -> None:
    """The fleet is told of each job that passed with no question, once."""
    counts = Counts()
    fill(limiter)
    asked = len(store.asked)
    wiring_of(limiter).prefetcher.passed()
    for _ in range(10):
        limiter.acquire(API)
    assert len(store.asked) == asked
    for expected in ([(10, 10)], []):
        for each in wiring_of(limiter).prefetcher.passed():
            counts.record_prefetched(*each)
        assert [(seen.allowed, seen.units) for seen in counts.take()[0]] == expected
