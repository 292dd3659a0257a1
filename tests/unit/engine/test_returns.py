"""No slot without a holder: what a request without an answer may have taken is returned."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any
from unittest.mock import Mock

import pytest

from support.servers.stores import Passing, Recording
from support.waiting import wait_until
from support.waitlists import ask, held
from throttlekit import AsyncLimiter, Concurrency, Job, Limiter, TokenBucket
from throttlekit._core.algorithms.concurrency import ConcurrencyAlgorithm
from throttlekit._core.answer import Answer, Requester
from throttlekit._core.waitlist import Wake
from throttlekit._engine.call import Call, Delivery
from throttlekit._wiring import wiring_of
from throttlekit.errors import StoreUnavailable
from throttlekit.stores import Correction, Lease, MemoryStore, Request
from throttlekit.stores.parts import Part, decide_in_parts
from throttlekit.stores.returns import Returns, slots_of

SLOTS = Concurrency("slots", 2, lease=600)


class Stalled(Passing):
    """A store that executes every call; while `is_stalled` is set, it gives no answer."""

    def __init__(self) -> None:
        self.inner = MemoryStore()
        self.is_stalled = False
        self.error: BaseException = StoreUnavailable("no answer in time", part=None)
        self.returned = 0

    def _answer(self) -> None:
        if self.is_stalled:
            raise self.error

    def decide(self, claims: Any, requester: Any, now_us: int | None = None, *, attempt: str = "") -> Answer:
        verdict = self.inner.decide(claims, requester, now_us, attempt=attempt)
        self._answer()
        return verdict

    def release(self, leases: Sequence[Lease], now_us: int | None = None) -> None:
        self._answer()
        self.inner.release(leases, now_us)

    def return_units(self, charges: Any, requester: Requester, now_us: int | None = None) -> None:
        self._answer()
        self.inner.return_units(charges, requester, now_us)

    def settle(self, corrections: Sequence[Correction], now_us: int | None = None) -> None:
        self._answer()
        self.inner.settle(corrections, now_us)
        self.returned += len(corrections)


class Interrupted(BaseException):
    """An exception that a framework raises anywhere, such as the time limit of a job."""


@pytest.fixture
def store() -> Stalled:
    return Stalled()


@pytest.fixture
def limiter(store: Stalled) -> Iterator[Limiter]:
    with Limiter(store) as limiter:
        yield limiter


WORKFLOWS = Concurrency("slots", 2, lease=600, held_by="{workflow}")
A = Job(kwargs={"workflow": "a"})


def free(store: Stalled) -> int:
    """Return the free slots, as seen by a limiter without a circuit breaker that would answer for the store."""
    return Limiter(store.inner).peek(SLOTS, cost=0).remaining


@pytest.mark.parametrize(
    "error", [StoreUnavailable("no answer", part=None), StoreUnavailable("no answer"), RuntimeError(), Interrupted()]
)
def test_a_grant_whose_answer_was_lost_is_returned(store: Stalled, limiter: Limiter, error: BaseException) -> None:
    """
    If the store granted a slot and the reply was lost, or a time limit ended the call, the slot is free once the store
    replies, not 600 s later.
    """
    store.is_stalled, store.error = True, error
    with suppress(RuntimeError, Interrupted):
        assert not limiter.acquire(SLOTS, job=Job(id="1"))
    store.is_stalled = False
    wait_until(lambda: free(store) == 2, description="the slot is returned")


@pytest.mark.parametrize("scope", ["global", "process"])
def test_a_job_that_is_interrupted_before_it_begins_leaves_no_slot(
    store: Stalled, limiter: Limiter, monkeypatch: pytest.MonkeyPatch, scope: Any
) -> None:
    """A woken job that is granted a little early waits for its unit: a time limit that ends the wait leaves no slot."""
    slots, rate = Concurrency("scoped", 2, lease=600, scope=scope), TokenBucket("rate", "4/s", burst=1)
    job, late = Job(id="1"), Delivery(lateness=0.25)
    assert limiter.acquire(rate)
    denied = limiter.acquire(rate, slots, job=job, delivery=late)
    slept: list[float] = []

    def interrupted(seconds: float) -> None:
        slept.append(seconds)
        raise Interrupted

    deadline = time.monotonic() + 20
    while not slept:
        assert time.monotonic() < deadline, "timed out before its unit was near"
        with monkeypatch.context() as patched:
            patched.setattr("throttlekit._engine.pipeline.time.sleep", interrupted)
            with suppress(Interrupted):
                assert not limiter.acquire(rate, slots, job=job, delivery=late)
    assert not denied
    wait_until(lambda: limiter.peek(slots, cost=0).remaining == 2, description="the slot is returned")


def test_a_job_that_waited_does_not_run_on_a_slot_that_was_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    After a slot was returned, the job's next request is a new attempt: the store does not repeat a grant whose slot
    another job may have.
    """
    store, one, job = MemoryStore(), Concurrency("one", 1, lease=600), Job(id="second")

    def lost(*args: Any, **options: Any) -> Answer:
        assert MemoryStore.decide(store, *args, **options).allowed
        raise StoreUnavailable("no answer in time", part=None)

    with Limiter(store) as limiter:
        waker, first = held(limiter), limiter.acquire(one, job=Job(id="first"))
        assert not ask(limiter, waker, one, job=job)
        limiter.release(first)
        with monkeypatch.context() as patched:
            patched.setattr(store, "decide", lost)
            assert not ask(limiter, waker, one, job=job)
        wait_until(lambda: Limiter(store).peek(one), description="its slot is returned")
        assert Limiter(store).acquire(one, job=Job(id="third"))
        assert not ask(limiter, waker, one, job=job)
        waker.close()


