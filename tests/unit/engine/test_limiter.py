"""The verbs: what reaches the store, and what is returned."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest

from support.hearing import Deferrals
from support.servers.blocking import either
from support.servers.stores import Passing, Recording
from support.waiting import wait_until
from throttlekit import (
    AsyncLimiter,
    Concurrency,
    ConfigurationError,
    CostExceedsLimit,
    Delivery,
    Job,
    LeakyBucket,
    Limit,
    Limiter,
    TokenBucket,
)
from throttlekit._core.claim import UNIT
from throttlekit._core.serialize import dump, load
from throttlekit._engine.call import Call
from throttlekit.stores import MemoryStore, Request, Store
from throttlekit.testing import FakeClock

PARTNER = TokenBucket("partner", "10/s", burst=5)
ONE = TokenBucket("one", "10/s", burst=1)
SLOW = TokenBucket("slow", "1/minute", burst=1)
ACCOUNT = TokenBucket("account", "10/s", burst=1, key="{account_id}")


class Recorder(Recording):
    """A memory store that records its requests and resets."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(MemoryStore(clock_us=clock))
        self.reset_names: list[str] = []

    @property
    def requests(self) -> list[Request]:
        return [request for request, _ in self.asked]

    def reset(self, names: Sequence[str]) -> None:
        self.reset_names += names
        self.inner.reset(names)


@pytest.fixture
def store(clock: FakeClock) -> Recorder:
    return Recorder(clock)


@pytest.fixture(params=["sync", "async"])
def limiter(request: pytest.FixtureRequest, store: Recorder) -> Iterator[Limiter]:
    with either(request.param, store) as limiter:
        yield limiter


def job(id: str = "1", /, **kwargs: Any) -> Job:
    return Job(id=id, name="call_partner", kwargs=kwargs)


def bucket(limit: Limit, key: str = "") -> str:
    return f"tk1:{{{limit.name}:{key}}}:{limit.fingerprint}"


def names(request: Request) -> list[str]:
    return [claim.bucket for claim in request.claims]


def test_grant_states_what_is_left(limiter: Limiter) -> None:
    """A grant has no delay, and states what remains and when all units are back."""
    decision = limiter.acquire(PARTNER, cost=2)
    assert decision.allowed
    assert (decision.limit, decision.key, decision.cost, decision.reason) == (PARTNER, "", 2, "allowed")
    assert (decision.remaining, decision.retry_after, decision.delay, decision.reset_after) == (3, 0.0, 0.0, 0.2)


def test_denial_states_when_to_retry(limiter: Limiter) -> None:
    """A denied job gets its own retry time, and the time without other waiting jobs."""
    limiter.acquire(PARTNER, cost=5)
    limiter.acquire(PARTNER, job=job())
    decision = limiter.acquire(PARTNER, job=job("2"))
    assert not decision.allowed
    assert (decision.remaining, decision.retry_after, decision.delay, decision.reset_after) == (0, 0.2, 0.2, 0.5)


def test_grant_reports_the_limit_with_least_left(limiter: Limiter) -> None:
    """Of several limits, a grant reports the one with the smallest share left."""
    assert limiter.acquire(PARTNER, ONE).limit is ONE
    limiter.reset(ONE)
    limiter.acquire(PARTNER, cost=3)
    assert limiter.acquire(TokenBucket("wide", "1/s", burst=100), PARTNER).limit is PARTNER


def test_denial_reports_the_binding_limit(limiter: Limiter) -> None:
    """Of several limits, a denial reports the one that admits last, with its key and cost."""
    limiter.acquire(SLOW, ACCOUNT, key=42)
    decision = limiter.acquire(ACCOUNT, SLOW, key=42)
    assert (decision.limit, decision.key, decision.delay) == (SLOW, "", 60.0)
    limiter.reset(SLOW)
    decision = limiter.acquire(PARTNER, ACCOUNT, key=42)
    assert (decision.limit, decision.key) == (ACCOUNT, "42")


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"job": job(account_id=42)}, "42"),
        ({"job": Job(args=(7,), function=lambda account_id: None)}, "7"),
        ({"key": 9}, "9"),
        ({"key": "nine"}, "nine"),
        ({"key": 9, "job": job(account_id=42)}, "9"),
    ],
)
def test_key_comes_from_the_job_or_is_given(
    limiter: Limiter, store: Recorder, arguments: dict[str, Any], key: str
) -> None:
    """A key is derived from the job's arguments, or given instead."""
    limiter.acquire(ACCOUNT, **arguments)
    assert names(store.requests[0]) == [bucket(ACCOUNT, key)]


