"""Prefetched units of a limiter: which calls reach the store, and what happens to the units."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from support.servers.stores import Recording
from support.threads import run_in_threads
from support.waiting import wait_until
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
from throttlekit._core.limit.change import change_rate
from throttlekit._engine import prefetch as prefetching
from throttlekit._engine.call import Call, Delivery, Waiting
from throttlekit._wiring import wiring_of
from throttlekit.fleet.activity import Counts
from throttlekit.stores import MemoryStore, Request
from throttlekit.testing import FakeClock

API = TokenBucket("api", "1000/s", burst=1000, prefetch=16)
PLAIN = TokenBucket("plain", "1000/s", burst=1000)
TENANTS = TokenBucket("tenants", "1000/s", burst=1000, prefetch=16, key="{account}")
TIGHT = TokenBucket("tight", "1/s", burst=1)


class Fleet(Recording):
    """A store whose clock stands still, that records what was charged, and can be down."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(MemoryStore(clock_us=clock))
        self.down = False

    def _decide(self, request: Request, now_us: int | None) -> Answer:
        if self.down:
            raise StoreUnavailable("the store gave no usable answer: TimeoutError")
        return super()._decide(request, now_us)

    def left(self, limit: Limit = API, **which: Any) -> int:
        """Return the remaining units that another process would see."""
        return Limiter(self.inner).peek(limit, **which).remaining


@pytest.fixture
def store(clock: FakeClock) -> Fleet:
    return Fleet(clock)


@pytest.fixture
def limiter(store: Fleet, clock: FakeClock) -> Limiter:
    limiter = Limiter(store)
    wiring_of(limiter).pipeline.prefetcher._clock_us = clock
    return limiter


def job(account: object = "a") -> Job:
    return Job(id="1", name="call", queue="q", kwargs={"account": account})


def held(limiter: Limiter) -> Any:
    """Return the prefetched units."""
    return wiring_of(limiter).pipeline.prefetcher._held


def fill(limiter: Limiter, limit: Limit = API, *, until: int = 16, **which: Any) -> int:
    """Request until a full lease was prefetched; return how many units are left of it."""
    for _ in range(200):
        limiter.acquire(limit, **which)
        (*_, entry) = held(limiter).entries.values()
        if entry.quota.left == until - 1:
            return until - 1
    raise AssertionError("no lease was taken")


def spendable(limiter: Limiter, *limits: Limit, **which: Any) -> int:
    """Return how many requests are granted without a call of the store, at most 100."""
    store: Any = wiring_of(limiter).stores.shared._store
    calls = len(store.asked)
    for number in range(100):
        decision = limiter.acquire(*limits, **which)
        if len(store.asked) > calls:
            return number
        assert decision.allowed
    return 100


# What reaches the store


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
def test_one_request_prefetches_many_units(limiter: Limiter, limit: Limit, which: dict[str, Any]) -> None:
    """A busy process makes one request for `prefetch` jobs; the others are granted without a request."""
    assert fill(limiter, limit, **which) == 15
    assert spendable(limiter, limit, **which) == 15
    assert spendable(limiter, limit, **which) == 15


def test_every_unit_is_charged_before_it_is_spent(limiter: Limiter, store: Fleet) -> None:
    """Other processes see the units that are left, minus what this process has prefetched: never more."""
    granted = 0
    for _ in range(200):
        granted += limiter.acquire(API).allowed
        (entry,) = held(limiter).entries.values()
        assert store.left() == 1000 - granted - entry.quota.left


def test_decision_is_that_of_the_prefetch(limiter: Limiter, store: Fleet, clock: FakeClock) -> None:
    """`remaining`, `reset_after` and the time of the charge are those of the moment when the units were taken."""
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


def test_prefetched_units_end_with_their_lease(limiter: Limiter, store: Fleet, clock: FakeClock) -> None:
    """After `prefetch_for` the remaining units are lost, and the next request is for one unit."""
    fill(limiter)
    clock.advance(0.25)
    assert spendable(limiter, API) == 0
    assert store.asked[-1][0].claims[0].algorithm.size == API.bind(1).size


def test_a_process_with_few_requests_prefetches_nothing(limiter: Limiter, store: Fleet, clock: FakeClock) -> None:
    """A process with one job in 0.25 s makes one request for one unit, as without a lease."""
    for number in range(1, 20):
        limiter.acquire(API)
        assert len(store.asked) == number
        clock.advance(0.25)
    assert {request.claims[0].algorithm.size for request, _ in store.asked} == {API.bind(1).size}