def test_a_job_that_runs_without_the_store_leaves_the_waitlist(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the store wakes a job that runs without it, another one is woken instead: the body may take hours."""
    store, limit = MemoryStore(), TokenBucket("open", "1/h", burst=1, on_store_failure="open")
    away = Mock(side_effect=StoreUnavailable("away", part=None))
    with Limiter(store) as limiter:
        started, [claim] = list[str](), [each.claim for each in limiter.claims(Call((limit,)))]
        waker = limiter.make_waker(lambda: 1, lambda id, item: started.append(id))
        assert limiter.acquire(limit)
        for id in ("one", "two"):
            assert not ask(limiter, waker, limit, job=Job(id=id))
        waker.on_wakes(claim.bucket, [Wake("one", 0)])
        wait_until(lambda: started == ["one"], description="the job is started")
        with monkeypatch.context() as patched:
            patched.setattr(store, "decide", away)
            patched.setattr(store, "forget", away)
            assert ask(limiter, waker, limit, job=Job(id="one"))
        assert store.list_waiting(claim).jobs == 2
        waker.on_wakes(claim.bucket, [Wake("one", 0)])
        wait_until(lambda: store.list_waiting(claim).jobs == 1, description="the job leaves the waitlist")
        waker.close()


def test_a_lost_grant_is_not_repeated_to_a_later_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a reply was lost and the job ran without the store, its next run is charged again."""
    store, limit, job = MemoryStore(), TokenBucket("open", "1/h", burst=1, on_store_failure="open"), Job(id="one")

    def lost(*args: Any, **options: Any) -> Answer:
        assert MemoryStore.decide(store, *args, **options).allowed
        raise StoreUnavailable("no answer in time", part=None)

    with Limiter(store) as limiter:
        waker, first = held(limiter), limiter.acquire(limit)
        assert not ask(limiter, waker, limit, job=job)
        limiter.cancel(first)
        with monkeypatch.context() as patched:
            patched.setattr(store, "decide", lost)
            assert ask(limiter, waker, limit, job=job)
        assert not ask(limiter, waker, limit, job=job), "the unit is taken"
        waker.close()


def test_a_batch_without_an_answer_holds_no_slot(store: Stalled) -> None:
    """If the batch of an event loop gets no reply, whatever each of its tasks may have taken is returned."""

    async def main() -> None:
        async with AsyncLimiter(store) as limiter:
            store.is_stalled = True
            decisions = await asyncio.gather(limiter.acquire(SLOTS), limiter.acquire(SLOTS))
            assert [decision.reason for decision in decisions] == ["store unavailable"] * 2
            store.is_stalled = False
            for _ in range(1000):
                if (await limiter.peek(SLOTS, cost=0)).remaining == 2:
                    return
                await asyncio.sleep(0.01)
            raise AssertionError("the slots are not returned")

    asyncio.run(main())


def test_a_release_that_got_no_answer_is_repeated(
    store: Stalled, limiter: Limiter, caplog: pytest.LogCaptureFixture
) -> None:
    """The slot is free once the store answers; the log says what happens to it."""
    decision = limiter.acquire(SLOTS)
    store.is_stalled = True
    limiter.release(decision)
    assert "are given back once it answers" in caplog.text
    store.is_stalled = False
    wait_until(lambda: free(store) == 2, description="the slot is returned")


def test_a_slot_is_returned_again_after_the_first_answer(
    store: Stalled, limiter: Limiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that was still on its way when the store answered again leaves no slot either. Then the thread ends."""
    monkeypatch.setattr("throttlekit.stores.returns._LONGEST_PAUSE", 0.05)
    store.is_stalled = True
    limiter.acquire(SLOTS)
    store.is_stalled = False
    wait_until(lambda: store.returned == 2, description="the slot is returned twice")
    wait_until(lambda: not wiring_of(limiter).stores.returns._here.running, description="the thread ends")


def test_slots_are_returned_although_no_thread_could_start(
    store: Stalled, limiter: Limiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    If no thread can start, as while the interpreter ends, a failed release fails no body. The slots are returned with
    the next ones.
    """
    with monkeypatch.context() as patched, limiter.hold(SLOTS):
        patched.setattr("threading.Thread.start", Mock(side_effect=RuntimeError("can't start new thread")))
        store.is_stalled = True
    assert not limiter.acquire(SLOTS)
    store.is_stalled = False
    wait_until(lambda: free(store) == 2, description="the slots are returned")


def test_requests_without_slots_return_nothing(store: Stalled, limiter: Limiter) -> None:
    """Nothing is returned for a peek, a cost of 0, a rate, and a request that the circuit breaker did not send."""
    store.error = StoreUnavailable("no answer in time")
    store.is_stalled = True
    with pytest.raises(StoreUnavailable):
        limiter.peek(SLOTS)
    limiter.acquire(SLOTS, cost=0)
    limiter.acquire(TokenBucket("rate", "1/s"))
    limiter.acquire(SLOTS)
    assert wiring_of(limiter).stores.returns._here.owed == {}


def test_closing_tries_once_more(store: Stalled, limiter: Limiter) -> None:
    """Closing a limiter tries to return owed slots, because its thread ends with the process."""
    store.is_stalled = True
    limiter.acquire(SLOTS)
    store.is_stalled = False
    limiter.close()
    assert store.returned == 1
    assert wiring_of(limiter).stores.returns._here.owed == {}


def correction(name: str, bucket: str = "bucket") -> Correction:
    return Correction(bucket, ConcurrencyAlgorithm(1, 1, 1_000_000, name), 0, -1)


def test_an_unavailable_bucket_does_not_block_other_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key of another type is retried by itself, and dropped in the end; other slots are returned."""
    monkeypatch.setattr("throttlekit.stores.returns._LONGEST_PAUSE", 0.02)
    monkeypatch.setattr("throttlekit.stores.returns._AT_LEAST", 0.1)
    done: list[str] = []

    def settle(slots: Sequence[Correction]) -> None:
        if any(each.bucket == "broken" for each in slots):
            raise StoreUnavailable("another type", part=None)
        done.extend(each.bucket for each in slots)

    returns = Returns(settle)
    returns.owe([correction("1", "broken"), correction("2", "fine"), correction("3", "fine")])
    wait_until(lambda: done.count("fine") == 4, description="the others are returned, twice each")
    wait_until(lambda: not returns._here.running, description="the broken one is dropped")


def test_owed_slots_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """If too many slots are owed, the oldest are left to their leases. Units of a rate are never owed."""
    monkeypatch.setattr("throttlekit.stores.returns._MOST", 3)
    returns = Returns(lambda slots: None)
    returns.owe([correction(str(number)) for number in range(9)], after=60)
    assert [holder for _, holder in returns._here.owed] == ["6", "7", "8"]
    returns.close()
    returns.owe([Correction("rate", TokenBucket("rate", "1/s").bind(1), 0, -1)])
    assert returns._here.owed == {}


def _request(*limits: Concurrency | TokenBucket) -> Request:
    store = Recording()
    Limiter(store).acquire(*limits)
    return store.asked[0][0]


@pytest.mark.parametrize(
    ("limit", "raises"), [(Concurrency("s", 1), True), (TokenBucket("r", "1/s"), False)], ids=["slots", "rate"]
)
def test_a_part_that_may_have_kept_a_slot_makes_the_request_fail(limit: Concurrency, raises: bool) -> None:
    """A later part denied, and the earlier one gave no answer to the return: the limiter keeps trying."""
    full, first = TokenBucket("full", "1/h", burst=1), Stalled()
    second, request = MemoryStore(), _request(limit, full)
    second.decide(request.claims[1:], request.requester)
    first.decide = first.inner.decide  # type: ignore[method-assign]
    first.is_stalled = True
    parts = [Part(first, [0]), Part(second, [1])]
    if raises:
        with pytest.raises(StoreUnavailable):
            decide_in_parts(parts, request.claims, request.requester, in_order=True)
        assert [each.bucket for each in slots_of(request)] == [request.claims[0].bucket]
    else:
        assert not decide_in_parts(parts, request.claims, request.requester, in_order=True).allowed
        assert slots_of(request) == []


def test_slot_of_a_finished_workflow_is_returned_once_the_store_answers(store: Stalled, limiter: Limiter) -> None:
    """If the store gives no reply to `done`, in a body or outside, the slot is returned later, and no job notices."""
    for finish in (lambda: limiter.done(WORKFLOWS, "a"), lambda: held.done(WORKFLOWS)):
        with limiter.hold(WORKFLOWS, job=A) as held:
            store.is_stalled = True
            finish()
        assert free(store) == 1
        store.is_stalled = False
        wait_until(lambda: free(store) == 2, description="the slot is returned")
        wait_until(lambda: not limiter._wiring.stores.returns._here.owed, timeout=10, description="nothing is owed")  # pyright: ignore[reportPrivateUsage]


def test_slot_of_a_workflow_is_not_returned_for_a_lost_answer(store: Stalled, limiter: Limiter) -> None:
    """A lost reply to a job's request, or to its end, does not return its workflow's slot, which other jobs hold."""
    first = limiter.acquire(WORKFLOWS, job=A)
    store.is_stalled = True
    assert not limiter.acquire(WORKFLOWS, job=A).allowed
    limiter.release(first)
    limiter.cancel(first)
    assert not limiter._wiring.stores.returns._here.owed  # pyright: ignore[reportPrivateUsage]
    store.is_stalled = False
    assert free(store) == 1