@pytest.mark.parametrize("key", [None, 1.5, True, ["a"]])
def test_invalid_key_is_refused(limiter: Limiter, key: Any) -> None:
    """A limit with a key is not decided without one."""
    with pytest.raises(ConfigurationError):
        limiter.acquire(ACCOUNT, key=key)


@pytest.mark.parametrize("verb", ["acquire", "peek"])
def test_cost_may_be_given(limiter: Limiter, verb: str) -> None:
    """A given cost replaces every limit's own."""
    assert getattr(limiter, verb)(TokenBucket("a", "10/s", burst=5, cost=2), PARTNER, cost=4).cost == 4


@pytest.mark.parametrize("cost", [-1, 1.5, True, "1", lambda job: 1])
def test_invalid_cost_is_an_error(limiter: Limiter, cost: Any) -> None:
    """A cost is a whole number of at least 0."""
    with pytest.raises(ConfigurationError, match="limit 'partner'"):
        limiter.acquire(PARTNER, cost=cost)


@pytest.mark.parametrize("verb", ["acquire", "peek", "reset"])
@pytest.mark.parametrize(
    ("limits", "arguments", "message"),
    [
        ((), {}, "no limit was given"),
        (("partner",), {}, "'partner' is not a limit: write TokenBucket"),
        ((None,), {}, "None is not a limit: write TokenBucket"),
        ((TokenBucket,), {}, "the class TokenBucket is not a limit: write TokenBucket"),
        (([PARTNER, ONE],), {}, r"pass them one by one: acquire\(a, b\)"),
        ((PARTNER, PARTNER), {}, "limit 'partner' was given twice"),
        ((PARTNER, ONE, PARTNER), {}, "limit 'partner' was given twice"),
        ((PARTNER,), {"job": {"id": 1}}, "job must be a throttlekit.Job, not dict"),
        ((PARTNER, ONE), {"key": 42}, "limit 'partner' has no key: drop key="),
    ],
)
def test_invalid_arguments_are_an_error(
    limiter: Limiter, store: Recorder, verb: str, limits: Any, arguments: dict[str, Any], message: str
) -> None:
    """Every verb reports a mistake in the code, with its remedy; no request is made."""
    with pytest.raises(ConfigurationError, match=message):
        getattr(limiter, verb)(*limits, **arguments)
    assert (store.requests, store.reset_names) == ([], [])


@pytest.mark.parametrize("store", [None, b"redis://s3cret@host", 5, MemoryStore, object()])
def test_invalid_store_is_an_error(store: Any) -> None:
    """An invalid store is refused when the limiter is created, and not repeated: it may contain a password."""
    with pytest.raises(ConfigurationError, match='is not a store: give a URL like "redis://host:6379/0"') as caught:
        Limiter(store)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("name", [name for name in vars(Store) if not name.startswith("_")])
def test_store_must_have_each_method(name: str) -> None:
    """A store that lacks one method of `Store` is refused when the limiter is created; the error names the method."""
    incomplete = type("Incomplete", (MemoryStore,), {name: None})()
    with pytest.raises(ConfigurationError, match=f"Incomplete is not a store: .* that also has the methods {name}$"):
        Limiter(incomplete)


@pytest.mark.parametrize("scheme", ["redis", "rediss", "valkey", "valkeys"])
@pytest.mark.parametrize("address", ["h/notadb", "h/0/1", "h/-1", ":s3cr/et@h/0"])
def test_database_must_be_a_number(scheme: str, address: str) -> None:
    """A path that is not a number would silently be database 0; the URL is not repeated."""
    pytest.importorskip("redis")
    with pytest.raises(ConfigurationError, match="number of a database") as caught:
        Limiter(f"{scheme}://{address}")
    assert "s3cr" not in str(caught.value)


