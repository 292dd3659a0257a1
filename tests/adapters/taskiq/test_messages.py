"""
The limits of single messages, messages that are put back while the broker is unavailable, and bodies that do not begin.
"""

from __future__ import annotations

import asyncio
import functools
import json
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from taskiq import AsyncBroker, InMemoryBroker, TaskiqDepends
from taskiq.api import run_receiver_task
from taskiq.receiver import Receiver

from support.waiting import wait_until
from throttlekit import (
    Concurrency,
    ConfigurationError,
    Limiter,
    RateLimited,
    TokenBucket,
    current,
)
from throttlekit_taskiq import Throttle
from throttlekit_taskiq._held import Delivered, Holding


class _Broker(InMemoryBroker):
    """
    Keeps sent messages, and runs nothing.

    Attributes:
        failures: How many sends fail at first.
    """

    def __init__(self, failures: int = 0) -> None:
        super().__init__()
        self.failures = failures
        self.sent: list[Any] = []

    async def kick(self, message: Any) -> None:
        if self.failures:
            self.failures -= 1
            raise ConnectionError("away")
        self.sent.append(json.loads(message.message))


def test_each_message_of_one_kicker_has_its_own_key(limiter: Limiter) -> None:
    """With limits of single messages, the key of the first is not the key of the next."""
    broker = _Broker()
    broker.add_middlewares(Throttle(limiter))

    @broker.task
    async def job(account: int) -> None: ...

    async def send() -> None:
        kicker = job.kicker().with_labels(throttle=[TokenBucket("own", "1/s", key="{account}")])
        await kicker.kiq(1)
        await kicker.kiq(2)

    asyncio.run(send())
    assert [json.loads(each["labels"]["throttle"])[0]["key"] for each in broker.sent] == ["1", "2"]


@pytest.mark.parametrize(
    ("option", "meant"),
    [("throtle", "throttle"), ("throttle_maxwait", "throttle_max_wait"), ("max_wait", "throttle_max_wait")],
)
def test_a_misspelt_option_is_refused(option: str, meant: str, limiter: Limiter) -> None:
    """
    taskiq stores any option as a label. An unknown one at a task or message is an error at once, since its limits would
    be ignored.
    """
    broker, limits = _Broker(), {"throttle": [TokenBucket("own", "1/s")]} if option == "max_wait" else {}
    broker.add_middlewares(Throttle(limiter))
    with pytest.raises(ConfigurationError, match=f"no option '{option}': did you mean '{meant}'"):
        broker.task("wrong", **limits, **{option: 5})(_nothing)
    right = broker.task("right", color="red")(_nothing)
    with pytest.raises(ConfigurationError, match=f"no option '{option}': did you mean '{meant}'"):
        asyncio.run(right.kicker().with_labels(**limits, **{option: 5}).kiq())
    assert broker.sent == []


async def _nothing() -> None: ...


def test_an_option_of_none_is_not_sent(limiter: Limiter) -> None:
    """None means the default, as in the declaration; taskiq would send it as the text "None"."""
    broker = _Broker()
    broker.add_middlewares(Throttle(limiter))
    job = broker.task("job", throttle=[TokenBucket("own", "1/s")])(_nothing)
    asyncio.run(job.kicker().with_labels(throttle_max_wait=None, throttle_on_429=None, color=None).kiq())
    (sent,) = broker.sent
    assert {name for name in sent["labels"] if name.startswith(("throttle_", "color"))} == {"color"}


def test_the_limits_of_an_unknown_task_are_an_error(limiter: Limiter) -> None:
    """`limits_of` returns the limits of a declared task, and names a task that does not exist."""
    broker, limit = _Broker(), TokenBucket("own", "1/s")
    broker.add_middlewares(throttle := Throttle(limiter))
    broker.task("job", throttle=[limit])(_nothing)
    assert throttle.limits_of("job") == (limit,)
    with pytest.raises(ConfigurationError, match="no task 'unknown'"):
        throttle.limits_of("unknown")


