"""`hold`, `wait` and `limited`: limits for code outside a job, in threads and in tasks."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import pytest

from support.servers.away import Away
from support.servers.stores import Passing
from support.waiting import wait_until
from throttlekit import (
    AsyncLimiter,
    Concurrency,
    ConfigurationError,
    Delivery,
    Job,
    LeakyBucket,
    Limit,
    Limiter,
    SlidingLog,
    TokenBucket,
)
from throttlekit._core.answer import Answer
from throttlekit._engine.call import Call
from throttlekit._engine.hold import Hold
from throttlekit._engine.waker import Waker
from throttlekit._util.threads import Threads
from throttlekit.errors import StoreUnavailable, WaitedTooLong
from throttlekit.stores import MemoryStore

ONE = Concurrency("one", 1)
RATE = SlidingLog("rate", "10/hour")


# Under a tracer, Python 3.11 loses exceptions that are thrown into a coroutine: cancellation cannot be tested.
traced = pytest.mark.skipif(
    sys.gettrace() is not None and sys.version_info[:2] == (3, 11), reason="cancels tasks under a tracer"
)


@pytest.fixture
def limiter() -> Limiter:
    return Limiter()


class Slow(Passing):
    """A memory store that answers once the test sets `answer`."""

    def __init__(self) -> None:
        self.inner = MemoryStore()
        self.requested, self.answer = threading.Event(), threading.Event()
        self.answer.set()
        self.error: Exception | None = None

    def decide(self, claims: Any, requester: Any, now_us: int | None = None, *, attempt: str = "") -> Answer:
        verdict = self.inner.decide(claims, requester, now_us, attempt=attempt)
        self.requested.set()
        assert self.answer.wait(30)
        if self.error is not None:
            raise self.error
        return verdict


def free(limiter: Limiter, limit: Concurrency = ONE) -> int:
    return limiter.peek(limit).remaining


# In threads


def test_never_more_at_once_than_the_limit(limiter: Limiter) -> None:
    """Eight threads enter twenty times each: at most three are inside at a time, and all of them get their turn."""
    slots, lock = Concurrency("three", 3), threading.Lock()
    now, most, done = 0, 0, 0

    def work() -> None:
        nonlocal now, most, done
        for _ in range(20):
            with limiter.hold(slots):
                with lock:
                    now += 1
                    most = max(most, now)
                time.sleep(0.001)
                with lock:
                    now -= 1
                    done += 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert (most <= 3, done) == (True, 160)
    assert free(limiter, slots) == 3


def test_hold_raises_after_its_timeout(limiter: Limiter) -> None:
    """The error names the limit that denied; nothing stays held."""
    with limiter.hold(ONE):
        began = time.monotonic()
        with pytest.raises(WaitedTooLong, match="'one' denied this call"), limiter.hold(ONE, timeout=0.2):
            raise AssertionError("never entered")
        assert time.monotonic() - began >= 0.1
        with pytest.raises(WaitedTooLong), limiter.hold(ONE, timeout=0):
            raise AssertionError("never entered")
    assert free(limiter) == 1
    with Limiter().hold(ONE, timeout=0) as held:
        assert held.decision


@pytest.mark.parametrize("in_loop", [False, True])
def test_an_error_of_a_repeated_request_ends_the_wait(limiter: Limiter, in_loop: bool) -> None:
    """A caller whose cost cannot be computed any more is forgotten, so that its wake blocks no other caller."""
    costs = iter([1])
    limit = TokenBucket("costs", "20/s", burst=1, cost=lambda _: next(costs, -1))
    limiter.pause(limit, 0.3)

    def wait() -> None:
        if in_loop:
            asyncio.run(AsyncLimiter(limiter).wait(limit, job=Job()))
        else:
            limiter.wait(limit, job=Job())

    with pytest.raises(ConfigurationError, match="a cost must be a whole number"):
        wait()
    here = limiter.waker._here  # pyright: ignore[reportPrivateUsage]
    assert (here.room._busy, here.waited) == ({}, {})  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("verb", ["acquire", "hold", "wait"])
def test_a_key_reads_the_context_of_the_task(limiter: Limiter, verb: str) -> None:
    """The key of a request may be in a `ContextVar`, also if a thread computes it."""
    tenant: ContextVar[str] = ContextVar("tenant")
    limit = TokenBucket("keyed", "10/hour", burst=10, key=lambda _: tenant.get())

    async def request() -> None:
        tenant.set("acme")
        mine = AsyncLimiter(limiter)
        if verb == "hold":
            async with mine.hold(limit, job=Job(id="1")):
                pass
        else:
            await getattr(mine, verb)(limit, job=Job(id="1"))

    asyncio.run(request())
    assert limiter.peek(limit, key="acme").remaining == 9


def test_an_interrupt_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted caller, for example at a job's time limit, stops waiting, and blocks nobody behind it."""

    class Interrupt(BaseException):
        pass

    def interrupted(hold: Any, wake: Any) -> Any:
        assert not request(hold, wake).allowed
        raise Interrupt

    store, request = MemoryStore(), Hold._request
    limiter = Limiter(store)
    [claim] = limiter.claims(Call((ONE,)))
    with limiter.hold(ONE):
        monkeypatch.setattr(Hold, "_request", interrupted)
        with pytest.raises(Interrupt), limiter.hold(ONE):
            raise AssertionError("never entered")
        assert store.list_waiting(claim.claim).jobs == 0
        assert len(limiter.waker) == 0


