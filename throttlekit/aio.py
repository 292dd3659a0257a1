"""The verbs as coroutines, for event loops: `AsyncLimiter`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import TypeVar
from weakref import WeakKeyDictionary

from throttlekit._core.acquire import Verdict
from throttlekit._core.decision import Decision
from throttlekit._core.job import Job
from throttlekit._core.limit.base import Limit
from throttlekit._engine.claims import Claim, build_peek, build_request, decision_from, peek_decision
from throttlekit._engine.delivery import Delivery
from throttlekit._engine.pipeline import PLAIN_DELIVERY
from throttlekit._engine.running import Running
from throttlekit._engine.ticket import Ticket
from throttlekit._util.fork_safety import renew_lock_after_fork
from throttlekit.adapter.rate_limited import give_back
from throttlekit.limiter import NO_CLIENT, Limiter
from throttlekit.stores.base import Request, Store

__all__ = ["AsyncLimiter"]

_MOST_AT_ONCE = 64
_THREADS = 4
_T = TypeVar("_T")
_F = TypeVar("_F", bound=Callable[..., Awaitable[object]])
_Answer = Verdict | Exception


class AsyncLimiter:
    """
    `Limiter` for asyncio: the same verbs, with the same meaning, as coroutines. Make one per process.

    The event loop never waits for a socket: threads of its own do, at most four. What tasks ask for while a round trip
    is under way goes to the server together in the next one, each decided by itself: so the more ask at once, the
    less each of them costs. Whoever asks alone waits for nobody.

    A coroutine that is cancelled takes nothing: an `acquire` that the store had granted already is given back before
    `CancelledError` goes on, which may take as long as the store's time-out. All other verbs are carried through.

    Keys, costs and hooks that are functions are called in the event loop. Sharing it between loops is safe.

    Args:
        store, client, plugins: As for `Limiter`; raises the same.
    """

    def __init__(
        self, store: str | Store = "memory://", *, client: object = NO_CLIENT, plugins: Sequence[object] = ()
    ) -> None:
        self._limiter = Limiter(store, client=client, plugins=plugins)
        self._deciding = self._limiter.deciding
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _Batches] = WeakKeyDictionary()
        self._threads: ThreadPoolExecutor | None = None
        renew_lock_after_fork(self, "_threads", lambda: None)

    @property
    def in_memory(self) -> bool:
        """Whether limits hold in this process only."""
        return self._limiter.in_memory

    async def acquire(
        self,
        *limits: Limit,
        job: Job | None = None,
        key: str | int | None = None,
        cost: int | None = None,
        delivery: Delivery = PLAIN_DELIVERY,
    ) -> Decision:
        """As `Limiter.acquire`; but nothing is waited for in place, whatever *delivery* says."""
        delivery = delivery if delivery.inline is None else replace(delivery, inline=None)
        deciding = self._deciding
        if await self._steers():
            return await self._carried_through(partial(deciding.overridden, limits, job, key, cost, delivery))
        spent = deciding.from_hand(limits, job, key, cost)
        if spent is not None:
            return spent
        asked = deciding.asked(limits, job, key, cost, delivery)
        ticket, began = Ticket.read(job.ticket if job is not None else None), deciding.began()
        question = self._put(build_request(asked, job, ticket, delivery), asked)
        try:
            answer = await question.answered
        except asyncio.CancelledError:
            await asyncio.shield(self._give_back(question))
            raise
        found = deciding.concluded(answer, asked, job, ticket, delivery, began)
        assert isinstance(found, Decision)  # noqa: S101 - nobody waits in place here
        return found

    async def peek(
        self, *limits: Limit, job: Job | None = None, key: str | int | None = None, cost: int | None = None
    ) -> Decision:
        """As `Limiter.peek`."""
        if await self._steers():
            return await self._in_thread(partial(self._deciding.peek, limits, job, key, cost))
        asked = self._deciding.asked(limits, job, key, cost)
        answer = await self._put(build_peek(asked, job), asked).answered
        if isinstance(answer, Exception):
            raise answer
        return peek_decision(answer, asked)

    async def settle(self, decision: Decision, *, actual: int, limit: Limit | None = None) -> Decision:
        """As `Limiter.settle`."""
        return await self._in_thread(partial(self._limiter.settle, decision, actual=actual, limit=limit))

    async def release(self, decision: Decision) -> None:
        """As `Limiter.release`."""
        await self._in_thread(partial(self._limiter.release, decision))

    def keep(self, decision: Decision, on_lost: Callable[[], None]) -> None:
        """As `Limiter.keep`; it asks nobody. *on_lost* is called in another thread."""
        self._limiter.keep(decision, on_lost)

    def hold(
        self,
        *limits: Limit,
        job: Job | None = None,
        key: str | int | None = None,
        cost: int | None = None,
        timeout: float | timedelta | None = None,
    ) -> AbstractAsyncContextManager[Running]:
        """As `Limiter.hold`: `async with limiter.hold(slots): …`."""
        return self._limiter.hold(*limits, job=job, key=key, cost=cost, timeout=timeout)

    def limited(self, *limits: Limit, timeout: float | timedelta | None = None) -> Callable[[_F], _F]:
        """As `Limiter.holding`, for coroutine functions."""
        return self._limiter.limited(*limits, timeout=timeout)

    async def pause(
        self, limit: Limit, seconds: float | timedelta, *, job: Job | None = None, key: str | int | None = None
    ) -> None:
        """As `Limiter.pause`."""
        await self._in_thread(partial(self._limiter.pause, limit, seconds, job=job, key=key))

    async def resume(self, limit: Limit, *, job: Job | None = None, key: str | int | None = None) -> None:
        """As `Limiter.resume`."""
        await self._in_thread(partial(self._limiter.resume, limit, job=job, key=key))

    async def reset(self, *limits: Limit, job: Job | None = None, key: str | int | None = None) -> None:
        """As `Limiter.reset`."""
        await self._in_thread(partial(self._limiter.reset, *limits, job=job, key=key))

    def declare(self, *limits: Limit) -> None:
        """As `Limiter.declare`; it asks nobody."""
        self._limiter.declare(*limits)

    async def close(self) -> None:
        """Let go of the store's connections, and of the threads. It may be used again afterwards."""
        await self._in_thread(self._limiter.close)
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False)

    async def __aenter__(self) -> AsyncLimiter:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _put(self, request: Request, asked: Sequence[Claim]) -> _Question:
        loop = asyncio.get_running_loop()
        batches = self._loops.get(loop)
        if batches is None:
            batches = self._loops[loop] = _Batches(self._deciding.decide_all, self._start)
        question = _Question(request, asked, loop.create_future())
        if self._limiter.in_memory:
            question.answered.set_result(self._deciding.decide_all([(request, asked)])[0])
        else:
            batches.put(question, loop)
        return question

    async def _steers(self) -> bool:
        """As `Fleet.steers`; what asks the store, the first time, is done in a thread."""
        fleet = self._deciding.fleet
        return fleet.has_overrides() if fleet.begun else await self._in_thread(fleet.has_overrides)

    async def _carried_through(self, acquire: Callable[[], Decision]) -> Decision:
        """*acquire* in a thread; if nobody waits for it any more, what it took is given back."""
        acquiring = self._start(acquire)
        try:
            return await asyncio.shield(asyncio.wrap_future(acquiring))
        except asyncio.CancelledError:
            await self._in_thread(partial(self._take_back, acquiring))  # it is begun after *acquire*
            raise

    def _take_back(self, acquired: Future[Decision]) -> None:
        if acquired.exception() is None and acquired.result().allowed:
            give_back(self._limiter, acquired.result())

    async def _give_back(self, question: _Question) -> None:
        answer = await self._loops[asyncio.get_running_loop()].left(question)
        if isinstance(answer, Verdict) and answer.allowed:
            decision = decision_from(answer, question.asked)
            await self._in_thread(partial(give_back, self._limiter, decision))

    def _in_thread(self, function: Callable[[], _T]) -> asyncio.Future[_T]:
        """*function* is on its way to a thread once this returns; it runs to its end though its caller is cancelled."""
        return asyncio.shield(asyncio.wrap_future(self._start(function)))

    def _start(self, function: Callable[[], _T]) -> Future[_T]:
        while True:
            threads = self._threads
            if threads is None:
                threads = self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="throttlekit")
            try:
                return threads.submit(function)
            except RuntimeError:
                if self._threads is threads:
                    raise  # the interpreter ends
                # another loop has let go of them just now


