"""While the store is unavailable: which calls it gets, how often, and what happens to jobs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from throttlekit import (
    ConfigurationError,
    Decision,
    FixedWindow,
    Job,
    LeakyBucket,
    Limiter,
    SlidingLog,
    StoreUnavailable,
    TokenBucket,
    hookimpl,
)
from throttlekit._core.answer import Answer
from throttlekit._engine.call import Call
from throttlekit._engine.claims import ClaimResolver, build_request
from throttlekit._engine.fallback import OutageDelays
from throttlekit._engine.registry import LimitRegistry
from throttlekit._wiring import wiring_of
from throttlekit.hookspecs import StoreFailed
from throttlekit.stores import Correction, MemoryStore, Request
from throttlekit.stores.breaker import CircuitBreaker
from throttlekit.testing import FakeClock

CLOSED = TokenBucket("closed", "10/s", burst=5)
OPEN = TokenBucket("open", "10/s", burst=5, on_store_failure="open")
LOCAL = TokenBucket("local", "10/s", burst=8, on_store_failure="local", processes=4)
SHARE = TokenBucket("share", "1/s", burst=1, scope="process")
JOB = Job(id="1", name="call")


class ManualClock:
    """A clock for the circuit breaker, which the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Failing(MemoryStore):
    """A store in memory that counts its calls, and can be down: completely or in part."""

    def __init__(self) -> None:
        super().__init__(clock_us=FakeClock())
        self.calls = 0
        self.down = False
        self.cause: Exception = TimeoutError("secret.host:6379")
        self.part: str | None = ""

    def decide(self, claims: Any, requester: Any, now_us: int | None = None, *, attempt: str = "") -> Answer:
        self._answer()
        return super().decide(claims, requester, now_us, attempt=attempt)

    def settle(self, corrections: Sequence[Correction], now_us: int | None = None) -> None:
        self._answer()
        super().settle(corrections, now_us)

    def reset(self, names: Sequence[str]) -> None:
        self._answer()
        super().reset(names)

    def _answer(self) -> None:
        self.calls += 1
        if self.down:
            raise StoreUnavailable("the store gave no usable answer: TimeoutError", part=self.part) from self.cause


class Listener:
    """Records the events."""

    def __init__(self) -> None:
        self.events: list[StoreFailed] = []

    @hookimpl
    def throttlekit_store_failed(self, event: StoreFailed) -> None:
        self.events.append(event)


def _request() -> Request:
    """Return a request of a job for `CLOSED`."""
    call = Call([CLOSED], JOB)
    return build_request(call, ClaimResolver(LimitRegistry()).resolve(call))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store() -> Failing:
    return Failing()


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def limiter(store: Failing, clock: ManualClock, listener: Listener) -> Limiter:
    limiter = Limiter(store, plugins=[listener])
    wiring_of(limiter).stores.shared = CircuitBreaker(store, clock=clock)
    wiring_of(limiter).stores.in_process = MemoryStore(clock_us=FakeClock())
    return limiter


# How often it is called


def test_an_outage_costs_one_request_a_second(limiter: Limiter, store: Failing, clock: ManualClock) -> None:
    """Whatever the jobs and the verbs, about one call a second waits for the time-out."""
    store.down = True
    granted = Limiter().acquire(CLOSED)
    for _ in range(100):
        assert limiter.acquire(CLOSED, job=JOB).reason == "store unavailable"
        for verb in (limiter.peek, limiter.reset, lambda _: limiter.settle(granted, actual=3)):
            with pytest.raises(StoreUnavailable):
                verb(CLOSED)
        clock.now += 0.25  # the time-out, or other work
    assert 25 <= store.calls <= 34


def test_the_first_answer_ends_the_outage(limiter: Limiter, store: Failing, clock: ManualClock) -> None:
    """Less than a second after the store is back, one call succeeds, and then all calls are sent."""
    store.down = True
    limiter.acquire(CLOSED)
    store.down = False
    assert not limiter.acquire(CLOSED)
    clock.now += 0.75
    assert [limiter.acquire(CLOSED).allowed for _ in range(5)] == [True] * 5


