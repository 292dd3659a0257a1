"""What a body can do with its own limits, wherever it runs."""

from __future__ import annotations

import contextlib
import importlib
import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any
from unittest.mock import Mock

import pytest

from support.threads import run_in_threads
from throttlekit import (
    Concurrency,
    ConfigurationError,
    FixedWindow,
    Job,
    Limiter,
    RateLimited,
    SlidingLog,
    StoreUnavailable,
    TokenBucket,
    current,
    hookimpl,
)
from throttlekit._util.log_limiter import Every
from throttlekit._wiring import wiring_of
from throttlekit.adapter import begin, begin_from_receipt, decision_from_receipt, end, receipt, running
from throttlekit.hookspecs import Finished, Started
from throttlekit.stores import Correction, MemoryStore
from throttlekit.stores.breaker import CircuitBreaker
from throttlekit.testing import FakeClock

TOKENS = TokenBucket("tokens", "100/hour", burst=100, cost=lambda job: job.kwargs["most"])
CALLS = FixedWindow("calls", "50/day", tz="Europe/Berlin")
JOB = Job(id="1", name="summarise", kwargs={"most": 60})


@pytest.fixture(autouse=True)
def _body_ends() -> Iterator[None]:
    """The body that a test begins ends with the test, also if an assertion fails."""
    yield
    end()