@pytest.mark.parametrize("cost", [3, 16, 17, 500])
def test_costs_of_more_than_one(limiter: Limiter, store: Fleet, cost: int) -> None:
    """Each job uses its own cost from the prefetched units if they suffice; a larger cost makes a request."""
    fill(limiter)
    assert limiter.acquire(API, cost=cost)
    calls = len(store.asked)
    limiter.acquire(API, cost=cost)
    assert len(store.asked) == calls + (cost > 10)


def test_cost_0_and_peek_take_nothing(limiter: Limiter, store: Fleet) -> None:
    """A cost of 0 calls the store; a peek returns what `acquire` would, and both leave the prefetched units."""
    fill(limiter)
    assert limiter.acquire(API, cost=0).remaining == store.left()
    calls = len(store.asked)
    assert limiter.peek(API).allowed
    assert limiter.peek(API, cost=15).allowed
    assert len(store.asked) == calls
    assert limiter.peek(API, cost=20).allowed
    assert len(store.asked) == calls + 1
    assert spendable(limiter, API) == 15


# Other processes and jobs


def test_nothing_is_prefetched_while_a_job_waits(limiter: Limiter, store: Fleet, clock: FakeClock) -> None:
    """Prefetched units end, and then new jobs join the waitlist as usual."""
    fill(limiter)
    other = Limiter(store.inner)
    assert other.acquire(API, cost=store.left())
    assert not other.acquire(API, cost=300, job=replace(job(), id="first"))
    clock.advance(0.25)  # 250 units were gained, for the job that waits
    denied = limiter.acquire(API, job=job())
    assert (denied.allowed, denied.reason) == (False, "in line")
    assert spendable(limiter, API, job=job()) == 0


def test_a_job_costs_one_request_if_the_limit_is_saturated(limiter: Limiter, store: Fleet, clock: FakeClock) -> None:
    """A denied prefetch is repeated for the job alone, and then all requests are plain, for the length of a lease."""
    fill(limiter)
    spendable(limiter, API)
    Limiter(store.inner).acquire(API, cost=store.left())
    while limiter.acquire(API).allowed:
        pass
    calls = len(store.asked)
    for _ in range(100):
        clock.advance(0.001)
        limiter.acquire(API)
    assert len(store.asked) == calls + 100


def test_a_redelivered_job_requests_only_its_own_cost(limiter: Limiter, store: Fleet, clock: FakeClock) -> None:
    """A job with a position requests its own cost, and no more."""
    denied = limiter.acquire(API, cost=1000)
    denied = limiter.acquire(API, job=job())
    clock.advance(denied.delay)
    calls = len(store.asked)
    assert limiter.acquire(API, job=job()).allowed
    assert len(store.asked) > calls
    assert store.asked[-1][0].claims[0].algorithm.size == API.bind(1).size


def test_a_job_that_was_late_leaves_its_waitlist(limiter: Limiter, store: Fleet, clock: FakeClock) -> None:
    """
    A job without a waker, which made no request at its turn, is granted later by the store, although the process has
    prefetched units. It then waits no longer, so no unit is reserved for it.
    """
    claims = [each.claim for each in limiter.claims(Call([API], job()))]
    limiter.acquire(API, cost=1000)
    assert not limiter.acquire(API, job=job()).allowed
    clock.advance(10)
    fill(limiter)
    assert limiter.peek(API, job=job()).allowed
    assert store.where(claims, "1") is not None, "a peek changes nothing"
    calls = len(store.asked)
    assert limiter.acquire(API, job=job()).allowed
    assert len(store.asked) == calls + 1
    assert store.where(claims, "1") is None


def test_a_job_that_was_late_prefetches_nothing(limiter: Limiter, store: Fleet, clock: FakeClock) -> None:
    """The store grants units to prefetch without a job. So it would not remove the job's entry."""
    claims = [each.claim for each in limiter.claims(Call([API], job()))]
    limiter.acquire(API, cost=1000)
    assert not limiter.acquire(API, job=job()).allowed
    clock.advance(10)
    for _ in range(fill(limiter)):  # the next request prefetches units again
        limiter.acquire(API)
    assert limiter.acquire(API, job=job()).allowed
    assert store.asked[-1][0].claims[0].algorithm.size == API.bind(1).size
    assert store.where(claims, "1") is None


def test_a_job_that_another_process_denied_leaves_its_waitlist(
    limiter: Limiter, store: Fleet, clock: FakeClock
) -> None:
    """If the message shows that its job was denied, the store decides the job, and removes its entry."""
    claims = [each.claim for each in limiter.claims(Call([API], job()))]
    limiter.acquire(API, cost=1000)
    assert not Limiter(store.inner).acquire(API, job=job()).allowed
    clock.advance(10)
    fill(limiter)
    delivery = Delivery(waits=Waiting(limiter.waker, lambda: None, denied=True))
    assert limiter.acquire(API, job=job(), delivery=delivery).allowed
    assert store.where(claims, "1") is None
    limiter.close()