def test_slow_calls_are_still_sent_one_at_a_time(limiter: Limiter, store: Failing, clock: ManualClock) -> None:
    """While a call hangs, as with three hanging Sentinels, no second call is sent, and no delay is in the past."""

    class Slow(Failing):
        def _answer(self) -> None:
            self.calls += 1
            clock.now += 1.1  # two other calls arrive in the meantime
            during.append((limiter.acquire(CLOSED, job=JOB), self.calls))
            clock.now += 0.4
            raise StoreUnavailable("the store gave no usable answer: TimeoutError")

    during: list[tuple[Decision, int]] = []
    slow = Slow()
    store.down = True
    limiter.acquire(CLOSED)
    clock.now += 0.75
    assert isinstance(wiring_of(limiter).stores.shared, CircuitBreaker)
    wiring_of(limiter).stores.shared._outages[""].took = 1.5
    wiring_of(limiter).stores.shared._store = slow
    own = limiter.acquire(CLOSED, job=JOB)
    assert slow.calls == 1
    assert [number for _, number in during] == [1]
    assert all(0 < decision.delay <= 1.25 for decision in (own, during[0][0]))


def test_delays_are_below_a_second_and_differ(limiter: Limiter, store: Failing, clock: ManualClock) -> None:
    """A delay ends when the store is called next, or up to 0.25 s later: no two are the same."""
    store.down = True
    first = [limiter.acquire(CLOSED, job=JOB).delay for _ in range(50)]
    clock.now += 0.5
    second = [limiter.acquire(CLOSED, job=JOB).delay for _ in range(50)]
    assert all(0.75 <= delay <= 1.0 for delay in first)
    assert all(0.25 <= delay <= 0.5 for delay in second)
    assert len({*first, *second}) == 100


def test_many_jobs_return_less_often(limiter: Limiter, store: Failing, clock: ManualClock) -> None:
    """In each second 100 jobs get a delay of about a second, and all others one of up to 3 s."""
    store.down = True
    wiring_of(limiter).pipeline._outage_delays = OutageDelays(clock)
    for _ in range(2):
        delays = [limiter.acquire(CLOSED, job=JOB).delay for _ in range(1_500)]
        assert all(0.0 < delay <= 1.25 for delay in delays[:100])
        assert all(2.5 <= delay < 3.0 for delay in delays[100:])
        assert len(set(delays)) == 1_500
        clock.now += 1.0


def test_a_job_keeps_its_position(limiter: Limiter, store: Failing, clock: ManualClock) -> None:
    """A job that waited before the outage is ahead of later ones, even if it requests again during the outage."""
    limiter.acquire(CLOSED, cost=5)
    denied = [limiter.acquire(CLOSED, job=JOB), limiter.acquire(CLOSED, job=Job(id="2"))]
    store.down = True
    assert {limiter.acquire(CLOSED, job=JOB).reason for _ in range(3)} == {"store unavailable"}
    store.down = False
    clock.now += 2
    later = [limiter.acquire(CLOSED, job=Job(id=id)) for id in ("3", "2", "1")]
    assert later[2].delay < later[1].delay < later[0].delay
    assert [each.delay for each in later[:0:-1]] == [each.delay for each in denied]


def test_a_call_that_fails_by_itself_blocks_no_other(
    limiter: Limiter, store: Failing, caplog: pytest.LogCaptureFixture
) -> None:
    """A call that fails due to its own key, such as one of another type, defers only its jobs, and is logged once."""
    store.down, store.part = True, None
    assert [limiter.acquire(CLOSED).reason for _ in range(3)] == ["store unavailable"] * 3
    assert store.calls == 3
    store.down = False
    assert limiter.acquire(OPEN)
    assert _logged(caplog, logging.WARNING) == [
        "the store gave no usable answer: TimeoutError. Other calls are not affected."
    ]


def test_a_rejected_call_ends_an_outage(limiter: Limiter, store: Failing, clock: ManualClock) -> None:
    """
    A rejected call ends the outage, because the server has replied: a job with an invalid key does not use up the one
    call of each second.
    """
    store.down = True
    limiter.acquire(CLOSED)
    clock.now += 0.75
    store.part = None
    assert limiter.acquire(CLOSED).reason == "store unavailable"
    store.down = False
    assert limiter.acquire(CLOSED).reason == "allowed"


def test_a_request_that_was_not_sent_ends_no_outage(clock: ManualClock) -> None:
    """The error of such a request in a batch says nothing about the server."""

    class Batched(Failing):
        def decide_all(self, requests: Sequence[Request]) -> list[Answer | Exception]:
            return [ConfigurationError("it cannot be sent") for _ in requests]

    store, request = Batched(), _request()
    guard = CircuitBreaker(store, clock=clock)
    store.down = True
    with pytest.raises(StoreUnavailable):
        guard.decide(request.claims, request.requester, attempt=request.attempt)
    clock.now += 0.75
    assert isinstance(guard.decide_all([request])[0], ConfigurationError)
    assert isinstance(guard.decide_all([request])[0], StoreUnavailable)


