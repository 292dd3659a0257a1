"""What only the asyncio limiter promises: tasks share round trips, the loop runs on, a cancelled task takes nothing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
import redis

from support.servers.stores import Passing
from throttlekit import AsyncLimiter, Concurrency, ConfigurationError, Job, Limit, Limiter, TokenBucket
from throttlekit._core.answer import Answer
from throttlekit._core.storage_keys import bucket_name
from throttlekit.stores import MemoryStore, Request
from throttlekit.stores.redis import RedisStore

LIMIT = TokenBucket("partner", "1/h", burst=40)
OTHER = TokenBucket("other", "1/h", burst=200)
SLOTS = Concurrency("slots", 1)
OWN = TokenBucket("own", "1/h", burst=3, scope="process")
JOB = Job(id="1", name="call_partner")


class Counting(RedisStore):
    """Counts the requests in each round trip."""

    def __init__(self, url: str) -> None:
        super().__init__(url, timeout=5)
        self.together: list[int] = []

    def decide_all(self, requests: Sequence[Request]) -> Sequence[Answer | Exception]:
        self.together.append(len(requests))
        return super().decide_all(requests)


class Slow(Passing):
    """A store in which each call blocks until the test lets it go."""

    def __init__(self) -> None:
        self.inner, self.asked, self.go = MemoryStore(), threading.Semaphore(0), threading.Event()

    def decide(self, claims: Any, requester: Any, now_us: int | None = None, *, attempt: str = "") -> Answer:
        request = Request(claims, requester, attempt)
        self.asked.release()
        assert self.go.wait(30)
        return self.inner.decide(request.claims, request.requester, now_us, attempt=request.attempt)


def _run(work: Callable[[AsyncLimiter], Awaitable[None]], store: Any) -> None:
    """Run *work* with a limiter, and close the limiter."""

    async def main() -> None:
        async with AsyncLimiter(store) as limiter:
            await work(limiter)

    asyncio.run(main())


async def _asked(store: Slow) -> None:
    """Wait until a call is under way."""
    assert await asyncio.to_thread(store.asked.acquire, timeout=30)


async def _take(limiter: AsyncLimiter, *limits: Limit, times: int) -> list[str]:
    decisions = await asyncio.gather(*[limiter.acquire(*limits) for _ in range(times)])
    return [decision.reason for decision in decisions]


def test_tasks_share_round_trips(redis_url: str) -> None:
    """Up to 64 requests in each round trip, each decided by itself: the bound holds to the unit."""
    store = Counting(redis_url)

    async def work(limiter: AsyncLimiter) -> None:
        await limiter.acquire(OTHER)  # the first asks the rules of live control, in a thread
        store.together.clear()
        reasons = await _take(limiter, LIMIT, times=150)
        assert reasons.count("allowed") == 40
        assert store.together == [64, 64, 22]
        assert (await limiter.acquire(OTHER)).allowed
        assert store.together[3:] == [1]

    _run(work, store)


def test_every_verb_works_on_a_server(redis_url: str) -> None:
    """It has the same verbs as the other limiter."""

    async def work(limiter: AsyncLimiter) -> None:
        limiter.declare(LIMIT)
        decision = await limiter.acquire(LIMIT, cost=10)
        assert (await limiter.settle(decision, actual=4)).cost == 4
        assert (await limiter.peek(LIMIT)).remaining == 36
        await limiter.pause(LIMIT, 60)
        assert (await limiter.acquire(LIMIT, job=JOB)).reason == "paused"
        await limiter.resume(LIMIT)
        await limiter.reset(LIMIT)
        assert (await limiter.peek(LIMIT)).remaining == 40
        held = await limiter.acquire(SLOTS)
        limiter.keep(held, lambda: None)
        assert not (await limiter.acquire(SLOTS)).allowed
        await limiter.release(held)
        async with limiter.hold(SLOTS, timeout=30) as running:
            assert running.decision is not None

        @limiter.limited(SLOTS, timeout=30)
        async def body(number: int) -> int:
            return number

        assert await body(7) == 7
        assert not limiter.in_memory

    _run(work, redis_url)


def test_error_of_one_request_is_its_own(client: Any, redis_url: str) -> None:
    """A key of another type fails the calls for that key, and no other call of the same round trip."""
    key = bucket_name(LIMIT.name, "", LIMIT.fingerprint)
    client.rpush(key, "x")
    client.expire(key, 600)

    async def work(limiter: AsyncLimiter) -> None:
        bad, good = await asyncio.gather(_take(limiter, LIMIT, times=3), _take(limiter, OTHER, times=3))
        assert bad == ["store unavailable"] * 3
        assert good == ["allowed"] * 3

    _run(work, redis_url)


def test_forgotten_script_is_sent_again_for_a_batch(client: Any, redis_url: str) -> None:
    """After SCRIPT FLUSH each request is decided, and charged once."""

    async def work(limiter: AsyncLimiter) -> None:
        await limiter.acquire(OTHER)
        client.script_flush()
        assert await _take(limiter, OTHER, times=5) == ["allowed"] * 5
        assert (await limiter.peek(OTHER)).remaining == 194

    _run(work, redis_url)


def test_time_out_allows_nothing(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round trip without a reply allows none of its requests; once the server answers again all go on."""
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


def test_loop_runs_while_a_call_is_under_way() -> None:
    """The loop runs on while a call is under way."""
    store = Slow()

    async def work(limiter: AsyncLimiter) -> None:
        task = asyncio.create_task(limiter.acquire(LIMIT))
        await _asked(store)
        for _ in range(50):
            await asyncio.sleep(0)
        assert not task.done()
        store.go.set()
        assert (await task).allowed

    _run(work, store)