def test_full_queue_refuses_at_once(limiter: Limiter) -> None:
    """A `LeakyBucket` with a queue of 0 raises without a wait."""
    queue = LeakyBucket("queue", "1/hour", queue=0)
    with limiter.hold(queue):
        pass
    with pytest.raises(WaitedTooLong, match="'queue' denied this call: queue full"), limiter.hold(queue):
        raise AssertionError("never entered")


def test_hold_waits_for_an_unavailable_store() -> None:
    """`hold` waits as long as necessary, or until its timeout."""

    class Unreliable(Passing):
        def __init__(self) -> None:
            self.inner, self.fails = MemoryStore(), 1

        def decide(self, claims: Any, requester: Any, now_us: int | None = None, *, attempt: str = "") -> Answer:
            self.fails -= 1
            if self.fails >= 0:
                raise StoreUnavailable("away", part=None)
            return super().decide(claims, requester, now_us, attempt=attempt)

    store = Unreliable()
    limiter = Limiter(store)
    with limiter.hold(ONE):
        assert free(limiter) == 0
    store.fails = 10**6
    with pytest.raises(WaitedTooLong, match="store unavailable"), limiter.hold(ONE, timeout=0.1):
        raise AssertionError("never entered")


@pytest.mark.parametrize("in_loop", [False, True])
def test_hold_raises_if_no_thread_can_start(in_loop: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the store is unavailable, a caller needs the waker's thread: without it, it would wait forever."""

    def fail(waker: Waker[Any]) -> None:
        raise RuntimeError("can't start new thread")

    def wait() -> None:
        hold = limiter.hold(ONE, timeout=60)
        if in_loop:
            asyncio.run(hold.wait_for_grant_async())
        else:
            hold.wait_for_grant()

    limiter = Limiter(Away())
    monkeypatch.setattr(Waker, "begin", fail)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        wait()
    assert len(limiter.waker) == 0


@pytest.mark.parametrize("in_loop", [False, True])
def test_a_limiter_that_is_closed_during_a_request_lets_the_caller_repeat_it(in_loop: bool) -> None:
    """The waker that the request named is closed by then, so it wakes the caller at once."""
    limiter, store = Limiter(store := Slow()), store
    with limiter.hold(ONE):
        store.requested.clear()
        store.answer.clear()
        hold, waited = limiter.hold(ONE, timeout=60), list[bool]()

        def wait() -> None:
            decision = asyncio.run(hold.wait_for_grant_async()) if in_loop else hold.wait_for_grant()
            waited.append(decision.allowed)

        caller = threading.Thread(target=wait)
        caller.start()
        assert store.requested.wait(30)
        limiter.close()
        store.answer.set()
        wait_until(lambda: len(limiter.waker) == 1, description="the caller waits with the new waker")
    caller.join(30)
    assert waited == [True]


def test_a_call_for_which_no_thread_can_start_is_not_made_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor queues a call before it starts a thread for it; the next thread that starts finds it there."""

    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    threads, made = Threads(), list[str]()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            threads.start(lambda: made.append("first"))
    threads.start(lambda: made.append("second")).result(30)
    threads.close()
    assert made == ["second"]


def test_key_and_tier_come_from_the_job(limiter: Limiter) -> None:
    """The key and the tier come from the job, or the key from the call."""
    each = Concurrency("each", 1, key="{account}")
    with limiter.hold(each, job=Job(kwargs={"account": 1})), limiter.hold(each, key=2):
        assert not limiter.peek(each, key=1)
        assert not limiter.peek(each, key=2)
        assert limiter.peek(each, key=3)
    with pytest.raises(ConfigurationError, match="'each'"), limiter.hold(each):
        raise AssertionError("never entered")


def test_hold_is_entered_once_at_a_time(limiter: Limiter) -> None:
    """Entering an entered hold, or leaving one that is not entered, is an error that says what to do."""
    hold = limiter.hold(Concurrency("two", 2))
    with hold:
        with pytest.raises(ConfigurationError, match=r"call limiter.hold\(…\) again"), hold:
            raise AssertionError("never entered")
        assert free(limiter, Concurrency("two", 2)) == 1
    with pytest.raises(ConfigurationError, match="was not entered"):
        hold.__exit__(None, None, None)


def test_mistakes_raise_at_the_call(limiter: Limiter) -> None:
    """Mistakes raise before any block is entered."""
    with pytest.raises(ConfigurationError, match="no limit was given"):
        limiter.hold()
    with pytest.raises(ConfigurationError, match="timeout must be a number of seconds"):
        limiter.hold(ONE, timeout=-1)
    with pytest.raises(ConfigurationError, match="twice"):
        limiter.limited(ONE, ONE)


# In tasks


def test_async_with_holds_in_a_task(limiter: Limiter) -> None:
    """`async with` waits without blocking the loop."""

    async def main() -> list[int]:
        order: list[int] = []

        async def work(number: int) -> None:
            async with limiter.hold(ONE) as held:
                assert held.decision is not None
                order.append(number)
                await asyncio.sleep(0.005)
                assert free(limiter) == 0

        await asyncio.wait_for(asyncio.gather(*(work(number) for number in range(6))), 120)
        return order

    assert sorted(asyncio.run(main())) == list(range(6))
    assert free(limiter) == 1


@traced
@pytest.mark.parametrize("when", ["before the answer", "after the answer"])
@pytest.mark.parametrize("rates", [(), (RATE,)], ids=["slots", "rates and slots"])
def test_task_that_is_cancelled_while_it_requests_takes_nothing(rates: tuple[Limit, ...], when: str) -> None:
    """The requesting thread may still get a grant: everything is returned, even if the loop has ended by then."""
    store = Slow()
    limiter = Limiter(store)
    store.answer.clear()

    async def main() -> None:
        async def work() -> None:
            async with limiter.hold(*rates, ONE):
                raise AssertionError("never entered")

        task = asyncio.ensure_future(work())
        await asyncio.to_thread(store.requested.wait, 60)
        if when == "after the answer":
            store.answer.set()
            # Block the loop, so that the answer arrives before the task receives it.
            time.sleep(0.2)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        if when == "before the answer":
            threading.Timer(0.2, store.answer.set).start()

    asyncio.run(main())
    for rate in rates:
        wait_until(lambda rate=rate: limiter.peek(rate, cost=0).remaining == 10, description="the unit is returned")
    wait_until(lambda: free(limiter) == 1, description="the slot is released")


@traced
def test_task_that_is_cancelled_while_it_waits_holds_nothing(limiter: Limiter) -> None:
    """A task that is cancelled between two requests has nothing to return."""

    async def main() -> None:
        async with limiter.hold(ONE):
            task = asyncio.ensure_future(limiter.hold(ONE).__aenter__())
            await asyncio.wait([task], timeout=0.05)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()

    asyncio.run(main())
    assert free(limiter) == 1


@traced
@pytest.mark.parametrize("fails", [False, True])
def test_task_that_is_cancelled_before_its_thread_begins_leaves_no_trace(
    caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    """A task that is cancelled before its thread begins makes no request, and no error is logged as never retrieved."""
    store = Slow()
    limiter = Limiter(store)

    async def main() -> None:
        store.answer.clear()
        first = [asyncio.ensure_future(limiter.hold(ONE).__aenter__()) for _ in range(4)]
        await asyncio.to_thread(store.requested.wait, 60)
        late = [asyncio.ensure_future(limiter.hold(ONE).__aenter__()) for _ in range(8)]
        await asyncio.sleep(0.05)
        for task in (*first, *late):
            task.cancel()
        await asyncio.sleep(0.05)
        if fails:
            store.error = StoreUnavailable("away", part=None)
        store.answer.set()
        await asyncio.wait([*first, *late])
        assert all(task.cancelled() for task in (*first, *late))
        await asyncio.sleep(0.05)

    asyncio.run(main())
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []
    wait_until(lambda: Limiter(store.inner).peek(ONE).remaining == 1, description="no slot is held")


def test_a_full_default_executor_does_not_block_the_release(limiter: Limiter) -> None:
    """Functions hold the same slot in all threads of the loop's default executor: each gets its turn."""
    done: list[int] = []

    def hold(number: int) -> None:
        with limiter.hold(ONE):
            done.append(number)

    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))

        async def holder() -> None:
            async with limiter.hold(ONE):
                await asyncio.sleep(0.2)

        task = asyncio.ensure_future(holder())
        await asyncio.sleep(0.1)
        await asyncio.wait_for(asyncio.gather(task, *(asyncio.to_thread(hold, number) for number in range(4))), 60)

    asyncio.run(main())
    assert sorted(done) == list(range(4))