def test_parts_of_a_store_fail_separately(clock: ManualClock) -> None:
    """If one node of a cluster fails, limits on the other nodes are decided as usual."""

    class Parts(Failing):
        def part_of(self, name: str) -> str:
            return "b" if "open" in name else "a"

    store = Parts()
    limiter = Limiter(store)
    wiring_of(limiter).stores.shared = CircuitBreaker(store, clock=clock)
    store.down, store.part = True, "a"
    assert not limiter.acquire(CLOSED, OPEN)
    store.down = False
    assert limiter.acquire(OPEN)
    assert not limiter.acquire(CLOSED)
    assert not limiter.acquire(CLOSED, OPEN)
    clock.now += 0.75
    assert limiter.acquire(CLOSED)


class Nodes(Failing):
    """A store with two nodes, each of which can be unavailable; which node serves a limit can change."""

    def __init__(self) -> None:
        super().__init__()
        self.serves = {"closed": "a", "open": "b"}
        self.away = {"a"}
        self.settled: list[str] = []

    def part_of(self, name: str) -> str:
        return next((node for limit, node in self.serves.items() if limit in name), "")

    def decide(self, claims: Any, requester: Any, now_us: int | None = None, *, attempt: str = "") -> Answer:
        self._reach(claims[0].bucket)
        return super().decide(claims, requester, now_us, attempt=attempt)

    def settle(self, corrections: Sequence[Correction], now_us: int | None = None) -> None:
        for each in corrections:
            self._reach(each.bucket)
        self.settled += [self.part_of(each.bucket) for each in corrections]
        super().settle(corrections, now_us)

    def _reach(self, name: str) -> None:
        if (node := self.part_of(name)) in self.away:
            raise StoreUnavailable("the store gave no usable answer: TimeoutError", part=node)