def test_grant_of_a_cancelled_task_is_given_back() -> None:
    """A grant for a task that was cancelled meanwhile is not charged, and holds no slot."""
    store = Slow()

    async def work(limiter: AsyncLimiter) -> None:
        task = asyncio.create_task(limiter.acquire(LIMIT, SLOTS, cost=1))
        await _asked(store)
        task.cancel()
        store.go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await limiter.peek(LIMIT)).remaining == 40
        assert (await limiter.peek(SLOTS)).remaining == 1

    _run(work, store)


def test_task_cancelled_while_it_waits_makes_no_call() -> None:
    """The tasks that wait beside it are decided."""
    store = Slow()

    async def work(limiter: AsyncLimiter) -> None:
        first = asyncio.create_task(limiter.acquire(LIMIT))
        await _asked(store)
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


def test_grant_of_a_task_cancelled_after_the_reply_is_given_back() -> None:
    """The reply is there, and the task is cancelled before it goes on."""
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


def test_grant_just_after_the_cancellation_is_given_back() -> None:
    """Before the task has gone on: it ends all the same, and nothing is charged."""
    store = Slow()

    async def work(limiter: AsyncLimiter) -> None:
        task = asyncio.create_task(limiter.acquire(LIMIT))
        await _asked(store)
        (batches,) = limiter._loops.values()
        deliver, come = batches._finish, asyncio.Event()

        def tell(*args: Any) -> None:
            task.cancel()
            deliver(*args)
            come.set()

        batches._finish = tell  # type: ignore[method-assign]
        store.go.set()
        await asyncio.wait_for(come.wait(), 30)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 10)
        batches._finish = deliver  # type: ignore[method-assign]
        assert (await limiter.peek(LIMIT)).remaining == 40

    _run(work, store)


def test_grant_under_live_control_is_given_back_before_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """With rules of live control too, `CancelledError` is raised only once nothing is charged."""
    store = Slow()

    async def work(limiter: AsyncLimiter) -> None:
        async def in_force() -> bool:
            return True

        monkeypatch.setattr(limiter, "_has_overrides", in_force)
        task = asyncio.create_task(limiter.acquire(LIMIT, SLOTS, cost=1))
        await _asked(store)
        task.cancel()
        asyncio.get_running_loop().call_later(0.01, store.go.set)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert store.go.is_set()
        assert Limiter(store.inner).peek(LIMIT).remaining == 40
        assert Limiter(store.inner).peek(SLOTS).remaining == 1

    _run(work, store)


def test_call_while_another_loop_closes() -> None:
    """A call at that very moment is decided all the same, by new threads."""
    store = Slow()
    store.go.set()

    async def work(limiter: AsyncLimiter) -> None:
        assert (await limiter.acquire(LIMIT)).allowed
        threads: Any = limiter._limiter.threads._executor

        def late(function: Any) -> Any:
            limiter._limiter.threads._executor = None
            threads.shutdown(wait=False)
            return type(threads).submit(threads, function)

        threads.submit = late
        assert (await asyncio.wait_for(limiter.acquire(LIMIT), 30)).allowed

    _run(work, store)


def test_call_while_the_interpreter_ends_is_an_error() -> None:
    """No new thread can start: every task gets an error, and none waits for ever."""
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


def test_limits_of_this_process_are_decided_first(redis_url: str) -> None:
    """They are decided first, with no round trip for the requests that they deny."""

    async def work(limiter: AsyncLimiter) -> None:
        reasons = await _take(limiter, OWN, OTHER, times=5)
        assert reasons.count("allowed") == 3
        assert (await limiter.peek(OTHER)).remaining == 197

    _run(work, redis_url)


def test_one_limiter_serves_several_loops(redis_url: str) -> None:
    """One after the other, and in threads at the same time."""
    limiter = AsyncLimiter(redis_url)

    async def take() -> None:
        assert "store unavailable" not in await _take(limiter, OTHER, times=10)

    threads = [threading.Thread(target=asyncio.run, args=(take(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    async def last() -> None:
        assert (await limiter.peek(OTHER)).remaining == 170
        await limiter.close()

    asyncio.run(last())
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("throttlekit_") and thread.daemon]


def test_asyncio_is_imported_only_when_used() -> None:
    """`import throttlekit` does not import asyncio; the first use of AsyncLimiter does."""
    loaded = "print('asyncio' in sys.modules)"
    script = f"import sys, throttlekit; {loaded}; throttlekit.AsyncLimiter; {loaded}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_async_limiter_of_a_limiter_counts_with_it() -> None:
    """A process with both kinds has one count of its own; the limiter stays open for its owner."""
    own, here = TokenBucket("own", "1/h", scope="process"), TokenBucket("here", "1/h")
    plain = Limiter()

    async def asked() -> list[bool]:
        async with AsyncLimiter(plain) as both:
            return [(await both.acquire(each)).allowed for each in (own, here)]

    assert asyncio.run(asked()) == [True, True]
    assert [plain.acquire(each).allowed for each in (own, here)] == [False, False]


@pytest.mark.parametrize("options", [{"plugins": [object()]}, {"client": object()}])
def test_limiter_of_another_limiter_takes_no_options(options: dict[str, Any]) -> None:
    """The client and the plugins are those of the limiter that is shared."""
    with pytest.raises(ConfigurationError, match="has the client, the plugins and the stores of that limiter"):
        AsyncLimiter(Limiter(), **options)