def test_an_entry_that_its_stream_delivers_again_replaces_the_first_one(limiter: Limiter) -> None:
    """
    The first delivery waits here, and is not put back: the second one waits in its place. Another entry with the same
    task id waits beside it.
    """

    async def run() -> list[str]:
        broker: Any = _Broker()
        broker.idle_timeout = 60_000
        holding = Holding(broker, limiter, lambda: 10, 10)
        task, made = broker.task("job")(_nothing), list[Delivered]()
        for entry in (b"1-0", b"1-0", b"2-0"):
            message = Delivered(broker.formatter.dumps(task.kicker()._prepare_message()).message)
            message.confirm, message.stream, message.entry_id = broker.startup, "tasks", entry
            holding.waiting_of(message, "same")
            await holding.keep(message)
            made.append(message)
        for message in made:
            await holding.put_back(message)
        assert [each["task_name"] for each in broker.sent] == ["job", "job"]
        assert not await holding.is_ours(made[0])
        return [message.task_id for message in made]

    first, second, third = asyncio.run(run())
    assert (first, second) == ("same", "same")
    assert third.startswith("same:")


def test_a_message_that_was_acknowledged_before_its_body_is_this_workers(limiter: Limiter) -> None:
    """A task that waits again after a 429 runs, and is not acknowledged twice, although no broker has it."""
    confirmed: list[int] = []

    async def run() -> bool:
        broker: Any = _Broker()
        broker.idle_timeout = 1000
        holding = Holding(broker, limiter, lambda: 10, 10)
        delivered = Delivered(b"")
        delivered.confirm, delivered.stream, delivered.since = (lambda: confirmed.append(1)), "tasks", -60.0
        await delivered.ack()
        again = delivered.copy_for_callback()
        await again.ack()
        return await holding.is_ours(again)

    assert asyncio.run(run())
    assert confirmed == [1]


@pytest.mark.parametrize("acked", [False, True], ids=["no acknowledgements", "acknowledged before its body"])
def test_a_denied_message_that_would_not_be_redelivered_is_put_back(limiter: Limiter, *, acked: bool) -> None:
    """
    If it is denied while its worker stops and its broker is unavailable for a moment, it is sent when the broker is
    available.
    """
    broker = _Broker(failures=1)

    @broker.task
    async def job() -> None: ...

    async def confirm() -> None: ...

    async def run() -> None:
        holding = Holding(broker, limiter, lambda: 10, 10)
        delivered = Delivered(broker.formatter.dumps(job.kicker()._prepare_message()).message)
        delivered.confirm, delivered.acked = confirm if acked else None, acked
        await holding.put_back(delivered)

    asyncio.run(run())
    assert len(broker.sent) == 1


