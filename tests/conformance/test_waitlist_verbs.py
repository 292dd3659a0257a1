"""The methods of stores with waitlists: all kinds of stores do the same, and changes wake the jobs that may run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import redis

from support.servers.processes import Cluster
from support.waiting import wait_until
from throttlekit import Concurrency, FixedWindow, Job, Limiter, TokenBucket
from throttlekit._core.answer import WITHOUT_JOB, Answer, Caller, Reason, Requester, Waited
from throttlekit._core.claim import StoreClaim
from throttlekit._core.late import late_owner
from throttlekit._core.limit.base import Limit
from throttlekit._core.slowdown import Refusal, Remaining
from throttlekit._core.storage_keys import bucket_name
from throttlekit._core.wait_control import Charge
from throttlekit._core.waitlist import State, Wake
from throttlekit.stores.access import StoreAccess
from throttlekit.stores.base import Correction, Lease, Request, Slowing
from throttlekit.stores.client import ClientStore
from throttlekit.stores.cluster import RedisClusterStore
from throttlekit.stores.from_client import store_of_client
from throttlekit.stores.grouped import GroupedStore
from throttlekit.stores.memory import MemoryStore
from throttlekit.stores.parts import Part, decide_in_parts
from throttlekit.stores.redis import RedisStore

NOW_US, SECOND = 1_900_000_000_000_000, 1_000_000
SLOW, FAST = TokenBucket("slow", "1/s", burst=1), TokenBucket("fast", "10/s", burst=10)
SLOTS = Concurrency("slots", 1, lease=30)
TIMEOUT = 20.0
SHARED = ["memory", "redis", "client", "of a client", "cluster", "of a cluster client", "grouped"]


def _store(kind: str, request: pytest.FixtureRequest, stack: contextlib.ExitStack) -> Any:
    if kind == "memory":
        return MemoryStore()
    if kind in ("cluster", "of a cluster client"):
        cluster: Cluster = request.getfixturevalue("cluster")
        if kind == "cluster":
            return RedisClusterStore(cluster.url, timeout=TIMEOUT)
        client = stack.enter_context(contextlib.closing(redis.RedisCluster.from_url(cluster.node_urls[0])))
        return store_of_client(client)
    url: str = request.getfixturevalue("redis_url")
    if kind in ("client", "of a client"):
        client = stack.enter_context(contextlib.closing(redis.Redis.from_url(url, socket_timeout=TIMEOUT, retry=None)))
        return ClientStore(client) if kind == "client" else store_of_client(client)
    store = RedisStore(url, timeout=TIMEOUT)
    return GroupedStore(store, [("fast", MemoryStore())]) if kind == "grouped" else store


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use long time-outs for a busy machine, because these tests do not measure speed."""
    monkeypatch.setattr("throttlekit.stores.from_client._TIMEOUT", TIMEOUT)


