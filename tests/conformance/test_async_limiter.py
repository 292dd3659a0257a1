"""
What only the asyncio limiter guarantees: tasks share round trips, the loop is not blocked, and a cancelled task takes
nothing.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
import redis

from support.servers.stores import Passing
from support.threads import run_in_threads
from throttlekit import AsyncLimiter, Concurrency, ConfigurationError, Delivery, Job, Limit, Limiter, TokenBucket
from throttlekit._core.answer import Answer
from throttlekit._core.storage_keys import bucket_name
from throttlekit.adapter import Waiting
from throttlekit.stores import MemoryStore, Request
from throttlekit.stores.redis import RedisStore

LIMIT = TokenBucket("partner", "1/h", burst=40)
OTHER = TokenBucket("other", "1/h", burst=200)
SLOTS = Concurrency("slots", 1)
OWN = TokenBucket("own", "1/h", burst=3, scope="process")
JOB = Job(id="1", name="call_partner")


class Counting(RedisStore):
    """A store that records how many requests each round trip has."""

    def __init__(self, url: str) -> None:
        super().__init__(url, timeout=5)
        self.batch_sizes: list[int] = []

    def decide_all(self, requests: Sequence[Request]) -> Sequence[Answer | Exception]:
        self.batch_sizes.append(len(requests))
        return super().decide_all(requests)


class Slow(Passing):
    """A store in which each call blocks until the test sets `go`."""

    def __init__(self) -> None:
        self.inner, self.requested, self.go = MemoryStore(), threading.Semaphore(0), threading.Event()

    def decide(self, claims: Any, requester: Any, now_us: int | None = None, *, attempt: str = "") -> Answer:
        self.requested.release()
        assert self.go.wait(30)
        return self.inner.decide(claims, requester, now_us, attempt=attempt)


def _run(work: Callable[[AsyncLimiter], Awaitable[None]], store: Any) -> None:
    """Run *work* with a limiter, and close the limiter."""

    async def main() -> None:
        async with AsyncLimiter(store) as limiter:
            await work(limiter)

    asyncio.run(main())


async def _wait_for_request(store: Slow) -> None:
    """Wait until a call is in progress."""
    assert await asyncio.to_thread(store.requested.acquire, timeout=30)


async def _take(limiter: AsyncLimiter, *limits: Limit, times: int) -> list[str]:
    decisions = await asyncio.gather(*[limiter.acquire(*limits) for _ in range(times)])
    return [decision.reason for decision in decisions]


def test_tasks_share_round_trips(redis_url: str) -> None:
    """A round trip has up to 64 requests, each is decided separately, and exactly the capacity is granted."""
    store = Counting(redis_url)

    async def work(limiter: AsyncLimiter) -> None:
        await limiter.acquire(OTHER)  # the first call reads the rules of live control, in a thread
        store.batch_sizes.clear()
        reasons = await _take(limiter, LIMIT, times=150)
        assert reasons.count("allowed") == 40
        assert store.batch_sizes == [64, 64, 22]
        assert (await limiter.acquire(OTHER)).allowed
        assert store.batch_sizes[3:] == [1]

    _run(work, store)


def test_an_error_of_one_request_fails_no_other(client: Any, redis_url: str) -> None:
    """A key of another type fails the calls for that key, and no other call of the same round trip."""
    key = bucket_name(LIMIT.name, "", LIMIT.fingerprint)
    client.rpush(key, "x")
    client.expire(key, 600)

    async def work(limiter: AsyncLimiter) -> None:
        bad, good = await asyncio.gather(_take(limiter, LIMIT, times=3), _take(limiter, OTHER, times=3))
        assert bad == ["store unavailable"] * 3
        assert good == ["allowed"] * 3

    _run(work, redis_url)


def test_a_lost_script_is_sent_again_for_a_batch(client: Any, redis_url: str) -> None:
    """After SCRIPT FLUSH each request is decided, and charged once."""

    async def work(limiter: AsyncLimiter) -> None:
        await limiter.acquire(OTHER)
        client.script_flush()
        assert await _take(limiter, OTHER, times=5) == ["allowed"] * 5
        assert (await limiter.peek(OTHER)).remaining == 194

    _run(work, redis_url)


def test_a_time_out_admits_no_request(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a round trip gets no reply, none of its requests is admitted. When the server replies again, requests are."""
    store = Counting(redis_url)
    decide_all = store._pool.execute_all

    def silent(frames: Sequence[bytes]) -> list[Any]:
        decide_all(frames)
        raise redis.TimeoutError("no answer")

    async def work(limiter: AsyncLimiter) -> None:
        monkeypatch.setattr(store._pool, "execute_all", silent)
        assert await _take(limiter, OTHER, times=5) == ["store unavailable"] * 5
        monkeypatch.setattr(store._pool, "execute_all", decide_all)
        while "allowed" not in await _take(limiter, OTHER, times=2):
            await asyncio.sleep(0.05)

    _run(work, store)