def _plainly(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that makes a plain function of an async one."""

    @functools.wraps(function)
    def plain(*args: Any) -> Any:
        return function(*args)

    return plain


def test_a_plain_function_that_returns_its_body_to_await_is_refused(broker: InMemoryBroker, limiter: Limiter) -> None:
    """
    A plain function that returns its body to await fails, and its slot is released: otherwise the slot would be free
    before the body begins. Without limits it runs.
    """
    slot, ran = Concurrency("one", 1, lease=600), []

    async def body(number: int) -> int:
        ran.append(number)
        return number

    limited = broker.task("limited", throttle=[slot])(_plainly(body))
    free = broker.task("free")(_plainly(body))

    async def main() -> tuple[Any, Any]:
        await broker.startup()
        failed, done = await limited.kiq(1), await free.kiq(2)
        return await failed.get_result(), await done.get_result()

    failed, done = asyncio.run(main())
    assert limiter.peek(slot).allowed
    assert "declare it with `async def`" in str(failed.error)
    assert (done.return_value, ran) == (2, [2])


def test_a_slot_is_free_after_a_dependency_failed_in_the_senders_task(broker: InMemoryBroker) -> None:
    """With a broker in memory, which runs a task as it is sent, the next task of the same sender gets the slot."""
    slot, fails = Concurrency("one", 1, lease=600), [True]

    def depended() -> int:
        if fails.pop():
            raise ValueError("no")
        return 1

    @broker.task(throttle=[slot])
    async def job(given: int = TaskiqDepends(depended)) -> int:
        return given

    async def main() -> Any:
        await broker.startup()
        assert (await (await job.kiq()).get_result()).is_err
        fails.append(False)
        sent = await asyncio.wait_for(job.kiq(), 30)
        return (await sent.get_result()).return_value

    assert asyncio.run(main()) == 1


def test_a_task_that_has_sent_another_one_in_place_waits_after_a_429(broker: InMemoryBroker, run_task: Any) -> None:
    """With a broker in memory, the other task runs within it. Afterwards, the first task is the current one again."""
    ran, limit = list[str](), TokenBucket("partner", "1000/s")

    @broker.task(throttle=[limit])
    async def inner() -> None:
        ran.append("inner")

    @broker.task(throttle=[limit])
    async def outer() -> None:
        await inner.kiq()
        ran.append("outer")
        if len(ran) == 2:
            raise RateLimited(retry_after=0.01)

    assert not run_task(outer).is_err
    assert ran == ["inner", "outer"] * 2


def test_a_body_can_call_the_function_of_a_task_that_has_failed_within_it(
    broker: InMemoryBroker, run_task: Any
) -> None:
    """A dependency of the other task has failed, so its body did not run. A direct call is an ordinary call."""
    limit = TokenBucket("partner", "1000/s")

    def depended() -> int:
        raise ValueError("no")

    @broker.task(throttle=[limit])
    async def inner(given: int = TaskiqDepends(depended)) -> int:
        return given

    @broker.task(throttle=[limit])
    async def outer() -> int:
        await inner.kiq()
        return await inner(7)

    assert run_task(outer).return_value == 7


def test_a_task_whose_event_loop_was_closed_waits_no_more(limiter: Limiter, caplog: pytest.LogCaptureFixture) -> None:
    """With a broker in memory, a waiting task ends with its loop. It is woken once, and leaves the waitlist."""
    broker, slot = InMemoryBroker(), Concurrency("one", 1, lease=600)
    broker.add_middlewares(Throttle(limiter))

    @broker.task(throttle=[slot])
    async def job() -> None: ...

    async def main() -> None:
        await broker.startup()
        await job.kiq()
        while len(limiter.waker._here.room) < 1:
            await asyncio.sleep(0.01)

    taken = limiter.acquire(slot)
    asyncio.run(asyncio.wait_for(main(), 30))
    limiter.release(taken)
    wait_until(lambda: len(limiter.waker._here.room) == 0, description="the waker has no job")
    wait_until(lambda: limiter.acquire(slot).allowed, description="the slot is free")
    assert "could not be started" not in caplog.text


class _Queue(AsyncBroker):
    """A broker whose receiver reads sent messages from a queue."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: asyncio.Queue[bytes] = asyncio.Queue()

    async def kick(self, message: Any) -> None:
        await self.queue.put(message.message)

    async def listen(self) -> AsyncGenerator[bytes, None]:  # type: ignore[override]
        while True:
            yield await self.queue.get()


class _Breaking(_Queue):
    """Its first read fails when `breaks` is set. `sent` counts the messages that it got."""

    def __init__(self) -> None:
        super().__init__()
        self.breaks: asyncio.Event = asyncio.Event()
        self.sent = 0

    async def kick(self, message: Any) -> None:
        self.sent += 1
        await super().kick(message)

    async def listen(self) -> AsyncGenerator[bytes, None]:  # type: ignore[override]
        while True:
            breaking = asyncio.ensure_future(self.breaks.wait())
            reading = asyncio.ensure_future(self.queue.get())
            await asyncio.wait([breaking, reading], return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                yield reading.result()
            else:
                reading.cancel()
                self.breaks.clear()
                raise ConnectionError("the broker is away")


def test_tasks_wait_after_the_receiver_has_failed_and_listens_again(limiter: Limiter) -> None:
    """
    `run_receiver_task` makes another receiver after an error of the broker. The waiting tasks are put back once, wait
    again in the same process, and run when they are woken.
    """
    broker, ran, limit = _Breaking(), list[int](), TokenBucket("paused", "1000/s")
    broker.add_middlewares(throttle := Throttle(limiter))

    @broker.task("job", throttle=[limit])
    async def job(number: int) -> None:
        ran.append(number)

    async def until(condition: Callable[[], bool], description: str) -> None:
        await asyncio.to_thread(wait_until, condition, description=description)

    async def main() -> None:
        await broker.startup()
        for number in range(2):
            await job.kiq(number)
        receiving = asyncio.ensure_future(run_receiver_task(broker, max_async_tasks=3))
        await until(lambda: len(throttle._holding.waker) == 2, "both tasks wait")
        first = throttle._receiver
        broker.breaks.set()
        await until(lambda: broker.sent >= 4, "both tasks were put back")
        await until(lambda: len(throttle._holding.waker) == 2, "both tasks wait again")
        assert throttle._receiver not in (None, first)
        limiter.resume(limit)
        await until(lambda: len(ran) == 2, "both tasks have run")
        receiving.cancel()
        await asyncio.wait([receiving])

    limiter.pause(limit, 600)
    broker.is_worker_process = True
    asyncio.run(main())
    assert ran == [0, 1]
    assert broker.sent == 4


def test_a_denied_task_does_not_count_as_executed(limiter: Limiter) -> None:
    """A worker with `--max-tasks-per-child 3` ends after three tasks have run, whatever their denials."""
    broker, ran, limit = _Queue(), list[int](), TokenBucket("paused", "1000/s")
    broker.add_middlewares(throttle := Throttle(limiter))
    broker.is_worker_process = True

    @broker.task("limited", throttle=[limit])
    async def limited(number: int) -> None:
        ran.append(number)

    async def main() -> None:
        await broker.startup()
        receiver = Receiver(broker, max_async_tasks=3, max_tasks_to_execute=3, run_startup=False)
        receiving = asyncio.ensure_future(receiver.listen(asyncio.Event()))
        for count in range(1, 4):
            await limited.kiq(count)
            waker = throttle._holding.waker
            await asyncio.to_thread(wait_until, lambda: len(waker) == count, description="it waits")  # noqa: B023
        limiter.resume(limit)
        await asyncio.wait_for(receiving, 60)

    limiter.pause(limit, 600)
    asyncio.run(main())
    assert sorted(ran) == [1, 2, 3]


@pytest.mark.parametrize("form", ["loop", "thread"])
def test_units_that_a_body_returns_wake_the_next_task(
    form: str, monkeypatch: pytest.MonkeyPatch, limiter: Limiter
) -> None:
    """The next task is woken when the body ends. In this test, the worker polls its waitlist only every ten minutes."""
    monkeypatch.setattr("throttlekit.adapter.loop._LOOK_EVERY", 600.0)
    broker, ran, go = _Queue(), list[int](), threading.Event()
    tokens = TokenBucket("tokens", "10/hour", burst=10, cost=10)

    def settle(number: int) -> None:
        ran.append(number)
        go.wait(60)
        current().settle(0)

    async def settle_in_loop(number: int) -> None:
        ran.append(number)
        await asyncio.to_thread(go.wait, 60)
        current().settle(0)

    async def main() -> None:
        await broker.startup()
        task = broker.task("settle", throttle=[tokens])(settle if form == "thread" else settle_in_loop)
        for number in range(3):
            await task.kiq(number)
        finish = asyncio.Event()
        with ThreadPoolExecutor(3) as executor:
            receiver = Receiver(broker, executor=executor, max_async_tasks=3, run_startup=False)
            receiving = asyncio.ensure_future(receiver.listen(finish))
            waker = throttle._holding.waker
            await asyncio.to_thread(wait_until, lambda: len(waker) == 2, description="two tasks wait")
            go.set()
            await asyncio.to_thread(wait_until, lambda: len(ran) == 3, description="all tasks have run")
            finish.set()
            await receiving

    broker.add_middlewares(throttle := Throttle(limiter))
    broker.is_worker_process = True
    asyncio.run(main())
    assert ran == [0, 1, 2]