@pytest.fixture(params=SHARED)
def store(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Each kind of store."""
    with contextlib.ExitStack() as stack:
        store = _store(request.param, request, stack)
        stack.callback(store.close)
        yield store


@pytest.fixture
def received_wakes(store: Any) -> Iterator[Callable[[], list[str]]]:
    """A function that returns the ids of the jobs of owner "p" for which a wake message was received."""
    received: list[str] = []
    listening: list[int] = []

    def receive(_: str, wakes: Sequence[Wake]) -> None:
        received.extend(wake.id for wake in wakes)

    end = store.listen("p", receive, lambda: listening.append(1))
    servers = len(store.servers()) if hasattr(store, "servers") else 0 if isinstance(store, MemoryStore) else 1
    wait_until(lambda: len(listening) >= servers, description="the store listens to each server")
    yield lambda: received
    end()


def _claim(limit: Limit, cost: int = 1, holder: str = "") -> StoreClaim:
    return StoreClaim(bucket_name(limit.name, "", limit.fingerprint), limit.bind(cost, 0, holder), cost)


def _decide(store: Any, id: str, *claims: StoreClaim, at_us: int = NOW_US, **requester: Any) -> Answer:
    answer: Answer = store.decide(claims, Requester(Caller.JOB, id, "p", **requester), at_us)
    return answer


def _let_two_jobs_wait(store: Any, *claims: StoreClaim) -> None:
    """Use all units of a limit; then "one" and "two" wait for it."""
    assert _decide(store, "zero", *claims).reason is Reason.ALLOWED
    assert _decide(store, "one", *claims).kept is not None
    assert _decide(store, "two", *claims).kept is not None


def _wait_until_woken(received_wakes: Callable[[], list[str]], *ids: str) -> None:
    wait_until(lambda: set(received_wakes()) >= set(ids), description=f"{ids} are woken")
    assert set(received_wakes()) == set(ids)  # on a cluster, each node also forwards the messages of the others


def test_a_settled_cost_wakes_a_job(store: Any, received_wakes: Callable[[], list[str]]) -> None:
    """Returned units wake the first job at once, and only as many jobs as there are units."""
    claim = _claim(SLOW)
    _let_two_jobs_wait(store, claim)
    store.settle([Correction(claim.bucket, claim.algorithm, NOW_US, -claim.algorithm.size)], NOW_US)
    _wait_until_woken(received_wakes, "one")
    assert _decide(store, "one", claim).reason is Reason.ALLOWED


def test_a_released_slot_wakes_a_job(store: Any, received_wakes: Callable[[], list[str]]) -> None:
    """A released slot wakes the first job at once."""
    assert _decide(store, "zero", _claim(SLOTS, holder="zero#0")).reason is Reason.ALLOWED
    for id in ("one", "two"):
        assert _decide(store, id, _claim(SLOTS, holder=f"{id}#0")).kept is not None
    held = _claim(SLOTS, holder="zero#0")
    store.release([Lease(held.bucket, held.algorithm, NOW_US)], NOW_US + SECOND)
    _wait_until_woken(received_wakes, "one")


def test_several_releases_in_one_call_wake_as_many_jobs(store: Any, received_wakes: Callable[[], list[str]]) -> None:
    """Two slots are released: the first job is woken, and its grant wakes the second one."""
    slots = Concurrency("slots", 2, lease=30)
    holders = [_claim(slots, holder=f"h{n}#0") for n in range(2)]
    for n, holder in enumerate(holders):
        assert _decide(store, f"h{n}", holder).reason is Reason.ALLOWED
    for id in ("one", "two"):
        assert _decide(store, id, _claim(slots, holder=f"{id}#0"), free=3).kept is not None
    store.release([Lease(each.bucket, each.algorithm, NOW_US) for each in holders], NOW_US + SECOND)
    _wait_until_woken(received_wakes, "one")
    granted = _decide(store, "one", _claim(slots, holder="one#0"), at_us=NOW_US + SECOND, free=3)
    assert granted.reason is Reason.ALLOWED
    assert [wake.id for _, wake in granted.wakes] == ["two"]


def test_the_end_of_a_pause_wakes_a_job(store: Any, received_wakes: Callable[[], list[str]]) -> None:
    """When an operator ends a pause of an hour, the first job is woken and admitted."""
    claim = _claim(SLOW)
    store.pause([claim], 3600 * SECOND, NOW_US)
    assert _decide(store, "one", claim).reason is Reason.PAUSED
    store.pause([claim], None, NOW_US + SECOND)
    _wait_until_woken(received_wakes, "one")
    assert _decide(store, "one", claim, at_us=NOW_US + SECOND).reason is Reason.ALLOWED


def test_a_higher_rate_after_a_slowdown_wakes_a_job(store: Any, received_wakes: Callable[[], list[str]]) -> None:
    """When a response of a later window reports more remaining units, the first job is woken."""
    claim = _claim(FAST)
    store.slow([Slowing(claim, Remaining(0, 60 * SECOND))], NOW_US)
    assert _decide(store, "one", claim).kept is not None
    store.slow([Slowing(claim, Remaining(100, 600 * SECOND))], NOW_US + SECOND)
    store.forget([claim], (), now_us=NOW_US + 7 * SECOND)
    _wait_until_woken(received_wakes, "one")


def test_a_refusal_and_remaining_units_in_one_call_both_count(store: Any) -> None:
    """After a refusal and a response without remaining units, the slower of both rates applies."""
    claim = _claim(FAST)
    store.slow(
        [Slowing(claim, Refusal(None, 60 * SECOND, 50_000)), Slowing(claim, Remaining(0, 3600 * SECOND))], NOW_US
    )
    answer = _decide(store, "one", claim, at_us=NOW_US + 120 * SECOND)
    assert answer.reason is not Reason.ALLOWED
    assert answer.retry_us > NOW_US + 3000 * SECOND


def test_a_cleared_list_is_empty_and_still_paused(store: Any) -> None:
    """
    After a waitlist is cleared, owners detect it by the epoch, jobs that request again get new positions, and the pause
    remains.
    """
    claim = _claim(FAST)
    store.pause([claim], 3600 * SECOND, NOW_US)
    answer = _decide(store, "one", claim)
    assert answer.kept is not None
    store.clear_waitlists([claim.bucket])
    assert store.look(claim, "p", 1, ["one"], NOW_US).epoch == ""
    assert store.list_waiting(claim).jobs == 0
    again = _decide(store, "one", claim)
    assert again.reason is Reason.PAUSED
    assert again.kept is not None
    assert again.kept.epoch != answer.kept.epoch


def test_a_reset_limit_is_unused_and_its_list_is_empty(store: Any) -> None:
    """A reset of a limit's names deletes its waitlist too."""
    claim = _claim(SLOW)
    _let_two_jobs_wait(store, claim)
    store.pause([claim], 3600 * SECOND, NOW_US)
    store.reset([claim.bucket])
    assert store.where([claim], "one", NOW_US) is None
    assert _decide(store, "new", claim).reason is Reason.ALLOWED


def test_a_job_that_is_removed_is_on_no_list_and_the_next_one_is_woken(
    store: Any, received_wakes: Callable[[], list[str]]
) -> None:
    """A job is found by its id on the waitlists of its claims, and the jobs behind it move up."""
    slow, fast = _claim(SLOW), _claim(FAST)
    assert _decide(store, "zero", slow, fast).reason is Reason.ALLOWED
    for id in ("one", "two"):
        assert _decide(store, id, slow, fast).kept is not None
    store.forget([slow, fast], ["one"], now_us=NOW_US)
    assert store.where([slow, fast], "one", NOW_US) is None
    found = store.where([slow, fast], "two", NOW_US)
    assert (found.claim, found.position, found.state) == (0, 0, State.WAITING)
    store.forget([slow], (), now_us=NOW_US + SECOND)
    _wait_until_woken(received_wakes, "two")


def test_a_job_is_found_with_its_position_and_the_limit_that_holds_it_back(store: Any) -> None:
    """At 1/s, the third job of a waitlist is found with its position, its limit and an estimate of about 3 s."""
    slow, fast = _claim(SLOW), _claim(FAST)
    _let_two_jobs_wait(store, fast, slow)
    _decide(store, "three", fast, slow)
    found = store.where([fast, slow], "three", NOW_US)
    assert (found.claim, found.state, found.position) == (1, State.WAITING, 2)
    assert 2.5 * SECOND <= found.in_us <= 3.5 * SECOND
    assert store.where([fast, slow], "unknown", NOW_US) is None


@pytest.mark.usefixtures("received_wakes")
def test_a_job_whose_cost_has_changed_is_woken_for_its_present_cost(store: Any) -> None:
    """The cost of a waiting job can change, for example with an operator's rule."""
    assert _decide(store, "zero", _claim(FAST, 10)).reason is Reason.ALLOWED
    assert _decide(store, "one", _claim(FAST, 1)).kept is not None
    store.forget([_claim(FAST)], (), now_us=NOW_US + SECOND // 10)
    assert store.list_waiting(_claim(FAST), 1).woken == 1
    assert _decide(store, "one", _claim(FAST, 8), at_us=NOW_US + SECOND // 10).kept is not None
    for units, woken in ((1, 0), (7, 0), (8, 1)):
        at_us = NOW_US + units * SECOND // 10
        store.forget([_claim(FAST)], (), now_us=at_us)
        assert store.list_waiting(_claim(FAST), 1).woken == woken, units
    assert _decide(store, "one", _claim(FAST, 8), at_us=at_us).reason is Reason.ALLOWED


def test_several_requests_are_decided_one_after_the_other(store: Any) -> None:
    """Requests of one call are decided separately: each counts the units that earlier ones took."""
    hour = FixedWindow("hour", "2/h")
    requests = [Request([_claim(hour)], WITHOUT_JOB) for _ in range(3)]
    assert [answer.allowed for answer in StoreAccess(store).decide_all(requests)] == [True, True, False]  # type: ignore[union-attr]


def test_a_limiter_works_on_each_store(store: Any, received_wakes: Callable[[], list[str]]) -> None:
    """Each method of a limiter reaches the store, and changes what the jobs wait for."""
    slow, slots = TokenBucket("slow", "1/h", burst=2), Concurrency("slots", 1, lease=30)
    limiter, claim = Limiter(store), _claim(slow)
    decision = limiter.acquire(slow, cost=2)
    assert decision
    assert not limiter.acquire(slow, job=Job(id="x"))
    assert store.decide([claim], Requester(Caller.JOB, "one", "p")).kept is not None
    limiter.settle(decision, actual=1)
    _wait_until_woken(received_wakes, "one")
    limiter.pause(slow, 60)
    assert limiter.peek(slow).reason == "paused"
    limiter.clear_waitlist(slow)
    assert store.where([claim], "one") is None
    limiter.resume(slow)
    assert limiter.peek(slow)
    with limiter.hold(slots, timeout=0):
        assert not limiter.peek(slots)
    assert limiter.peek(slots)
    limiter.reset(slow, slots)
    assert limiter.acquire(slow, cost=2)
    limiter.close()


# Several stores: "fast" is in another hash slot, and in a separate group.


def test_units_are_returned_when_another_store_denies(store: Any) -> None:
    """After a denial nothing is charged, and the job waits for the limit that denied it."""
    slow, fast = _claim(SLOW), _claim(FAST)
    assert _decide(store, "zero", fast).reason is Reason.ALLOWED
    store.pause([fast], 2 * SECOND, NOW_US)
    answer = _decide(store, "one", fast, slow)
    assert (answer.reason, answer.claim) == (Reason.PAUSED, 0)
    assert answer.kept is not None
    assert answer.kept.claim == 0
    assert _decide(store, "two", slow).reason is Reason.ALLOWED
    found = store.where([fast, slow], "one", NOW_US)
    assert (found.claim, found.state) == (0, State.WAITING)


def test_a_job_keeps_its_position_when_another_store_denies(
    store: Any, received_wakes: Callable[[], list[str]]
) -> None:
    """
    A job was woken for the scarcer limit, and the other one denied it. When the other one admits it, it is granted
    before later jobs.
    """
    slow, fast = _claim(SLOW), _claim(FAST)
    _let_two_jobs_wait(store, slow)
    store.forget([slow], ["one", "two"], now_us=NOW_US)
    assert _decide(store, "first", slow, fast).kept is not None
    assert _decide(store, "second", slow, fast).kept is not None
    store.forget([slow], (), now_us=NOW_US + SECOND)
    _wait_until_woken(received_wakes, "first")
    store.settle([Correction(fast.bucket, fast.algorithm, NOW_US, 11 * fast.algorithm.size)], NOW_US + SECOND)
    held = _decide(store, "first", slow, fast, at_us=NOW_US + SECOND)
    assert held.kept is not None
    assert held.kept.claim == 1
    # The unit of the scarcer limit is kept for it while it waits for the other one.
    assert _decide(store, "second", slow, fast, at_us=NOW_US + SECOND).reason is not Reason.ALLOWED
    assert store.decide([slow], WITHOUT_JOB, NOW_US + SECOND).reason is not Reason.ALLOWED
    store.forget([fast], (), now_us=NOW_US + SECOND + 250_000)
    assert _decide(store, "first", slow, fast, at_us=NOW_US + SECOND + 300_000).reason is Reason.ALLOWED


def test_a_job_denied_by_a_full_queue_waits_nowhere(store: Any) -> None:
    """If the queue of one limit is full, the units of the other are returned, and no waitlist has the job."""
    slow, full = _claim(SLOW), _claim(FAST)
    store.pause([full], 60 * SECOND, NOW_US)
    assert _decide(store, "one", full).kept is not None
    bounded = StoreClaim(full.bucket, full.algorithm, 1, max_queue=1)
    assert _decide(store, "two", slow, bounded).reason is Reason.FULL
    assert store.where([slow, bounded], "two", NOW_US) is None
    assert _decide(store, "three", slow).reason is Reason.ALLOWED


def test_a_peek_returns_the_limit_that_denies_and_charges_nothing(store: Any) -> None:
    """Of two paused limits, a peek returns the one that is paused for longer."""
    slow, fast = _claim(SLOW), _claim(FAST)
    store.pause([slow], 2 * SECOND, NOW_US)
    store.pause([fast], 9 * SECOND, NOW_US)
    peek = store.decide([slow, fast], Requester(Caller.PEEK), NOW_US)
    assert (peek.reason, peek.claim) == (Reason.PAUSED, 1)
    store.pause([slow, fast], None, NOW_US + SECOND)
    assert store.decide([slow, fast], Requester(Caller.PEEK), NOW_US + SECOND).allowed
    assert _decide(store, "one", slow, fast, at_us=NOW_US + SECOND).reason is Reason.ALLOWED


def test_an_answer_has_the_wait_of_the_job_in_any_store(store: Any, received_wakes: Callable[[], list[str]]) -> None:
    """The wait counts from the first denial, with the number of denials, whichever waitlist the job is on."""
    slow, fast = _claim(SLOW), _claim(FAST)
    _decide(store, "zero", slow)
    assert _decide(store, "one", slow, fast).waited == Waited(0, 1, 0)
    assert _decide(store, "one", slow, fast, at_us=NOW_US + 200_000).waited == Waited(200_000, 2, 0)
    assert store.where([slow, fast], "one", NOW_US + 300_000).for_us == 300_000
    store.pause([fast], 2 * SECOND, NOW_US)
    store.forget([slow], (), now_us=NOW_US + SECOND)
    _wait_until_woken(received_wakes, "one")
    # The scarcer limit grants before the other one denies, so its entry is created again.
    assert _decide(store, "one", slow, fast, at_us=NOW_US + SECOND).waited == Waited(SECOND, 3, 1)
    assert store.where([slow], "one", NOW_US + SECOND).for_us == SECOND
    store.forget([fast], (), now_us=NOW_US + 3 * SECOND)
    answer = _decide(store, "one", slow, fast, at_us=NOW_US + 3 * SECOND)
    assert (answer.reason, answer.waited) == (Reason.ALLOWED, Waited(3 * SECOND, 3, 1))


def test_a_waitlist_that_lost_its_entries_gets_the_wait_of_a_job(store: Any) -> None:
    """The wait of a job is copied from its other waitlist, although its process does not send it."""
    slow, fast = _claim(SLOW), _claim(FAST)
    _decide(store, "zero", slow)
    _decide(store, "one", slow, fast)
    store.clear_waitlists([fast.bucket])
    assert store.where([fast], "one", NOW_US) is None
    _decide(store, "one", slow, fast, at_us=NOW_US + 200_000)
    assert store.where([fast], "one", NOW_US + 300_000).for_us == 300_000


def test_a_full_queue_accepts_a_job_that_waited_in_another_store(
    store: Any, received_wakes: Callable[[], list[str]]
) -> None:
    """A job that waited is accepted, although its process does not know it and the queue has lost its entry."""
    slow, full = _claim(SLOW), _claim(FAST)
    bounded = StoreClaim(full.bucket, full.algorithm, 1, max_queue=1)
    _decide(store, "zero", slow)
    assert _decide(store, "one", slow, bounded).waited == Waited(0, 1, 0)
    store.clear_waitlists([full.bucket])
    store.pause([full], 60 * SECOND, NOW_US)
    assert _decide(store, "other", bounded).kept is not None
    store.forget([slow], (), now_us=NOW_US + SECOND)
    _wait_until_woken(received_wakes, "one")
    answer = _decide(store, "one", slow, bounded, at_us=NOW_US + SECOND)
    assert (answer.reason, answer.waited) == (Reason.PAUSED, Waited(SECOND, 2, 1))
    assert _decide(store, "new", slow, bounded, at_us=NOW_US + SECOND).reason is Reason.FULL


class _SlowReturns:
    """A store in front of another. Before it returns units, *gap_us* pass on the clock, and *meanwhile* runs."""

    def __init__(self, inner: Any, gap_us: int, meanwhile: Callable[[int], object]) -> None:
        self.inner, self._gap_us, self._meanwhile = inner, gap_us, meanwhile

    def decide(self, *args: Any, **options: Any) -> Any:
        return self.inner.decide(*args, **options)

    def return_units(self, charges: Any, requester: Any, now_us: int | None = None) -> None:
        self._meanwhile(NOW_US + self._gap_us)
        self.inner.return_units(charges, requester, NOW_US + self._gap_us)


@pytest.mark.parametrize("kind", ["memory", "redis"])
@pytest.mark.parametrize("gap_us", [0, 200_000, 400_000, 2_000_000])
def test_returned_units_never_exceed_the_burst(kind: str, gap_us: int, request: pytest.FixtureRequest) -> None:
    """If a bucket fills while 4 of its units are charged and then returned, no more than the burst is granted."""
    with contextlib.ExitStack() as stack:
        one, two = _store(kind, request, stack), MemoryStore()
        scarce, other = _claim(TokenBucket("scarce", "10/s", burst=10), 4), _claim(TokenBucket("x", "100/s", burst=1))
        granted_units: list[int] = []

        def take_all(at_us: int) -> None:
            single = _claim(TokenBucket("scarce", "10/s", burst=10))
            while one.decide([single], WITHOUT_JOB, at_us).allowed:
                granted_units.append(1)

        two.pause([other], 60 * SECOND, NOW_US)
        parts = [Part(two, [1]), Part(_SlowReturns(one, gap_us, take_all), [0])]
        decide_in_parts(parts, [scarce, other], Requester(Caller.JOB, "one", "p"), NOW_US)
        take_all(NOW_US + gap_us)
        assert len(granted_units) == 10
        one.close()


_WINDOW, _HELD = _claim(FixedWindow("window", "5/min")), _claim(SLOTS, holder="job#0")


@pytest.mark.parametrize(
    ("other_claim", "owner", "early_ms", "granted"),
    [
        (_WINDOW, "p", 4, False),
        (_WINDOW, late_owner(2.1), 4, False),
        (_claim(FAST), "p", 4, True),
        (_claim(FAST), late_owner(2.1), 4, True),
        (_claim(FAST), late_owner(2.1), 100, False),
        (_HELD, "p", 4, True),
        (_HELD, late_owner(2.1), 100, True),
    ],
)
def test_a_window_of_another_store_is_charged_at_most_5_ms_early(
    other_claim: StoreClaim, owner: str, early_ms: int, granted: bool
) -> None:
    """A bucket grants a job that was woken a little early, although another store counts its unit from now on."""
    one, two = MemoryStore(), MemoryStore()
    stop = one.listen("p", lambda bucket, wakes: None)
    bucket = _claim(SLOW)
    _decide(one, "zero", bucket)
    requester = Requester(Caller.JOB, "job", owner)
    assert not one.decide([bucket], requester, NOW_US).allowed
    at_us = NOW_US + SECOND - early_ms * 1000
    one.look(bucket, "p", 1, (), NOW_US + SECOND - 30_000 if owner == "p" else at_us)
    parts = [Part(one, [0]), Part(two, [1])]
    assert decide_in_parts(parts, [bucket, other_claim], requester, at_us, in_order=True).allowed is granted
    if not granted:
        assert one.decide([bucket], requester, at_us).allowed, "without the other store the job is granted"
    stop()


def test_a_part_with_several_limits_keeps_the_positions_of_a_job(request: pytest.FixtureRequest) -> None:
    """If two limits of a cluster grant, and one elsewhere denies, the job stays before later jobs on both waitlists."""
    with contextlib.ExitStack() as stack:
        one, two = _store("cluster", request, stack), MemoryStore()
        stack.callback(one.close)
        rare, often = (_claim(TokenBucket(name, rate, burst=1)) for name, rate in (("rare", "1/s"), ("often", "2/s")))
        elsewhere = _claim(FAST)
        for each in (rare, often):
            _decide(one, "zero", each)
        claims = [rare, often, elsewhere]
        parts = [Part(one, [0, 1]), Part(two, [2])]
        requester = Requester(Caller.JOB, "first", "~50")
        assert not decide_in_parts(parts, claims, requester, NOW_US, in_order=True).allowed
        assert not one.decide([rare, often], Requester(Caller.JOB, "second", "~50"), NOW_US).allowed
        two.pause([elsewhere], 60 * SECOND, NOW_US)
        at_us = NOW_US + SECOND
        answer = decide_in_parts(parts, claims, requester, at_us, in_order=True)
        assert (answer.reason, answer.claim) == (Reason.PAUSED, 2)
        for each in (rare, often):
            waiting = one.list_waiting(each)
            assert one.where([each], "first", at_us).position == 0, waiting
            assert one.decide([each], Requester(Caller.PEEK), at_us).uses[0].full_us <= at_us, "its units are returned"


def test_a_job_reserves_positions_on_lists_of_any_store(store: Any) -> None:
    """Positions are reserved in several hash slots of a cluster too, although a script reaches only one of them."""
    slow, fast = _claim(SLOW), _claim(FAST)
    store.return_units([Charge(slow), Charge(fast)], Requester(Caller.JOB, "one", "~50", waited=Waited(0, 1)), NOW_US)
    for each in (slow, fast):
        found = store.where([each], "one", NOW_US)
        assert (found.state, found.position) == (State.KEPT, 0)


@pytest.mark.parametrize("waits", [False, True])
def test_a_lost_grant_is_not_repeated_in_a_pause(store: Any, waits: bool) -> None:
    """A job whose grant was lost waits until the pause is over, whether other jobs wait or not."""
    claim = _claim(TokenBucket("slow", "1/s", burst=2))
    requester = Requester(Caller.JOB, "job", "p")
    _decide(store, "zero", _claim(TokenBucket("slow", "1/s", burst=2), 2))
    store.decide([claim], requester, NOW_US, attempt="01")
    if waits:
        _decide(store, "other", claim)
    end = store.listen("p", lambda bucket, wakes: None, lambda: None)
    at_us = NOW_US + SECOND
    store.look(claim, "p", 1, (), at_us)
    assert store.decide([claim], requester, at_us, attempt="02").allowed
    assert store.decide([claim], requester, at_us + 1000, attempt="02").allowed, "the same grant"
    store.pause([claim], 60 * SECOND, at_us + 2000)
    assert store.decide([claim], requester, at_us + 3000, attempt="02").reason is Reason.PAUSED
    end()