def test_one_name_has_one_definition(limiter: Limiter) -> None:
    """Two definitions under one name are a mistake, if a limit was used, declared or has tiers. One may be repeated."""
    for cost in (3, 2):
        limiter.acquire(PARTNER, cost=cost)
    assert not limiter.acquire(TokenBucket("partner", (10, 1), burst=5))
    limiter.declare(ONE, ONE)
    tiers = TokenBucket("tiers", {"free": "1/s", "pro": "2/s"}, tier="{plan}")
    for plan in ("free", "pro", "free"):
        limiter.peek(tiers, job=job(plan=plan))
    for other in (
        TokenBucket("partner", "11/s", burst=5),
        TokenBucket("one", "10/s", burst=2),
        TokenBucket("tiers", {"free": "1/s", "pro": "3/s"}, tier="{plan}"),
    ):
        with pytest.raises(ConfigurationError, match=f"the name '{other.name}' is used for two limits"):
            limiter.peek(other, job=job(plan="free"))
        with pytest.raises(ConfigurationError):
            limiter.declare(other)


def test_limiters_share_a_count_only_with_a_shared_store(clock: FakeClock) -> None:
    """Two limiters in memory count separately, as documented, and together if they use one store."""
    own = TokenBucket("own", "1/h", scope="process")
    assert [Limiter().acquire(PARTNER, cost=5).allowed for _ in range(2)] == [True, True]
    store = MemoryStore(clock_us=clock)
    assert [Limiter(store).acquire(PARTNER, cost=5).allowed for _ in range(2)] == [True, False]
    assert [Limiter(store).acquire(own).allowed for _ in range(2)] == [True, True]


def test_limits_of_one_call_are_garbage_collected(limiter: Limiter) -> None:
    """A limit that is created for each call may change its rate between calls, and uses no memory afterwards."""
    made: list[weakref.ref[Any]] = []
    for number in range(3000):
        for tenant in ("t", f"t{number}"):
            limit = TokenBucket(tenant, f"{number + 1}/s")
            assert limiter.acquire(limit).limit.amount == number + 1
            made.append(weakref.ref(limit))
    gc.collect()
    assert sum(each() is not None for each in made) < 2000


@pytest.mark.parametrize("use", ["acquire", "declare"])
def test_name_is_free_when_its_limit_is_gone(limiter: Limiter, use: str) -> None:
    """A limit that was used repeatedly, or declared, owns its name for as long as it lives, and no longer."""
    old = TokenBucket("again", "10/s")
    for _ in range(3):
        getattr(limiter, use)(old)
    with pytest.raises(ConfigurationError, match="the name 'again' is used for two limits"):
        limiter.acquire(TokenBucket("again", "11/s"))
    del old

    def is_free() -> bool:
        gc.collect()
        with suppress(ConfigurationError):
            return limiter.acquire(TokenBucket("again", "11/s")).allowed
        return False

    # A thread that called for an event loop releases the limit a moment after its answer.
    wait_until(is_free, description="the name is free")


def test_repeated_call_may_have_other_arguments(limiter: Limiter) -> None:
    """Each call is decided by its own key, cost and job, whatever the calls before it requested."""
    for number in range(5):
        assert limiter.acquire(ACCOUNT, key="a").key == "a"
        assert limiter.acquire(ACCOUNT, key="b", cost=0).cost == 0
        assert limiter.peek(ACCOUNT, key="b").charged == ()
        assert limiter.acquire(PARTNER, cost=0).cost == 0
        decision = limiter.acquire(PARTNER, ACCOUNT, job=job(account_id=number))
        assert [each.bucket for each in decision.charged] == [bucket(PARTNER), bucket(ACCOUNT, str(number))]
        with pytest.raises(ConfigurationError, match="key"):
            limiter.acquire(ACCOUNT)


def test_keys_are_cached_up_to_a_bound() -> None:
    """A repeated call finds its claims in the cache. With many keys, the cache does not grow."""
    limiter = Limiter("memory://")
    resolver = limiter._resolver
    for _ in range(3):
        limiter.acquire(ACCOUNT, key="often")
    assert list(resolver.questions) == [(id(ACCOUNT), "often")]
    for number in range(3000):
        for _ in range(4):
            limiter.acquire(ACCOUNT, key=f"often-{number}")
    assert len(resolver.questions) <= 1024
    assert len(resolver._known) <= 1024