def test_plain_with_in_a_running_loop_is_an_error(limiter: Limiter) -> None:
    """A plain `with` in a running loop raises, because it would block the loop. The message names the async method."""

    @limiter.limited(ONE)
    def call() -> None:
        raise AssertionError("never entered")

    async def main() -> None:
        with pytest.raises(ConfigurationError, match="write `async with"), limiter.hold(ONE):
            raise AssertionError("never entered")
        with pytest.raises(ConfigurationError, match=r"`async def` for a function with @limiter\.limited"):
            call()
        with pytest.raises(ConfigurationError, match=r"write `await limiter.wait\(…\)` with an AsyncLimiter"):
            limiter.wait(TokenBucket("rate", "1/s"))
        assert await asyncio.to_thread(free, limiter) == 1

    asyncio.run(main())


def test_acquire_in_a_running_loop_warns_once() -> None:
    """A round trip blocks the loop for a moment. There is no warning in memory, in a thread, or for an adapter."""

    async def main() -> None:
        limiter = Limiter(Slow())
        limiter.acquire(ONE, delivery=Delivery())
        await asyncio.to_thread(limiter.acquire, ONE)
        Limiter().acquire(ONE)
        with pytest.warns(RuntimeWarning, match="`await limiter.acquire") as seen:
            limiter.acquire(ONE)
        assert seen[0].filename == __file__
        limiter.acquire(ONE)
        with pytest.warns(RuntimeWarning, match=r"`await limiter.peek\(") as seen:
            Limiter(Slow()).peek(ONE)
        assert [each.filename for each in seen] == [__file__]
        with pytest.warns(RuntimeWarning, match="`await limiter.acquire_many") as seen:
            Limiter(Slow()).acquire_many(RATE, 2)
        assert [each.filename for each in seen] == [__file__]

    asyncio.run(main())