def test_the_loop_is_not_blocked_by_a_call() -> None:
    """The event loop runs other tasks while a call is in progress."""
    store = Slow()

    async def work(limiter: AsyncLimiter) -> None:
        task = asyncio.create_task(limiter.acquire(LIMIT))
        await _wait_for_request(store)
        for _ in range(50):
            await asyncio.sleep(0)
        assert not task.done()
        store.go.set()
        assert (await task).allowed

    _run(work, store)


def test_a_task_that_is_cancelled_before_its_call_makes_none() -> None:
    """A cancelled task is removed from its batch, and the other tasks of the batch are decided."""
    store = Slow()

    async def work(limiter: AsyncLimiter) -> None:
        first = asyncio.create_task(limiter.acquire(LIMIT))
        await _wait_for_request(store)
        second, third = (asyncio.create_task(limiter.acquire(LIMIT)) for _ in range(2))
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        store.go.set()
        assert (await first).allowed
        assert (await third).allowed
        assert (await limiter.peek(LIMIT)).remaining == 38

    _run(work, store)


def test_the_grant_of_a_task_cancelled_after_the_reply_is_returned() -> None:
    """The task is cancelled after the reply has arrived, and before the task continues."""
    store = Passing()
    store.inner = MemoryStore()

    async def work(limiter: AsyncLimiter) -> None:
        assert (await limiter.peek(LIMIT)).remaining == 40
        (batches,) = limiter._loops.values()
        deliver, batches._finish = batches._finish, lambda *args: (deliver(*args), task.cancel())  # type: ignore[method-assign]
        task = asyncio.create_task(limiter.acquire(LIMIT))
        with pytest.raises(asyncio.CancelledError):
            await task
        batches._finish = deliver  # type: ignore[method-assign]
        assert (await limiter.peek(LIMIT)).remaining == 40

    _run(work, store)


def test_a_grant_just_after_the_cancellation_is_returned() -> None:
    """A reply that arrives between the cancellation and the end of the task leaves no charge, and the task ends."""
    store = Slow()

    async def work(limiter: AsyncLimiter) -> None:
        task = asyncio.create_task(limiter.acquire(LIMIT))
        await _wait_for_request(store)
        (batches,) = limiter._loops.values()
        deliver, delivered = batches._finish, asyncio.Event()

        def cancel_and_deliver(*args: Any) -> None:
            task.cancel()
            deliver(*args)
            delivered.set()

        batches._finish = cancel_and_deliver  # type: ignore[method-assign]
        store.go.set()
        await asyncio.wait_for(delivered.wait(), 30)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 10)
        batches._finish = deliver  # type: ignore[method-assign]
        assert (await limiter.peek(LIMIT)).remaining == 40

    _run(work, store)