def test_a_node_that_was_replaced_is_forgotten(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    """After a fail-over the dead node gets no calls any more: the outage is over, and the log says so."""
    caplog.set_level(logging.INFO, "throttlekit")
    store = Nodes()
    guard = CircuitBreaker(store, clock=clock)
    limiter = Limiter(store)
    wiring_of(limiter).stores.shared = guard
    assert not limiter.acquire(CLOSED)
    assert limiter.acquire(OPEN)
    assert list(guard._outages) == ["a"]
    store.serves["closed"] = "b"
    clock.now += 4.0
    assert limiter.acquire(OPEN)
    assert not guard._outages
    assert _logged(caplog)[-1] == "The store responds again, after 4.0 s."
    assert limiter.acquire(CLOSED)


def test_an_unavailable_node_does_not_block_the_others(clock: ManualClock) -> None:
    """A call for several nodes is carried out on those that answer; then the failure is raised."""
    store = Nodes()
    guard = CircuitBreaker(store, clock=clock)
    corrections = [Correction(f"tk1:{{{name}:}}:x", CLOSED.bind(1), 1, 1) for name in ("closed", "open")]
    for times in (1, 2):
        with pytest.raises(StoreUnavailable):
            guard.settle(corrections)
        assert store.settled == ["b"] * times


# What happens to jobs


def test_open_jobs_run_uncharged(limiter: Limiter, store: Failing, clock: ManualClock) -> None:
    """With "open", all jobs run, nothing is charged, and settling them does nothing, now or later."""
    store.down = True
    decisions = [limiter.acquire(OPEN, job=JOB) for _ in range(50)]
    assert {(each.allowed, each.reason, each.charged) for each in decisions} == {(True, "store unavailable", ())}
    assert {(each.delay, each.retry_after) for each in decisions} == {(0.0, 0.0)}
    assert decisions[0].headers() == {}
    assert not decisions[0].final
    store.down = False
    clock.now += 1
    limiter.settle(decisions[0], actual=4)
    limiter.settle(decisions[0], actual=4, limit=OPEN)
    assert limiter.peek(OPEN).remaining == 5


@pytest.mark.parametrize(
    "limit",
    [
        LOCAL,
        LeakyBucket("l", "8/s", on_store_failure="local", processes=2),
        SlidingLog("log", "8/h", on_store_failure="local", processes=4),
        FixedWindow("w", "8/d", on_store_failure="local", processes=4),
    ],
)
@pytest.mark.parametrize("job", [JOB, None])
def test_local_jobs_are_limited_to_the_share(limiter: Limiter, store: Failing, limit: Any, job: Job | None) -> None:
    """The process's share is granted, and no more; a denied job is redelivered in a second, and keeps its position."""
    store.down = True
    decisions = [limiter.acquire(limit, job=job) for _ in range(6)]
    granted = [each for each in decisions if each.allowed]
    assert len(granted) == limit.local_part.capacity
    assert {each.reason for each in decisions} == {"store unavailable"}
    denied = decisions[-1]
    assert denied.limit.name == limit.name
    assert 0 < denied.delay <= 1.0
    assert denied.charged == ()


def test_a_share_fills_up_at_its_own_rate(limiter: Limiter, store: Failing) -> None:
    """A quarter of 10/s admits one unit every 400 ms, whatever the clock of the store shows."""
    time_us = FakeClock()
    wiring_of(limiter).stores.in_process = MemoryStore(clock_us=time_us)
    store.down = True
    assert [limiter.acquire(LOCAL).allowed for _ in range(3)] == [True, True, False]
    assert limiter.acquire(LOCAL).delay == pytest.approx(0.4, abs=0.401)
    time_us.advance(0.4)
    assert [limiter.acquire(LOCAL).allowed for _ in range(2)] == [True, False]


def test_units_of_a_share_can_be_settled(limiter: Limiter, store: Failing, clock: ManualClock) -> None:
    """Settled units return to the process's part, and the store is not called."""
    store.down = True
    decision = limiter.acquire(LOCAL, cost=2)
    assert limiter.settle(decision, actual=1).cost == 1
    assert [limiter.acquire(LOCAL).allowed for _ in range(2)] == [True, False]
    assert store.calls == 1
    store.down = False
    clock.now += 1
    assert limiter.peek(LOCAL).remaining == 8


def test_keys_queues_and_tiers_are_counted_separately_in_the_share(limiter: Limiter, store: Failing) -> None:
    """A process's part counts keys, queues and tiers separately, as the store does."""
    store.down = True
    common: dict[str, Any] = {"on_store_failure": "local", "processes": 4}
    keyed = TokenBucket("keyed", "4/h", burst=4, key="{account}", **common)
    queued = TokenBucket("queued", "4/h", burst=4, scope="queue", **common)
    tiered = TokenBucket("tiered", {"a": "4/h", "b": "4/h"}, burst=4, tier="{plan}", **common)
    for limit, jobs in (
        (keyed, [Job(id=str(n), kwargs={"account": n}) for n in (1, 2)]),
        (queued, [Job(id=name, queue=name) for name in "ab"]),
        (tiered, [Job(id=name, kwargs={"plan": name}) for name in "ab"]),
    ):
        assert [limiter.acquire(limit, job=job).allowed for job in jobs * 2] == [True, True, False, False]


@pytest.mark.parametrize(
    ("limits", "outcome", "granted"),
    [
        ((OPEN, CLOSED), "closed", 0),
        ((LOCAL, CLOSED), "closed", 0),
        ((OPEN, LOCAL), "local", 2),
        ((OPEN, SHARE), "open", 1),
        ((LOCAL, SHARE), "local", 1),
        ((CLOSED, SHARE), "closed", 0),
        ((OPEN,), "open", 4),
    ],
)
def test_the_strictest_of_several_limits_decides(
    limiter: Limiter, store: Failing, listener: Listener, limits: Any, outcome: str, granted: int
) -> None:
    """A closed limit defers; otherwise local limits, and those of the process, are charged, and open ones are not."""
    store.down = True
    for order in (limits, limits[::-1]):
        wiring_of(limiter).stores.in_process = MemoryStore(clock_us=FakeClock())
        decisions = [limiter.acquire(*order, job=JOB) for _ in range(4)]
        assert sum(each.allowed for each in decisions) == granted
        names = {each.limit.name for each in decisions[0].charged}
        assert names == ({limit.name for limit in limits if limit.on_store_failure != "open"} if granted else set())
        kept = tuple(limit for limit in order if limit.scope != "process")
        assert {(event.outcome, event.limits) for event in listener.events} == {(outcome, kept)}
        listener.events.clear()
    assert not granted or limiter.peek(SHARE).remaining == (0 if SHARE in limits else 1)


def test_an_uncharged_cost_is_not_settled_on_another_limit(limiter: Limiter, store: Failing) -> None:
    """With an open limit of tokens and a share that is charged 1, the 500 tokens used do not count for the share."""
    tokens = TokenBucket("tokens", "900/m", burst=900, cost=lambda job: 10, on_store_failure="open")
    store.down = True
    decision = limiter.acquire(tokens, LOCAL, job=JOB)
    assert (decision.limit.name, [each.cost for each in decision.charged]) == ("tokens", [1])
    for limit in (None, tokens):
        assert [each.cost for each in limiter.settle(decision, actual=500, limit=limit).charged] == [1]
    assert [each.cost for each in limiter.settle(decision, actual=2, limit=LOCAL).charged] == [2]


def test_a_peek_is_never_answered_without_the_store(limiter: Limiter, store: Failing) -> None:
    """Whatever the policy, a peek raises that the store is unavailable."""
    store.down = True
    with pytest.raises(StoreUnavailable):
        limiter.peek(OPEN)


# Events and logs


def test_plugins_are_notified_of_each_decision(limiter: Limiter, store: Failing, listener: Listener) -> None:
    """The event has the class of the error only, the limits, the policy, the decision and the job."""
    store.down = True
    for limit in (CLOSED, OPEN, LOCAL):
        limiter.acquire(limit, SHARE, job=JOB, cost=0)
    assert [(event.error, event.limits, event.outcome, event.job) for event in listener.events] == [
        ("TimeoutError", (CLOSED,), "closed", JOB),
        ("TimeoutError", (OPEN,), "open", JOB),
        ("TimeoutError", (LOCAL,), "local", JOB),
    ]
    assert [event.decision.allowed for event in listener.events] == [False, True, True]
    assert "secret" not in repr(listener.events)


def _logged(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[str]:
    """Return what this thread logged: a thread of an earlier test may still log failures of its own store."""
    records = [record for record in caplog.records if record.thread == threading.get_ident()]
    return [record.getMessage() for record in records if record.levelno >= level]


def test_an_outage_logs_one_line_and_its_end_another(
    limiter: Limiter, store: Failing, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """An outage logs one WARNING and its end one INFO, however many jobs there are and however long it lasts."""
    caplog.set_level(logging.INFO)
    store.down = True
    for _ in range(200):
        limiter.acquire(CLOSED, job=JOB)
        clock.now += 0.5
    store.down = False
    limiter.acquire(CLOSED)
    assert _logged(caplog) == [
        "the store gave no usable answer: TimeoutError. It is called once a second. Until it responds, jobs are "
        "deferred, uncharged, except for limits whose on_store_failure= says otherwise.",
        "The store responds again, after 100.0 s.",
    ]


def test_a_flapping_store_does_not_fill_the_log(
    limiter: Limiter, store: Failing, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has at most two lines in 30 s; a lasting outage is logged, whatever was logged before."""
    caplog.set_level(logging.INFO)
    for _ in range(10):
        store.down = True
        limiter.acquire(CLOSED)
        store.down = False
        clock.now += 1
        limiter.acquire(CLOSED)
    assert len(_logged(caplog)) == 2
    store.down = True
    for _ in range(40):
        limiter.acquire(CLOSED)
        clock.now += 1
    assert len(_logged(caplog)) == 3


def test_running_uncharged_is_a_warning_for_each_limit(
    limiter: Limiter, store: Failing, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning is logged at most every 30 seconds."""
    store.down = True
    for _ in range(20):
        limiter.acquire(OPEN)
        limiter.acquire(OPEN, LOCAL)
    assert [line for line in _logged(caplog) if "uncharged:" in line] == [
        "Limit 'open' lets jobs run uncharged: the store gives no answer (TimeoutError), and its on_store_failure "
        'is "open".'
    ]


def test_commands_resume_after_an_outage(clock: ManualClock) -> None:
    """In an outage, commands other than decisions are sent once a second, and as usual after it; they use no turn."""

    class Sharing(Failing):
        def commands(self, commands: Sequence[Sequence[str | int]]) -> list[Any]:
            self._answer()
            return ["reply"]

    store = Sharing()
    guarded = CircuitBreaker(store, clock=clock)
    store.down = True
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            guarded.commands([("GET", "x")])
    assert store.calls == 1
    store.down = False
    clock.now += 1
    assert [guarded.commands([("GET", "x")]) for _ in range(2)] == [["reply"]] * 2
    request = _request()
    assert guarded.decide(request.claims, request.requester).allowed