# Several limits


def test_several_limits_are_all_or_nothing(limiter: Limiter, store: Fleet) -> None:
    """A prefetched unit that was spent on a job that another limit denied is put back."""
    fill(limiter)
    assert limiter.acquire(API, TIGHT).allowed
    for number in range(5):
        denied = limiter.acquire(API, TIGHT, job=replace(job(), id=str(number)))
        assert (denied.allowed, denied.limit) == (False, TIGHT)
    assert [claim.bucket.split(":")[1] for claim in store.asked[-1][0].claims] == ["{tight"]
    assert spendable(limiter, API) == 14


def test_several_limits_are_prefetched_together(limiter: Limiter, store: Fleet) -> None:
    """One request prefetches units of each limit with a lease, and takes the job's cost from the others."""
    other = TokenBucket("other", "1000/s", burst=1000, prefetch=8)
    for _ in range(100):
        assert limiter.acquire(API, other, PLAIN).allowed
    assert store.left(PLAIN) == 900
    assert [len(request.claims) for request, _ in store.asked].count(1) > 50  # PLAIN alone: the others were prefetched
    assert len(store.asked) == 100
    calls = len(store.asked)
    for _ in range(100):
        assert limiter.acquire(API, other).allowed
    assert len(store.asked) < calls + 25


def test_slots_are_requested_beside_prefetched_units(limiter: Limiter, store: Fleet) -> None:
    """If a job has a limit with prefetch and a concurrency limit, its slot is requested as usual."""
    slots = Concurrency("db", 1, lease=30)
    fill(limiter)
    held = limiter.acquire(API, slots)
    assert len(held.leases) == 1
    assert limiter.acquire(API, slots).limit is slots
    limiter.release(held)
    assert limiter.acquire(API, slots).allowed


# When prefetched units are dropped


@pytest.mark.parametrize("key", [None, "a"])
def test_pause_stops_at_once(limiter: Limiter, store: Fleet, key: str | None) -> None:
    """The process that pauses a key spends no more units at once; other processes stop when their leases end."""
    limit, which = (API, {}) if key is None else (TENANTS, {"key": key})
    fill(limiter, limit, **which)
    limiter.pause(limit, 10, key=key)
    assert limiter.acquire(limit, **which).reason == "paused"


def test_reset_drops_prefetched_units(limiter: Limiter, store: Fleet) -> None:
    """A limit that was reset is requested again."""
    fill(limiter)
    limiter.reset(API)
    assert spendable(limiter, API) == 0
    assert store.left() == 999


@pytest.mark.parametrize("verb", ["pause", "reset"])
def test_units_that_arrive_after_a_pause_or_reset_are_not_spent(limiter: Limiter, store: Fleet, verb: str) -> None:
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


def test_prefetched_units_are_spent_in_an_outage(limiter: Limiter, store: Fleet, clock: FakeClock) -> None:
    """While the store is unavailable jobs use the prefetched units, until these end; then they are deferred."""
    fill(limiter)
    store.down = True
    assert all(limiter.acquire(API) for _ in range(15))
    assert limiter.acquire(API).reason == "store unavailable"
    store.down = False
    wiring_of(limiter).stores.shared._outages.clear()
    assert limiter.acquire(API).allowed


# Threads, forks, and bounds


def test_a_job_that_has_waited_leaves_no_entry_on_the_list_of_a_prefetched_limit() -> None:
    """A job that another limit denied has an entry there, too, which only a request to the store removes."""
    store, slot = MemoryStore(), Concurrency("slot", 1)
    limiter, rate = Limiter(store), TokenBucket("rate", "1000/s", burst=1000, prefetch=16, prefetch_for=60)
    (claim,) = limiter.claims(Call([rate]))

    def run() -> None:
        with limiter.hold(rate, slot):
            pass

    with ThreadPoolExecutor(1) as pool:
        with limiter.hold(slot):
            waits = pool.submit(run)
            wait_until(lambda: store.has_list(claim.claim.bucket), description="the job waits")
            fill(limiter, rate)
        waits.result(30)
    assert not store.has_list(claim.claim.bucket)