@pytest.mark.parametrize("limits", [[Concurrency("slots", 4)], [TokenBucket("rate", "9/s"), Concurrency("slots", 4)]])
def test_repeated_call_takes_a_slot_of_its_own(limiter: Limiter, limits: list[Limit]) -> None:
    """The cache of calls has no holders: otherwise the second call would be granted the slot of the first."""
    assert [bool(limiter.acquire(*limits)) for _ in range(6)] == 4 * [True] + 2 * [False]


def test_limit_from_a_message_may_differ_from_the_declared(limiter: Limiter) -> None:
    """A limit by value is used as it arrives: its sender may run another release."""
    limiter.declare(PARTNER)
    sent = load(dump(TokenBucket("partner", "11/s", burst=7), Job()))
    assert limiter.acquire(sent).remaining == 6
    limiter.declare(PARTNER)


def test_peek_changes_nothing(limiter: Limiter, store: Recorder) -> None:
    """A peek returns what acquire would, any number of times."""
    assert [limiter.peek(ONE).allowed for _ in range(3)] == [True] * 3
    assert len(store.inner) == 0


def test_reset_forgets_a_bucket(limiter: Limiter, store: Recorder) -> None:
    """A reset forgets what was counted under the key, and under no other."""
    limiter.acquire(ACCOUNT, key=1)
    limiter.acquire(ACCOUNT, key=2)
    limiter.acquire(ACCOUNT, key=3)
    limiter.reset(ACCOUNT, key=1)
    limiter.reset(ACCOUNT, PARTNER, job=job(account_id=3))
    assert [limiter.peek(ACCOUNT, key=key).allowed for key in (1, 2, 3)] == [True, False, True]
    assert store.reset_names == [bucket(ACCOUNT, "1"), bucket(ACCOUNT, "3"), bucket(PARTNER)]


def test_redelivered_job_keeps_its_position(limiter: Limiter, clock: FakeClock) -> None:
    """A job is found by its id, and is granted at its time, ahead of later ones."""
    limiter.acquire(PARTNER, cost=5)
    first = limiter.acquire(PARTNER, job=job())
    limiter.acquire(PARTNER, job=job("2"))
    clock.advance(first.delay)
    for verb in (limiter.peek, limiter.acquire):
        assert verb(PARTNER, job=job("3")).reason == "in line"
    assert limiter.peek(PARTNER, job=job())
    assert limiter.acquire(PARTNER, job=job())


def test_longest_delay_caps_and_keeps_the_position(limiter: Limiter, clock: FakeClock) -> None:
    """A delay is capped by what the framework supports; the job is redelivered early and keeps its position."""
    delivery, roomy = Delivery(longest=25), TokenBucket("roomy", "1/minute", burst=2)
    limiter.acquire(roomy, cost=2)
    delays = list[float]()
    while not (decision := limiter.acquire(roomy, job=job(), delivery=delivery)):
        delays.append(decision.delay)
        clock.advance(decision.delay)
    assert delays == [25.0, 25.0, 10.0]


def test_max_wait_ends_the_wait(limiter: Limiter, clock: FakeClock) -> None:
    """A job past its max_wait gets the reason "waited too long"."""
    delivery = Delivery(max_wait=45)
    limiter.acquire(SLOW)
    first = limiter.acquire(SLOW, job=job(), delivery=delivery)
    assert first.delay == 45.0
    clock.advance(45)
    last = limiter.acquire(SLOW, job=job(), delivery=delivery)
    assert (last.allowed, last.reason, last.delay) == (False, "waited too long", 0.0)


def test_max_deferrals_ends_the_wait(limiter: Limiter, clock: FakeClock) -> None:
    """A job that was denied `max_deferrals` times gets that reason at the next denial, and leaves its waitlist."""
    delivery = Delivery(max_deferrals=2, longest=10)
    limiter.acquire(SLOW)
    reasons = [limiter.acquire(SLOW, job=job(), delivery=delivery).reason for _ in range(3)]
    assert reasons == ["exhausted", "exhausted", "waited too long"]
    assert limiter.acquire(SLOW, job=job("2"), delivery=Delivery(lateness=0)).delay == pytest.approx(60, abs=0.01)


def test_job_may_be_granted_after_its_max_wait(limiter: Limiter, clock: FakeClock) -> None:
    """A job that can run runs, however long it has waited: only denials end its wait."""
    delivery = Delivery(max_wait=1, max_deferrals=1)
    limiter.acquire(SLOW)
    limiter.acquire(SLOW, job=job(), delivery=delivery)
    clock.advance(60)
    assert limiter.acquire(SLOW, job=job(), delivery=delivery)