# Waiting for rates


def test_wait_returns_when_the_limits_grant_it(limiter: Limiter) -> None:
    """Callers are granted in order, each at its own time; the units stay taken."""
    rate, began = TokenBucket("rate", "20/s", burst=1), time.monotonic()
    for _ in range(3):
        assert limiter.wait(rate).allowed
    assert 0.1 <= time.monotonic() - began < 30
    assert limiter.wait(TokenBucket("wide", "100/hour", burst=100, key="{k}"), key="a", cost=40).remaining == 60


def test_nothing_is_read_from_the_job_of_a_caller_that_has_none(limiter: Limiter) -> None:
    """As for `acquire`: the tenant has no name, and a queue, a key or a cost that only a job has is an error."""
    limiter.wait(TokenBucket("shared", "1/hour", burst=1, share="{tenant}"))
    for wrong in (
        TokenBucket("of a queue", "1/hour", scope="queue"),
        TokenBucket("with a key", "1/hour", key=lambda job: job.name),
        TokenBucket("with a cost", "1/hour", cost=lambda job: len(job.args)),
    ):
        with pytest.raises(ConfigurationError, match="job"):
            limiter.wait(wrong)


def test_wait_refuses_slots(limiter: Limiter) -> None:
    """`wait` raises for a concurrency limit, because its slot would never be released."""
    with pytest.raises(ConfigurationError, match="'one' grants slots, which must be released: use `hold`"):
        limiter.wait(TokenBucket("rate", "1/s"), ONE)


