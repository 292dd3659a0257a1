"""A job whose body received a 429: its key is paused, and the job waits behind the pause, ahead of all others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from support.servers.stores import Passing
from throttlekit import (
    Adapt,
    ByLatency,
    Concurrency,
    ConfigurationError,
    Decision,
    Delivery,
    Job,
    Limit,
    Limiter,
    RateLimited,
    TokenBucket,
)
from throttlekit._core.algorithms.concurrency import Holders
from throttlekit._core.answer import Answer
from throttlekit._core.storage_keys import wait_names
from throttlekit._core.waitlist import Waitlist
from throttlekit._engine.pipeline import History
from throttlekit._util.log_limiter import Every
from throttlekit._wiring import wiring_of
from throttlekit.adapter import Run, check_on_429, name_of
from throttlekit.adapter.body import running
from throttlekit.adapter.rate_limited import deny_after_429
from throttlekit.errors import StoreUnavailable
from throttlekit.stores import MemoryStore, StoreClaim
from throttlekit.testing import FakeClock

PARTNER = TokenBucket("partner", "1/s", burst=5)
ACCOUNT = TokenBucket("account", "10/s", burst=5, key="{account}")
SLOTS = Concurrency("slots", 2)
JOB = Job(id="7", kwargs={"account": 42})
PLAIN = Delivery()


class UnreliableStore(Passing):
    """A memory store that is unavailable for the verbs in `away`."""

    def __init__(self, clock: FakeClock) -> None:
        self.inner = MemoryStore(clock_us=clock)
        self.away: set[str] = set()
        self.calls: list[str] = []

    def _call(self, verb: str) -> None:
        self.calls.append(verb)
        if verb in self.away:
            raise StoreUnavailable("away", part=None)

    def decide(self, claims: Any, requester: Any, now_us: int | None = None, *, attempt: str = "") -> Answer:
        self._call("acquire")
        return super().decide(claims, requester, now_us, attempt=attempt)

    def settle(self, corrections: Any, now_us: int | None = None) -> None:
        self._call("settle")
        super().settle(corrections, now_us)

    def pause(self, claims: Any, for_us: int | None, now_us: int | None = None, *, emptied: bool = False) -> None:
        self._call("pause")
        super().pause(claims, for_us, now_us, emptied=emptied)


@pytest.fixture
def store(clock: FakeClock) -> UnreliableStore:
    return UnreliableStore(clock)


@pytest.fixture
def limiter(store: UnreliableStore, clock: FakeClock) -> Limiter:
    limiter = Limiter(store)
    wiring_of(limiter).pipeline.history = History(clock_us=clock)
    return limiter


def paused(limiter: Limiter) -> set[str]:
    peeked = [limiter.peek(limit, job=JOB) for limit in (PARTNER, ACCOUNT, SLOTS)]
    return {decision.limit.name for decision in peeked if decision.reason == "paused"}


def refuse(
    limiter: Limiter,
    error: RateLimited,
    limits: Sequence[Limit],
    job: Job = JOB,
    delivery: Delivery = PLAIN,
    on_429: Any = None,
) -> Decision:
    """Deny *job* after a 429. No slot is released, because `run_body` has released those of the job."""
    run = Run(job, tuple(limits), None, delivery, name_of(on_429))
    return deny_after_429(limiter, run, error, release=lambda: None)


def run_body(limiter: Limiter, *limits: Any) -> None:
    """Acquire *limits*, and release the slots, as after the job's body."""
    decision = limiter.acquire(*limits, job=JOB)
    assert decision.allowed
    limiter.release(decision)


@pytest.mark.parametrize(
    ("named", "on_429", "expected"),
    [
        (None, None, {"partner", "account"}),
        (PARTNER, None, {"partner"}),
        ("account", None, {"account"}),
        ("slots", None, {"slots"}),
        (None, PARTNER, {"partner"}),
        (None, "account", {"account"}),
        ("account", PARTNER, {"account"}),
        ("unknown", PARTNER, {"partner"}),
        ("unknown", None, {"partner", "account"}),
    ],
)
def test_named_limit_or_all_rates_are_paused(limiter: Limiter, named: Any, on_429: Any, expected: set[str]) -> None:
    """A 429 pauses the limit that the error names, otherwise the job's setting, otherwise all of its rate limits."""
    limits = (SLOTS, PARTNER, ACCOUNT)
    run_body(limiter, *limits)
    decision = refuse(limiter, RateLimited(30, limit=named), limits, on_429=on_429)
    assert not decision.allowed
    assert paused(limiter) == expected