def test_threads_spend_each_unit_once(store: Fleet) -> None:
    """The grants of eight threads and the units that are left in the end are exactly what was charged."""
    limit = TokenBucket("api", "3600/hour", burst=3600, prefetch=50, prefetch_for=60)
    limiter = Limiter(store)
    granted = [0] * 8

    def work(number: int) -> None:
        while limiter.acquire(limit):
            granted[number] += 1

    run_in_threads(8, work)
    (entry,) = held(limiter).entries.values()
    assert sum(granted) + entry.quota.left == 3600
    assert entry.quota.left <= 50
    assert len(store.asked) < 3600 / 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_child_spends_no_units_of_its_parent(limiter: Limiter, store: Fleet) -> None:
    """A forked child starts without prefetched units; its parent keeps its own."""
    fill(limiter)
    pid = os.fork()
    if pid == 0:
        with held(limiter).lock:
            empty = not held(limiter).entries
        os._exit(0 if empty and spendable(limiter, API) == 0 else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert spendable(limiter, API) == 15


def test_quotas_are_bounded(limiter: Limiter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many keys, the one with the oldest request is removed, with everything that is known of it."""
    monkeypatch.setattr(prefetching, "_MOST_ENTRIES", 3)
    for key in "abcd":
        fill(limiter, TENANTS, key=key)
    assert (len(held(limiter).entries), len(held(limiter).quick)) == (3, 3)
    assert spendable(limiter, TENANTS, key="a") == 0
    assert spendable(limiter, TENANTS, key="d") == 15


def test_invalid_calls_are_refused_despite_prefetched_units(limiter: Limiter) -> None:
    """Prefetched units answer no call that would otherwise be refused."""
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
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    """Invalid options of prefetch raise at once, with the limit's name and what would be right."""
    with pytest.raises(ConfigurationError, match=f"limit 'api': .*{message}"):
        TokenBucket("api", "1000/s", **{"burst": 1000, **options})


@pytest.mark.parametrize("option", ["prefetch", "prefetch_for"])
@pytest.mark.parametrize("algorithm", [LeakyBucket, FixedWindow, SlidingWindow, SlidingLog, Concurrency])
def test_other_algorithms_have_no_leases(algorithm: Callable[..., Limit], option: str) -> None:
    """The error for `prefetch=` of another algorithm names the algorithm that has it."""
    with pytest.raises(ConfigurationError, match="takes no prefetch=: that is for TokenBucket"):
        algorithm("api", 8 if algorithm is Concurrency else "1000/s", **{option: 2})


def test_a_lease_is_no_part_of_the_definition() -> None:
    """
    Processes with prefetch and without share one count; two limits are equal only if their options of prefetch are,
    too.
    """
    same = TokenBucket("api", "1000/s", burst=1000, prefetch=16, prefetch_for=timedelta(milliseconds=250))
    without = TokenBucket("api", "1000/s", burst=1000)
    assert (same, hash(same), repr(same)) == (API, hash(API), repr(API))
    assert API.fingerprint == without.fingerprint
    assert without != API
    Limiter().declare(API, without)
    assert repr(API) == "TokenBucket('api', '1000/s', burst=1000, prefetch=16, prefetch_for=0.25)"
    assert pickle.loads(pickle.dumps(API)).prefetch_quota == API.prefetch_quota


def test_each_tier_has_its_own_lease(limiter: Limiter, store: Fleet) -> None:
    """There is one lease for all tiers, or one for each; None disables it for a tier."""
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
    """A rate that is set for the whole fleet is prefetched too, unless it is too low for that."""
    assert change_rate(API, rate).prefetch_quota == lease


def test_units_are_prefetched_at_the_current_rate(limiter: Limiter, store: Fleet, clock: FakeClock) -> None:
    """Rates that count in one bucket share no prefetched units: each prefetches what its own rate allows."""
    slower = change_rate(API, "400/s", 400)
    assert slower.prefetch_quota == API.prefetch_quota
    fill(limiter)
    assert store.left() < 1000
    before = len(store.asked)
    fill(limiter, slower)
    algorithms = [request.claims[0].algorithm for request, _ in store.asked[before:]]
    assert {algorithm.params[1:] for algorithm in algorithms} == {slower.bind(1).params[1:]}
    assert {name[2] for name in wiring_of(limiter).pipeline.prefetcher._held.entries} == {API.bucket, slower.bucket}
    assert store.left(slower) <= 400 - 16
    assert spendable(limiter, API) == 15


def test_grants_of_prefetched_units_are_counted(limiter: Limiter, store: Fleet) -> None:
    """Each job that was granted without a request is reported to the fleet, once."""
    counts = Counts()
    fill(limiter)
    calls = len(store.asked)
    wiring_of(limiter).pipeline.prefetcher.take_grants()
    for _ in range(10):
        limiter.acquire(API)
    assert len(store.asked) == calls
    for expected in ([(10, 10)], []):
        for each in wiring_of(limiter).pipeline.prefetcher.take_grants():
            counts.record_prefetched(*each)
        assert [(seen.allowed, seen.units) for seen in counts.take()[0]] == expected