@pytest.mark.parametrize("overrides", [False, True], ids=["plain", "live control"])
def test_the_grant_of_a_cancelled_task_is_returned(overrides: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a task is cancelled during the call, `CancelledError` is raised only when nothing is charged any more."""
    store = Slow()

    async def work(limiter: AsyncLimiter) -> None:
        async def has_overrides() -> bool:
            return overrides

        monkeypatch.setattr(limiter, "_has_overrides", has_overrides)
        task = asyncio.create_task(limiter.acquire(LIMIT, SLOTS, cost=1))
        await _wait_for_request(store)
        task.cancel()
        asyncio.get_running_loop().call_later(0.01, store.go.set)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert store.go.is_set()
        assert Limiter(store.inner).peek(LIMIT).remaining == 40
        assert Limiter(store.inner).peek(SLOTS).remaining == 1

    _run(work, store)


def test_a_call_while_another_loop_closes_is_decided() -> None:
    """If another loop shuts the threads down during a call, new threads decide it."""
    store = Slow()
    store.go.set()

    async def work(limiter: AsyncLimiter) -> None:
        assert (await limiter.acquire(LIMIT)).allowed
        threads: Any = limiter._limiter.threads._executor

        def submit_after_shutdown(function: Any) -> Any:
            limiter._limiter.threads._executor = None
            threads.shutdown(wait=False)
            return type(threads).submit(threads, function)

        threads.submit = submit_after_shutdown
        assert (await asyncio.wait_for(limiter.acquire(LIMIT), 30)).allowed

    _run(work, store)


def test_a_call_while_the_interpreter_ends_is_an_error() -> None:
    """If no new thread can start, every task gets an error, and none waits without end."""
    store = Slow()
    store.go.set()

    async def work(limiter: AsyncLimiter) -> None:
        assert (await limiter.acquire(LIMIT)).allowed
        threads: Any = limiter._limiter.threads._executor
        threads.shutdown()
        results = await asyncio.wait_for(
            asyncio.gather(*[limiter.acquire(LIMIT) for _ in range(100)], return_exceptions=True), 30
        )
        assert {type(each) for each in results} == {RuntimeError}
        limiter._limiter.threads._executor = None
        assert (await limiter.acquire(LIMIT)).allowed

    _run(work, store)


def test_limits_of_this_process_need_no_round_trip(redis_url: str) -> None:
    """Limits of this process are decided first, and a request that they deny makes no round trip."""

    async def work(limiter: AsyncLimiter) -> None:
        reasons = await _take(limiter, OWN, OTHER, times=5)
        assert reasons.count("allowed") == 3
        assert (await limiter.peek(OTHER)).remaining == 197

    _run(work, redis_url)


def test_one_limiter_serves_several_loops(redis_url: str) -> None:
    """Several loops use one limiter, in threads at the same time and one after the other."""
    limiter = AsyncLimiter(redis_url)

    async def take() -> None:
        assert "store unavailable" not in await _take(limiter, OTHER, times=10)

    run_in_threads(3, lambda _: asyncio.run(take()))

    async def last() -> None:
        assert (await limiter.peek(OTHER)).remaining == 170
        await limiter.close()

    asyncio.run(last())
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("throttlekit_") and thread.daemon]


@pytest.mark.parametrize("is_held", [False, True])
def test_the_end_of_a_wait_does_not_block_the_loop(is_held: bool) -> None:
    """A job whose `max_wait` is over is removed from its waitlists in a thread."""
    threads: list[int] = []

    class Forgetting(Passing):
        inner = MemoryStore()

        def forget(self, *args: Any, **options: Any) -> None:
            threads.append(threading.get_ident())
            self.inner.forget(*args, **options)

    plain = Limiter(Forgetting())

    async def end() -> None:
        limiter = AsyncLimiter(plain)
        await limiter.acquire(LIMIT, cost=40)
        waits = Waiting(plain.waker, lambda: None) if is_held else None
        decision = await limiter.acquire(LIMIT, job=JOB, delivery=Delivery(max_wait=0, waits=waits))
        assert decision.reason == "waited too long"

    asyncio.run(end())
    assert len(threads) == 1
    assert threading.get_ident() not in threads
    plain.close()


def test_async_limiter_of_a_limiter_counts_with_it() -> None:
    """A limiter and the asyncio limiter made from it share one count, and the limiter stays open."""
    own, here = TokenBucket("own", "1/h", scope="process"), TokenBucket("here", "1/h")
    plain = Limiter()

    async def decide_both() -> list[bool]:
        async with AsyncLimiter(plain) as both:
            return [(await both.acquire(each)).allowed for each in (own, here)]

    assert asyncio.run(decide_both()) == [True, True]
    assert [plain.acquire(each).allowed for each in (own, here)] == [False, False]


@pytest.mark.parametrize("options", [{"plugins": [object()]}, {"client": object()}, {"stores": {}}])
def test_limiter_of_another_limiter_takes_no_options(options: dict[str, Any]) -> None:
    """A limiter made from another limiter uses the client, the plugins and the stores of that limiter."""
    with pytest.raises(ConfigurationError, match="has the client, the plugins and the stores of that limiter"):
        AsyncLimiter(Limiter(), **options)