@pytest.mark.parametrize(
    ("limit", "delay"),
    [
        (SLOW, 59.95),
        (TokenBucket("roomy", "1/minute", burst=2), 60.0),
        (TokenBucket("room-for-it", "10/s", burst=2), 0.1),
    ],
)
def test_tight_limits_request_early_delivery(limiter: Limiter, limit: TokenBucket, delay: float) -> None:
    """If the limit cannot keep a unit during a late delivery, the delay is a little shorter."""
    limiter.acquire(limit, cost=limit.burst)
    assert limiter.acquire(limit, job=job(), delivery=Delivery()).delay == delay


# A queue


@pytest.mark.parametrize("queue", [0, 1, 2, 5, 20])
@pytest.mark.parametrize("lateness", [0.05, 0.0])
def test_queue_limits_the_number_of_waiting_jobs(limiter: Limiter, queue: int, lateness: float) -> None:
    """The job that finds a full queue is refused at once: it gets no position and is not deferred."""
    even, delivery = LeakyBucket("even", "1/s", queue=queue), Delivery(lateness=lateness)
    assert limiter.acquire(even, job=job("first"), delivery=delivery)
    waiting = [limiter.acquire(even, job=job(str(n)), delivery=delivery) for n in range(queue)]
    assert {decision.reason for decision in waiting} <= {"exhausted"}
    for _ in range(3):
        refused = limiter.acquire(even, job=job("late"), delivery=delivery)
        assert (refused.allowed, refused.reason, refused.final) == (False, "queue full", True)
        assert refused.delay == 0.0
        assert refused.retry_after >= queue


def test_refusal_is_not_reported_as_a_deferral(store: Recorder) -> None:
    """A refused job is not redelivered, so listeners are not notified of a deferral."""
    deferrals, even = Deferrals(), LeakyBucket("even", "1/s", queue=0)
    limiter = Limiter(store, plugins=[deferrals])
    limiter.acquire(even)
    assert limiter.acquire(even, job=job()).final
    assert deferrals.events == []


def test_too_high_cost_of_a_call_names_the_limit(limiter: Limiter, store: Recorder) -> None:
    """A cost in the call must fit every limit; the error names the one it does not fit, with its remedy."""
    with pytest.raises(CostExceedsLimit, match=r"limit 'even' can never admit a cost of 2.*use a TokenBucket"):
        limiter.acquire(PARTNER, LeakyBucket("even", "1/s"), cost=2)
    assert store.requests == []


@pytest.mark.parametrize("make", [Limiter, AsyncLimiter])
@pytest.mark.parametrize("do", [pickle.dumps, copy.copy, copy.deepcopy], ids=lambda do: str(do.__name__))
def test_a_limiter_cannot_be_pickled(make: Callable[[], object], do: Callable[[object], object]) -> None:
    """A limiter has connections, threads and locks: the error says what to do."""
    with pytest.raises(TypeError, match="cannot be pickled or copied: make one in each process"):
        do(make())


def test_limiter_as_a_context_manager_is_closed_at_the_end() -> None:
    """A limiter is closed like an `AsyncLimiter`, also when the block fails."""
    closed: list[bool] = []

    class Closing(Passing):
        inner = MemoryStore()

        def close(self) -> None:
            closed.append(True)

    with Limiter(Closing()) as limiter:
        assert limiter.acquire(TokenBucket("rate", "1/s"))
    with pytest.raises(ZeroDivisionError), limiter:
        raise ZeroDivisionError
    assert closed == [True, True]


def test_a_call_without_a_job_is_one_tenant_of_a_shared_limit() -> None:
    """The call gets its turn among the tenants, and is not behind all of them; so does a job of a nameless tenant."""
    shared = TokenBucket("shared", "10/s", burst=1, share="{tenant}")
    with Limiter("memory://") as limiter:
        for job in (None, Job(id="1", kwargs={"tenant": ""}), None):
            (claim,) = limiter.claims(Call((shared,), job))
            assert (claim.claim.tenant, claim.claim.step) == ("", UNIT)
        (claim,) = limiter.claims(Call((ONE,)))
        assert claim.claim.step == 0