def test_wait_in_a_task() -> None:
    """`AsyncLimiter.wait` lets other tasks run in the meantime, and takes nothing if it is cancelled."""

    async def main() -> None:
        async with AsyncLimiter() as limiter:
            rate, log = TokenBucket("rate", "20/s", burst=1), SlidingLog("log", "1/hour")
            decisions = await asyncio.wait_for(asyncio.gather(*(limiter.wait(rate) for _ in range(3))), 60)
            assert all(decision.allowed for decision in decisions)
            await limiter.wait(log)
            with pytest.raises(WaitedTooLong):
                await limiter.wait(log, timeout=0.05)
            with pytest.raises(ConfigurationError, match="use `hold`"):
                await limiter.wait(ONE)

    asyncio.run(main())


# As a decorator


def test_decorated_function_uses_its_own_arguments(limiter: Limiter) -> None:
    """Keys, tiers and costs are those of the call; the return value and the name of the function do not change."""
    each = Concurrency("each", 1, key="{account}")
    tokens = TokenBucket("tokens", "100/hour", burst=100, cost=lambda job: job.arguments["size"])

    @limiter.limited(each, tokens)
    def call(account: int, size: int = 7) -> tuple[int, int, int]:
        """What it does."""
        return account, free_of(account), free_of(account + 1)

    def free_of(account: int) -> int:
        return limiter.peek(each, key=account).remaining

    assert call(5) == (5, 0, 1)
    assert call(account=5, size=3) == (5, 0, 1)
    assert limiter.peek(tokens, cost=0).remaining == 90
    assert (call.__name__, call.__doc__) == ("call", "What it does.")


def test_decorated_coroutine_holds_its_limits_while_it_runs(limiter: Limiter) -> None:
    """The limits are held during the run, not only during the call."""

    @limiter.limited(ONE)
    async def call(number: int) -> tuple[int, int]:
        await asyncio.sleep(0)
        return number, free(limiter)

    assert asyncio.run(call(3)) == (3, 0)
    assert free(limiter) == 1


@pytest.mark.parametrize("what", [None, "call", 7])
def test_decorating_a_non_function_is_refused(limiter: Limiter, what: Any) -> None:
    """The decorator takes a function: not None, a text or a number."""
    with pytest.raises(ConfigurationError, match="decorates a function, not"):
        limiter.limited(ONE)(what)


def test_generators_are_refused(limiter: Limiter) -> None:
    """Generators are refused: their bodies run after the slot was released, so the limit would have no effect."""

    def generator() -> Any:
        yield

    async def agenerator() -> Any:
        yield

    for function in (generator, agenerator):
        with pytest.raises(ConfigurationError, match="a generator's body runs after its call"):
            limiter.limited(ONE)(function)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_child_of_a_fork_within_a_hold_releases_nothing(limiter: Limiter) -> None:
    """The child leaves the block as its parent will: the slot belongs to the parent."""
    slots = Concurrency("of the parent", 1)
    with limiter.hold(slots) as held:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about the heartbeat's thread, which the child lacks
            child = os.fork()
        if child == 0:
            held.release()
            os._exit(0 if limiter.peek(slots).remaining == 0 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert limiter.peek(slots).remaining == 1