@pytest.mark.parametrize("within", [False, True])
def test_a_body_whose_leases_cannot_be_renewed_does_not_begin(within: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no thread can start, nothing would renew the lease, and another job would get the slot. It is released."""

    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    limiter, limit = Limiter(), Concurrency("slots", 1)
    granted = limiter.acquire(limit, job=JOB)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        start = running(limiter, granted, JOB).__enter__ if within else partial(begin, limiter, granted, JOB)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            start()
    assert current().decision is None
    assert limiter.peek(limit).remaining == 1
    begin(limiter, limiter.acquire(limit, job=JOB), JOB)
    assert limiter.peek(limit).remaining == 0


def test_a_nested_body_that_cannot_begin_leaves_the_outer_one_current(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise nothing would end the outer body, and its slot would be renewed while the process lives."""
    outer, inner, limit = Limiter(), Limiter(), Concurrency("slots", 1)
    begin(outer, outer.acquire(limit, job=JOB), JOB)
    granted = inner.acquire(limit, job=JOB)
    with monkeypatch.context() as patched:
        patched.setattr(inner, "keep", Mock(side_effect=RuntimeError("can't start new thread")))
        with pytest.raises(RuntimeError, match="can't start new thread"):
            begin(inner, granted, JOB)
    end()
    assert outer.peek(limit).remaining == 1


def test_outside_a_job_there_is_no_decision_and_settle_does_nothing() -> None:
    """Outside a job there is no decision, and `settle` does nothing: scripts and tests can call a body directly."""
    assert current().decision is None
    current().settle(5)
    assert current().decision is None


@pytest.mark.parametrize("wrong", [-1, True, 1.5, "5", None])
def test_invalid_cost_is_refused_everywhere(wrong: object) -> None:
    """An invalid cost raises outside a job too, so that a test of the body shows the mistake."""
    with pytest.raises(ConfigurationError, match="whole number"):
        current().settle(wrong)  # type: ignore[arg-type]


def test_settle_takes_the_total_each_time(limiter: Limiter) -> None:
    """After a charge of 60, settlements of 10, 30 and 20 leave 80 of 100 units: each is the total."""
    begin(limiter, limiter.acquire(TOKENS, CALLS, job=JOB))
    for actual, left in ((10, 90), (30, 70), (20, 80)):
        current().settle(actual)
        assert limiter.peek(TOKENS, job=JOB).remaining == left
    assert limiter.peek(CALLS).remaining == 49
    end()
    assert current().decision is None


def test_a_store_that_fails_does_not_fail_the_body(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The job continues, its charge stays, and the log says so once."""
    monkeypatch.setattr("throttlekit._engine.running._settle_failed", Every())

    class Failing(MemoryStore):
        def settle(self, *arguments: object, **options: object) -> None:
            raise StoreUnavailable("gone")

    failing = Limiter()
    wiring_of(failing).stores.shared = CircuitBreaker(Failing(clock_us=FakeClock()), clock=count().__next__)
    decision = failing.acquire(TOKENS, job=JOB)
    begin(failing, decision)
    current().settle(1)
    current().settle(2)
    assert current().decision == replace(decision, charged=(decision.charged[0]._replace(cost=1),))
    end()
    outage, unsettled = (record.getMessage() for record in caplog.records)
    assert outage.startswith("gone. It is called once a second")
    assert [unsettled] == ["gone. The cost of a job could not be settled: its first charge stays."]
    assert failing.peek(TOKENS, job=JOB).remaining == 40


def test_a_lost_answer_returns_nothing_twice() -> None:
    """If replies are lost, no unit is returned twice: of 100, 60 and 20 were charged, 2 is right, and 38 are left."""

    class Lost(MemoryStore):
        lost = True

        def settle(self, corrections: Sequence[Correction], now_us: int | None = None) -> None:
            super().settle(corrections, now_us)
            if self.lost:
                raise StoreUnavailable("gone")

    store = Lost(clock_us=FakeClock())
    limiter = Limiter(store)
    wiring_of(limiter).stores.shared = CircuitBreaker(store, clock=count().__next__)
    share = TokenBucket("share", "100/hour", burst=100, cost=lambda job: job.kwargs["most"], scope="process")
    limiter.acquire(TOKENS, share, job=JOB)
    begin(limiter, limiter.acquire(TOKENS, share, job=Job(kwargs={"most": 20})))
    for _ in range(3):
        current().settle(2)
    assert limiter.peek(TOKENS, cost=0).remaining == 38
    assert limiter.peek(share, cost=0).remaining <= 38
    store.lost = False
    current().settle(5)
    assert limiter.peek(TOKENS, cost=0).remaining == 35


def test_threads_of_one_body_return_units_once() -> None:
    """Two threads of a body settle at the same time: 59 of the 60 are returned, and not twice."""
    both = threading.Barrier(2)

    class Slow(MemoryStore):
        def settle(self, corrections: Sequence[Correction], now_us: int | None = None) -> None:
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(0.2)
            super().settle(corrections, now_us)

    limiter = Limiter(Slow(clock_us=FakeClock()))
    limiter.acquire(TOKENS, job=Job(kwargs={"most": 40}))
    begin(limiter, limiter.acquire(TOKENS, job=JOB))
    body = current()
    run_in_threads(2, lambda _: body.settle(1))
    end()
    assert limiter.peek(TOKENS, cost=0).remaining == 59


def test_a_receipt_settles_in_another_process(limiter: Limiter) -> None:
    """A receipt in JSON settles the same limits by the same rules: tiers, zones and scopes included."""
    tiered = TokenBucket(
        "tiers", {"free": "10/h", "pro": "80/h"}, burst=50, tier="{plan}", scope="job", cost=lambda j: 40
    )
    job = Job(name="x", kwargs={"most": 60, "plan": "pro"})
    sent = json.loads(json.dumps(receipt(limiter.acquire(TOKENS, CALLS, tiered, job=job))))
    begin(limiter, decision_from_receipt(sent))
    current().settle(10)
    current().settle(3, limit=CALLS)
    end()
    assert limiter.peek(TOKENS, job=job).remaining == 90
    assert limiter.peek(CALLS).remaining == 47
    assert limiter.peek(tiered, job=job, cost=0).remaining == 40


def test_a_receipt_is_read_on_demand(limiter: Limiter) -> None:
    """A receipt is read when the body uses it, because most bodies do not."""
    sent = json.loads(json.dumps(receipt(limiter.acquire(TOKENS, job=JOB))))
    begin_from_receipt(limiter, sent)
    current().settle(10)
    decision = current().decision
    assert decision is not None
    assert (decision.limit.name, decision.cost) == ("tokens", 10)
    end()
    assert limiter.peek(TOKENS, job=JOB).remaining == 90


def test_receipts_of_temporary_limits_are_not_cached(limiter: Limiter) -> None:
    """The text of a limit that was made for one job is dropped; for a permanent limit it is written once."""
    module: Any = importlib.import_module("throttlekit.adapter.body")
    for number in range(1_000):
        receipt(limiter.acquire(TokenBucket(f"of {number}", "10/s"), job=JOB))
    assert len(module._texts) <= module._MOST_REMEMBERED
    decision = limiter.acquire(TOKENS, job=JOB)
    once, again = (receipt(decision)["charged"][0]["limit"] for _ in range(2))
    assert once is again


def test_an_unreadable_receipt_raises_on_use(limiter: Limiter) -> None:
    """An unreadable receipt raises when it is used; a body that does not use it runs."""
    sent: dict[str, list[dict[str, Any]]] = {"charged": [{"limit": {}}]}
    begin_from_receipt(limiter, sent)
    with pytest.raises(ConfigurationError, match="not one that throttlekit wrote"):
        assert current().decision


def test_a_receipt_of_a_slot_is_read_at_once(limiter: Limiter) -> None:
    """The lease is renewed from the start of the body, and released at its end, whether or not the body uses it."""
    slots = Concurrency("slots", 1, lease=30)
    begin_from_receipt(limiter, receipt(limiter.acquire(slots, job=JOB)))
    assert not limiter.peek(slots)
    end()
    assert limiter.peek(slots)


def test_a_receipt_has_the_time_of_each_charge() -> None:
    """Each limit is settled at its own time, by the clock that counts it: the process's, or the store's."""
    shared, own = FakeClock(), FakeClock(FakeClock()() - 30_000_000)
    limiter = Limiter(MemoryStore(clock_us=shared))
    wiring_of(limiter).stores.in_process = MemoryStore(clock_us=own)
    share, log = SlidingLog("share", "9/minute", scope="process"), SlidingLog("log", "9/minute")
    decision = limiter.acquire(share, log, TOKENS, job=JOB)
    sent = json.loads(json.dumps(receipt(decision)))
    assert [(each["at"], each["cost"], each["measured"]) for each in sent["charged"]] == [
        (own(), 1, False),
        (shared(), 1, False),
        (shared(), 60, True),
    ]
    read = decision_from_receipt(sent)
    assert [(each.limit.name, each.bucket, each.cost, each.at_us, each.measured) for each in read.charged] == [
        (each.limit.name, each.bucket, each.cost, each.at_us, each.measured) for each in decision.charged
    ]
    assert [each.limit.fingerprint for each in read.charged] == [each.limit.fingerprint for each in decision.charged]
    shared.advance(59)
    assert limiter.acquire(log)
    limiter.settle(read, actual=0, limit=log)
    assert limiter.peek(log).remaining == 8
    shared.advance(1)
    assert limiter.peek(log).remaining == 8


@pytest.mark.parametrize("forged", [{}, [], None, {"charged": []}, {"charged": [{"limit": {}}]}, {"charged": [7]}])
def test_an_invalid_receipt_is_refused(forged: object) -> None:
    """A receipt of another release or of an attacker raises."""
    with pytest.raises(ConfigurationError):
        decision_from_receipt(forged)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "forged"),
    [
        ("bucket", "tk1:{other:}:0123456789"),
        ("bucket", "session:42"),
        ("bucket", 7),
        ("at", "x"),
        ("cost", 1.5),
        ("cost", -1),
        ("at", None),
    ],
)
def test_a_receipt_reaches_only_the_keys_of_its_limits(limiter: Limiter, field: str, forged: object) -> None:
    """A forged receipt reaches no other data in the store, and no other definition's count."""
    sent = receipt(limiter.acquire(TOKENS, job=JOB))
    sent["charged"][0][field] = forged
    with pytest.raises(ConfigurationError, match="receipt"):
        decision_from_receipt(sent)


class _Bodies:
    """A plugin that records the events of bodies."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, ...]] = []

    @hookimpl
    def throttlekit_started(self, event: Started) -> None:
        self.seen.append(("started", event.job.id, event.decision.limit.name))

    @hookimpl
    def throttlekit_finished(self, event: Finished) -> None:
        assert event.seconds >= 0
        self.seen.append((event.outcome, event.job.id, event.decision.limit.name))


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, "succeeded"),
        (ValueError(), "failed"),
        (RateLimited(3), "rate limited"),
        (KeyboardInterrupt(), "interrupted"),
    ],
)
def test_a_plugin_is_notified_of_start_and_end_of_a_body(error: BaseException | None, outcome: str) -> None:
    """A body's start and end are one event each, with its job and decision, however often the end is reported."""
    plugin = _Bodies()
    limiter = Limiter(plugins=[plugin])
    decision = limiter.acquire(CALLS, job=JOB)
    begin(limiter, decision, JOB)
    end(error)
    end()
    assert plugin.seen == [("started", "1", "calls"), (outcome, "1", "calls")]


def test_a_plugin_is_notified_of_a_body_of_another_process() -> None:
    """A receipt from elsewhere is read for the plugin, and only then."""
    plugin = _Bodies()
    watched, plain = Limiter(plugins=[plugin]), Limiter()
    written = receipt(plain.acquire(CALLS, job=JOB))
    begin_from_receipt(plain, written, JOB)
    assert current()._decision is None, "no plugin listens: the receipt is not read"
    end()
    begin_from_receipt(watched, written, JOB)
    end()
    assert plugin.seen == [("started", "1", "calls"), ("succeeded", "1", "calls")]


def test_an_adapter_reports_the_start_of_a_body_later() -> None:
    """With `starts=False`, the event is emitted by `start`, once, and by `end` if the body was never called."""
    plugin = _Bodies()
    limiter = Limiter(plugins=[plugin])
    written = receipt(limiter.acquire(CALLS, job=JOB))
    for calls in (2, 0):
        begin_from_receipt(limiter, written, JOB, starts=False)
        assert plugin.seen == []
        for _ in range(calls):
            current().start()
        end(ValueError())
        assert plugin.seen == [("started", "1", "calls"), ("failed", "1", "calls")]
        plugin.seen.clear()


def test_a_receipt_has_the_wait_of_its_job(limiter: Limiter, clock: FakeClock) -> None:
    """
    A receipt has how long its job waited, how often it was denied, and for which limit; nothing for a job that was not
    denied.
    """
    slow, job = TokenBucket("slow", "1/s", burst=1), Job(id="2")
    assert "waited" not in receipt(limiter.acquire(CALLS, slow, job=JOB))
    assert limiter.acquire(CALLS, slow, job=job).reason == "exhausted"
    clock.advance(1)
    read = decision_from_receipt(json.loads(json.dumps(receipt(limiter.acquire(CALLS, slow, job=job)))))
    assert (read.waited, read.deferrals, read.waited_for) == (1.0, 1, "slow")


@pytest.mark.parametrize(
    "forged",
    [
        None,
        [],
        [1.0],
        ["1", 1, ""],
        [-1.0, 1, ""],
        [1.0, -1, ""],
        [1.0, "1", ""],
        [float("inf"), 1, ""],
        [float("nan"), 1, ""],
        [10**400, 1, ""],
        [1.0, True, ""],
    ],
)
def test_a_receipt_with_an_invalid_wait_is_refused(limiter: Limiter, forged: object) -> None:
    """Neither a body nor a plugin gets a number that no decision has."""
    sent = receipt(limiter.acquire(TOKENS, job=JOB)) | {"waited": forged}
    with pytest.raises(ConfigurationError, match="receipt"):
        decision_from_receipt(sent)


def test_an_unreadable_receipt_causes_no_event() -> None:
    """A listening plugin is not notified of that body; the body runs, as without a plugin."""
    plugin = _Bodies()
    begin_from_receipt(Limiter(plugins=[plugin]), {"charged": [{"limit": {}}]}, JOB)
    end()
    assert plugin.seen == []