def test_unknown_name_is_logged(
    limiter: Limiter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A name that no limit of the job has is probably misspelt. A warning says so, because other limits are paused."""
    monkeypatch.setattr("throttlekit.adapter.rate_limited._unknown_limit", Every())
    run_body(limiter, PARTNER)
    for name in ("partner", "partnr"):
        refuse(limiter, RateLimited(30, limit=name), [PARTNER])
    warnings = [each.getMessage() for each in caplog.records if "RateLimited" in each.getMessage()]
    assert warnings == [
        "RateLimited names limit 'partnr', which job 7 does not have: other limits of the job are paused."
    ]


def test_adaptive_rate_slows_down_once_for_all_earlier_grants(
    limiter: Limiter, clock: FakeClock, store: UnreliableStore
) -> None:
    """Four bodies receive a 429 in one overload: the first slows the rate down, and the others only pause."""
    adapts = TokenBucket("adapts", "100/s", burst=5, adapt=Adapt("10/s", span=10))
    decisions = [limiter.acquire(adapts, PARTNER, job=replace(JOB, id=str(number))) for number in range(4)]
    for number, decision in enumerate(decisions):
        clock.advance(0.001)
        with running(limiter, decision):
            job = replace(JOB, id=str(number))
            refuse(limiter, RateLimited(0.5), [adapts, PARTNER], job)
    waitlist = store.inner._get(wait_names(decisions[0].charged[0].bucket)[0], clock())
    assert isinstance(waitlist, Waitlist)
    assert waitlist.slow is not None
    assert (waitlist.slow.top, waitlist.slow.part(clock())) == (950_000, 760_000)
    partner = store.inner._get(wait_names(decisions[0].charged[1].bucket)[0], clock())
    assert isinstance(partner, Waitlist)
    assert partner.slow is None, "the limit has no adapt="


@pytest.mark.parametrize(("named", "slots"), [(None, 3), (PARTNER, 4), ("llm", 3)])
def test_adaptive_slots_decrease_besides_the_pause(
    limiter: Limiter, clock: FakeClock, store: UnreliableStore, named: Any, slots: int
) -> None:
    """A 429 is a drop, once per overload, unless it names another limit; slots are paused only by name."""
    llm = Concurrency("llm", 9, adapt=ByLatency(2))
    for _ in range(17):
        held = [limiter.acquire(llm), limiter.acquire(llm)]
        clock.advance(0.1)
        for each in held:
            limiter.release(each)
    decisions = [limiter.acquire(llm, PARTNER, job=replace(JOB, id=str(number))) for number in range(3)]
    for decision in decisions:
        clock.advance(0.001)
        with running(limiter, decision):
            refuse(limiter, RateLimited(0, limit=named), [llm, PARTNER])
    held_now = store.inner._get(decisions[0].charged[0].bucket, clock())
    assert isinstance(held_now, Holders)
    assert held_now.gauge is not None
    assert held_now.gauge.slots == slots


def test_job_waits_behind_the_pause_ahead_of_new_ones(limiter: Limiter, clock: FakeClock) -> None:
    """The job has a position on the waitlist, and the time that it has waited still counts."""
    run_body(limiter, PARTNER)
    decision = refuse(limiter, RateLimited(30), [PARTNER])
    newcomer = limiter.acquire(PARTNER, job=Job(id="8"))
    assert (decision.reason, decision.delay) == ("paused", 31.0)
    assert newcomer.delay > decision.delay
    clock.advance(decision.delay)
    assert limiter.acquire(PARTNER, job=JOB)


@pytest.mark.parametrize("limits", [[PARTNER], [SLOTS], [TokenBucket("fast", "1000000/s", burst=9)]])
@pytest.mark.parametrize("retry_after", [0, 0.000001, 5])
def test_endless_429s_end_by_max_wait(
    limiter: Limiter, clock: FakeClock, limits: list[Any], retry_after: float
) -> None:
    """However short the pause, the time since the first denial counts, and in the end the job is refused."""
    job, refused_after = JOB, 0.0
    for _ in range(2000):
        decision = limiter.acquire(*limits, job=job, delivery=Delivery(max_wait=60))
        if decision.allowed:
            limiter.release(decision)
            error = RateLimited(retry_after)
            decision = refuse(limiter, error, limits, job, delivery=Delivery(max_wait=60))
        if decision.final:
            break
        assert decision.delay > 0
        refused_after += decision.delay
        clock.advance(decision.delay)
    assert decision.reason == "waited too long"
    assert 40 <= refused_after <= 61


@pytest.mark.parametrize("limits", [[PARTNER], [SLOTS]])
def test_endless_429s_end_by_max_deferrals(limiter: Limiter, clock: FakeClock, limits: list[Any]) -> None:
    """Each 429 counts as a deferral."""
    job, count, delivery = JOB, 0, Delivery(max_deferrals=3)
    while True:
        decision = limiter.acquire(*limits, job=job, delivery=delivery)
        if decision.allowed:
            limiter.release(decision)
            decision = refuse(limiter, RateLimited(0), limits, job, delivery=delivery)
        if decision.final:
            break
        count += 1
        clock.advance(decision.delay)
    assert (decision.reason, count) == ("waited too long", 3)


def test_zero_pause_defers_the_job_and_returns_what_it_took(limiter: Limiter) -> None:
    """If the pause is over at once, the job is still deferred for a moment, and holds and takes nothing."""
    both = [SLOTS, PARTNER]
    before = limiter.peek(PARTNER).remaining
    decision = refuse(limiter, RateLimited(0, limit=SLOTS), both)
    assert (decision.allowed, decision.reason, decision.delay, decision.charged) == (False, "paused", 0.1, ())
    assert limiter.peek(PARTNER).remaining == before
    assert limiter.peek(SLOTS).remaining == 2


@pytest.mark.parametrize("away", [{"pause"}, {"pause", "acquire"}])
def test_unavailable_store_defers_the_job_by_its_retry_after(
    limiter: Limiter, store: UnreliableStore, away: set[str]
) -> None:
    """Other jobs are not paused, but this job waits, as long as its framework supports, and is charged nothing."""
    store.away = away
    decision = refuse(limiter, RateLimited(30), [PARTNER, SLOTS])
    assert (decision.allowed, decision.delay) == (False, 30.0)
    capped = refuse(limiter, RateLimited(30), [PARTNER, SLOTS], delivery=Delivery(longest=7))
    assert capped.delay == 7.0
    assert [each.deferrals for each in (decision, capped)] == ([0, 0] if "acquire" in away else [1, 2])
    store.away = set()
    assert (limiter.peek(PARTNER).remaining, limiter.peek(SLOTS).remaining) == (5, 2)


def test_unavailable_store_does_not_redeliver_forever(limiter: Limiter, store: UnreliableStore) -> None:
    """A pause that never reaches the store does not redeliver a job forever."""
    store.away, job = {"pause"}, JOB
    reasons: list[str] = []
    three = Delivery(max_deferrals=3)
    for _ in range(4):
        decision = refuse(limiter, RateLimited(1), [SLOTS], job, delivery=three)
        reasons.append(decision.reason)
    assert reasons == ["paused"] * 3 + ["waited too long"]


def test_pause_and_decision_are_one_round_trip_each(limiter: Limiter, store: UnreliableStore) -> None:
    """Each job that receives a 429 makes two round trips, whatever its limits."""
    refuse(limiter, RateLimited(30), [PARTNER, ACCOUNT, SLOTS])
    assert store.calls == ["pause", "acquire"]


def test_setting_must_be_one_of_the_jobs_limits() -> None:
    """A setting that is not one of the job's limits raises when the job is declared; the error lists its limits."""
    check_on_429(None, [])
    check_on_429("partner", [PARTNER, SLOTS])
    check_on_429(SLOTS, [PARTNER, SLOTS])
    with pytest.raises(
        ConfigurationError, match="429 is 'other', which is not a limit of the job: name one of 'partner', 'slots'"
    ):
        check_on_429("other", [PARTNER, SLOTS])
    with pytest.raises(ConfigurationError, match="name its limits in throttle="):
        check_on_429(PARTNER, [])


def test_claims_of_a_pause_are_of_the_store_that_counts_them(store: UnreliableStore, limiter: Limiter) -> None:
    """A limit of scope "process" is paused in the process, the shared ones in the store."""
    own, seen = TokenBucket("own", "1/s", scope="process"), list[StoreClaim]()
    inner = store.inner.pause
    store.inner.pause = lambda claims, *rest, **how: (seen.extend(claims), inner(claims, *rest, **how))[1]  # type: ignore[method-assign]
    refuse(limiter, RateLimited(30), [own, PARTNER])
    assert len(seen) == 1
    assert limiter.peek(own).reason == "paused"


@pytest.mark.parametrize("away", [set[str](), {"pause"}])
def test_slots_are_released_after_the_key_is_paused(limiter: Limiter, store: UnreliableStore, away: set[str]) -> None:
    """
    Slots are released after the pause has begun: otherwise a waiting job would start at once, and call the partner as
    well.
    """
    running = limiter.acquire(PARTNER, SLOTS, job=JOB)
    store.calls, store.away = [], away

    def release() -> None:
        store.calls.append("release")
        limiter.release(running)

    decision = deny_after_429(limiter, Run(JOB, (PARTNER, SLOTS), running, PLAIN), RateLimited(30), release=release)
    assert store.calls[:3] == ["pause", "release", "acquire"]
    assert decision.delay >= 30