@dataclass(slots=True, eq=False)
class _Question:
    """A request, and who waits for its answer."""

    request: Request
    asked: Sequence[Claim]
    answered: asyncio.Future[_Answer]
    given_up: asyncio.Future[_Answer] | None = None
    """Who waits for the answer in place of one that was cancelled."""
    answer: _Answer | None = None
    """What came, whoever waited for it."""


class _Batches:
    """
    The questions of one event loop. One batch is under way at a time; what comes meanwhile is the next.

    But for `_work` all of it runs in the loop's thread: there is nothing to lock.

    Args:
        decide_all: Blocks until the store has answered.
        start: Has a thread call what it is given.
    """

    def __init__(
        self,
        decide_all: Callable[[Sequence[tuple[Request, Sequence[Claim]]]], list[_Answer]],
        start: Callable[[Callable[[], None]], object],
    ) -> None:
        self._decide_all, self._start = decide_all, start
        self._waiting: deque[_Question] = deque()
        self._busy = False

    def put(self, question: _Question, loop: asyncio.AbstractEventLoop) -> None:
        self._waiting.append(question)
        if not self._busy:
            self._busy = True
            loop.call_soon(self._go, loop)  # whoever asks in the same turn of the loop goes along

    async def left(self, question: _Question) -> _Answer | None:
        """Nobody waits for *question* any more: its answer, once there is one; None if it was not asked."""
        if question in self._waiting:
            self._waiting.remove(question)
            return None
        if question.answer is not None:  # it may have come between the cancellation and now
            return question.answer
        question.given_up = asyncio.get_running_loop().create_future()
        return await question.given_up

    def _go(self, loop: asyncio.AbstractEventLoop) -> None:
        batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), _MOST_AT_ONCE))]
        self._busy = bool(batch)
        if batch:
            try:
                self._start(partial(self._work, batch, loop))
            except RuntimeError as error:  # no thread begins any more: whoever asks must not wait for one
                loop.call_soon(self._told, batch, [error] * len(batch), loop)

    def _work(self, batch: Sequence[_Question], loop: asyncio.AbstractEventLoop) -> None:
        try:
            answers = self._decide_all([(each.request, each.asked) for each in batch])
        except Exception as error:
            answers = [error] * len(batch)
        with suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits
            loop.call_soon_threadsafe(self._told, batch, answers, loop)

    def _told(self, batch: Sequence[_Question], answers: Sequence[_Answer], loop: asyncio.AbstractEventLoop) -> None:
        self._go(loop)
        for question, answer in zip(batch, answers, strict=True):
            question.answer = answer
            for future in (question.answered, question.given_up):
                if future is not None and not future.done():
                    future.set_result(answer)
