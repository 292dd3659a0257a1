"""`AsyncLimiter`: the methods of a limiter as coroutines, for event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Any, NoReturn, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from throttlekit._core.answer import Answer
from throttlekit._core.decision import Decision
from throttlekit._core.job import Job
from throttlekit._core.limit.base import Limit
from throttlekit._core.spelling import checks_spelling
from throttlekit._engine.call import PLAIN_DELIVERY, Call, Delivery
from throttlekit._engine.claims import Attempt, decision_from
from throttlekit._engine.pipeline import Pipeline, begins_in, peek_decision, units_of
from throttlekit._engine.plugins import DEFAULT_STORE
from throttlekit._engine.running import Running
from throttlekit._engine.up_to import UpTo
from throttlekit._util.threads import in_context
from throttlekit._wiring import NO_CLIENT, wiring_of
from throttlekit.errors import ConfigurationError, StoreUnavailable
from throttlekit.limiter import Limiter
from throttlekit.stores.base import Store

__all__ = ["AsyncLimiter"]

_LARGEST_BATCH = 64
_T = TypeVar("_T")
_F = TypeVar("_F", bound=Callable[..., Awaitable[object]])
_Answered: TypeAlias = "asyncio.Future[Answer | Exception]"
"""The future of the store's answer to an attempt, or of an error in place of it."""


class AsyncLimiter:
    """
    `Limiter` for asyncio: the same methods as coroutines. Create one per process.

    The event loop never waits for a socket; at most four threads of the limiter do. Requests that arrive during a round
    trip are sent together in the next one, and decided separately. So the more requests are made at once, the less each
    of them costs. A single request does not wait for others.

    If an `acquire` is cancelled, nothing stays charged: a grant of the store is cancelled before `CancelledError` is
    raised, which may take as long as the store's time-out. Methods that change a charge or a limit, such as `settle` or
    `pause`, run to their end although they are cancelled.

    Keys, costs and hooks that are functions are called in the event loop or, if the call needs a thread, in that thread
    in a copy of the caller's context. Several loops can share one object.

    Args:
        store: As for `Limiter`. In a process that has a `Limiter` too, pass that limiter, so that both use the same
            counts for limits of scope "process", of memory://, and of a process's own share. Its owner closes it.
        client, plugins, stores: As for `Limiter`, with the same errors.
    """

    @checks_spelling
    def __init__(
        self,
        store: str | Store | Limiter = DEFAULT_STORE,
        *,
        client: object = NO_CLIENT,
        plugins: Sequence[object] = (),
        stores: Mapping[str, str | Store] | None = None,
    ) -> None:
        self._own = not isinstance(store, Limiter)
        if isinstance(store, Limiter):
            if client is not NO_CLIENT or plugins or stores is not None:
                raise ConfigurationError(
                    "AsyncLimiter(limiter) has the client, the plugins and the stores of that limiter: drop them"
                )
            self._limiter = store
        else:
            self._limiter = Limiter(store, client=client, plugins=plugins, stores=stores)
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _Batches] = WeakKeyDictionary()

    @property
    def in_memory(self) -> bool:
        """Whether limits apply to this process only."""
        return self._limiter.in_memory

    async def acquire(
        self,
        *limits: Limit,
        job: Job | None = None,
        key: str | int | None = None,
        cost: int | None = None,
        delivery: Delivery = PLAIN_DELIVERY,
    ) -> Decision:
        """Like `Limiter.acquire`."""
        call, pipeline = Call(limits, job, key, cost, delivery), self._pipeline
        if await self._has_overrides():
            return await self._run_to_end(partial(wiring_of(self._limiter).decider.acquire, call))
        if (spent := pipeline.spend(call)) is not None:
            return spent
        attempt = pipeline.attempt(call)
        answered = self._put(attempt)
        try:
            answer = await asyncio.shield(answered)
        except asyncio.CancelledError:
            await asyncio.shield(self._cancel(attempt, answered))
            raise
        if isinstance(answer, StoreUnavailable):
            without_store = partial(pipeline.without_store, attempt, answer)
            # In a thread, because other stores of a group may be called to record that the job waits for this one.
            return without_store() if call.delivery.waits is None else await self._in_thread(without_store)
        if isinstance(answer, Exception):
            raise answer
        decision = pipeline.conclude(attempt, answer)
        if decision.reason == "waited too long":
            await self._in_thread(partial(pipeline.leave, call, units_of(attempt)))
        if decision.allowed and (early := begins_in(answer)):
            try:
                await asyncio.sleep(early)
            except asyncio.CancelledError:
                await asyncio.shield(self._cancel(attempt, answered))
                raise
        return decision

    async def acquire_many(
        self, limit: Limit, most: int, *, job: Job | None = None, key: str | int | None = None
    ) -> Decision:
        """Like `Limiter.acquire_many`."""
        await self._has_overrides()  # the first call sends a request to the store, in a thread
        units = UpTo(self._pipeline.resolver, self._limiter.in_force, limit, most, job, key)
        with suppress(StoreUnavailable):
            units.apply_peek(await self.peek(units.limit, key=units.key, cost=units.most))
        decision = await self.acquire(units.limit, key=units.key, cost=units.cost)
        while units.smaller(decision):
            decision = await self.acquire(units.limit, key=units.key, cost=units.cost)
        return decision

    async def peek(
        self, *limits: Limit, job: Job | None = None, key: str | int | None = None, cost: int | None = None
    ) -> Decision:
        """Like `Limiter.peek`."""
        call = Call(limits, job, key, cost, peek=True)
        if await self._has_overrides():
            return await self._in_thread(partial(wiring_of(self._limiter).decider.acquire, call))
        attempt = self._pipeline.attempt(call)
        answer = await self._put(attempt)
        if isinstance(answer, Exception):
            raise answer
        return peek_decision(answer, attempt)

    async def settle(self, decision: Decision, actual: int, *, limit: Limit | None = None) -> Decision:
        """Like `Limiter.settle`."""
        return await self._in_thread(partial(self._limiter.settle, decision, actual, limit=limit))

    async def apply_response(
        self,
        response: Any,
        limit: Limit | None = None,
        *,
        tokens: Limit | None = None,
        input_tokens: Limit | None = None,
        output_tokens: Limit | None = None,
        job: Job | None = None,
        key: str | int | None = None,
    ) -> None:
        """Like `Limiter.apply_response`."""
        by_unit = {"tokens": tokens, "input_tokens": input_tokens, "output_tokens": output_tokens}
        await self._in_thread(partial(self._limiter.apply_response, response, limit, **by_unit, job=job, key=key))

    async def release(self, decision: Decision) -> None:
        """Like `Limiter.release`."""
        await self._in_thread(partial(self._limiter.release, decision))

    async def done(
        self, limit: Limit, held_by: str | int | None = None, *, job: Job | None = None, key: str | int | None = None
    ) -> None:
        """Like `Limiter.done`."""
        await self._in_thread(partial(self._limiter.done, limit, held_by, job=job, key=key))

    async def cancel(self, decision: Decision) -> None:
        """Like `Limiter.cancel`."""
        await self._in_thread(partial(self._limiter.cancel, decision))

    def keep(self, decision: Decision, on_lost: Callable[[], None]) -> None:
        """For adapters: like `Limiter.keep`, without a round trip. *on_lost* is called in another thread."""
        self._limiter.keep(decision, on_lost)

    def hold(
        self,
        *limits: Limit,
        job: Job | None = None,
        key: str | int | None = None,
        cost: int | None = None,
        timeout: float | timedelta | None = None,
    ) -> AbstractAsyncContextManager[Running]:
        """Like `Limiter.hold`: `async with limiter.hold(slots): …`."""
        return self._limiter.hold(*limits, job=job, key=key, cost=cost, timeout=timeout)

    async def wait(
        self,
        *limits: Limit,
        job: Job | None = None,
        key: str | int | None = None,
        cost: int | None = None,
        timeout: float | timedelta | None = None,
    ) -> Decision:
        """Like `Limiter.wait`. If it is cancelled, nothing stays charged."""
        waiting = self._limiter.hold(*limits, job=job, key=key, cost=cost, timeout=timeout)
        waiting.refuse_slots()
        return await waiting.wait_for_grant_async()

    def limited(self, *limits: Limit, timeout: float | timedelta | None = None) -> Callable[[_F], _F]:
        """Like `Limiter.limited`, for coroutine functions."""
        return self._limiter.limited(*limits, timeout=timeout)

    async def pause(
        self,
        limit: Limit,
        duration: float | timedelta,
        *,
        job: Job | None = None,
        key: str | int | None = None,
        refused: bool = False,
    ) -> None:
        """Like `Limiter.pause`."""
        await self._in_thread(partial(self._limiter.pause, limit, duration, job=job, key=key, refused=refused))

    async def resume(self, limit: Limit, *, job: Job | None = None, key: str | int | None = None) -> None:
        """Like `Limiter.resume`."""
        await self._in_thread(partial(self._limiter.resume, limit, job=job, key=key))

    async def report_overload(self, limit: Limit, *, job: Job | None = None, key: str | int | None = None) -> None:
        """Like `Limiter.report_overload`."""
        await self._in_thread(partial(self._limiter.report_overload, limit, job=job, key=key))

    async def reset(self, *limits: Limit, job: Job | None = None, key: str | int | None = None) -> None:
        """Like `Limiter.reset`."""
        await self._in_thread(partial(self._limiter.reset, *limits, job=job, key=key))

    async def clear_waitlist(self, limit: Limit, *, job: Job | None = None, key: str | int | None = None) -> None:
        """Like `Limiter.clear_waitlist`."""
        await self._in_thread(partial(self._limiter.clear_waitlist, limit, job=job, key=key))

    def declare(self, *limits: Limit) -> None:
        """Like `Limiter.declare`, without a round trip."""
        self._limiter.declare(*limits)

    async def close(self) -> None:
        """Close the store's connections, and end the threads. The next call opens them again."""
        if self._own:
            await self._in_thread(self._limiter.close)

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"an {type(self).__name__} cannot be pickled or copied: make one in each process")

    async def __aenter__(self) -> AsyncLimiter:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def _put(self, attempt: Attempt) -> _Answered:
        """Send *attempt* to the store. Return the future of its answer."""
        loop = asyncio.get_running_loop()
        batches = self._loops.get(loop)
        if batches is None:
            batches = self._loops[loop] = _Batches(self._decide_all, self._limiter.threads.start)
        if not self._limiter.in_memory:
            return batches.put(attempt, loop)
        answered: _Answered = loop.create_future()
        answered.set_result(self._pipeline.decide_all([attempt])[0])
        return answered

    @property
    def _pipeline(self) -> Pipeline:
        """The pipeline of the limiter. A test double may replace it at any time."""
        return wiring_of(self._limiter).pipeline

    def _decide_all(self, attempts: Sequence[Attempt]) -> list[Answer | Exception]:
        return self._pipeline.decide_all(attempts)

    def _in_thread(self, function: Callable[[], _T]) -> asyncio.Future[_T]:
        """Schedule *function* in a thread at once. It runs to its end even if its caller is cancelled."""
        return self._limiter.threads.run_to_end(function)

    async def _has_overrides(self) -> bool:
        """Like `Fleet.has_overrides`; the first call in a process sends a request to the store, in a thread."""
        fleet = self._limiter.fleet
        if fleet is None:
            return False
        return fleet.has_overrides() if fleet.begun else await self._in_thread(fleet.has_overrides)

    async def _run_to_end(self, acquire: Callable[[], Decision]) -> Decision:
        """Call *acquire* in a thread. If the caller is cancelled in the meantime, cancel the grant."""
        acquiring = self._limiter.threads.start(in_context(acquire))
        try:
            return await self._limiter.threads.wait_for(acquiring)
        except asyncio.CancelledError:
            await self._in_thread(partial(self._cancel_acquired, acquiring))  # it runs after *acquire*
            raise

    def _cancel_acquired(self, acquired: Future[Decision]) -> None:
        if acquired.exception() is None:
            self._limiter.cancel(acquired.result())

    async def _cancel(self, attempt: Attempt, answered: _Answered) -> None:
        """Cancel the grant of *attempt*, whose task was cancelled, or end its job's wait."""
        answer = None if self._loops[asyncio.get_running_loop()].withdraw(answered) else await answered
        if isinstance(answer, Answer) and answer.allowed:
            await self._in_thread(partial(self._limiter.cancel, decision_from(answer, attempt.claims)))
        if (waits := attempt.call.delivery.waits) is not None:
            units = units_of(attempt)
            if isinstance(answer, Answer):  # it may wake other jobs of this process
                waits.waker.apply_answer(attempt.call.id, waits.item, units, answer._replace(kept=None))
            await self._in_thread(partial(self._pipeline.leave, attempt.call, units))


class _Batches:
    """
    The attempts of one event loop. One batch is sent at a time. Attempts that arrive in the meantime form the next.

    All methods except `_work` run in the loop's thread, so no lock is needed.

    Args:
        decide_all: Decides attempts. Blocks until the store has answered.
        start: Calls a function in a thread.
    """

    def __init__(
        self,
        decide_all: Callable[[Sequence[Attempt]], list[Answer | Exception]],
        start: Callable[[Callable[[], None]], object],
    ) -> None:
        self._decide_all, self._start = decide_all, start
        self._waiting: dict[_Answered, Attempt] = {}
        self._busy = False

    def put(self, attempt: Attempt, loop: asyncio.AbstractEventLoop) -> _Answered:
        """Put *attempt* into the next batch. Return the future of its answer."""
        answered: _Answered = loop.create_future()
        self._waiting[answered] = attempt
        if not self._busy:
            self._busy = True
            loop.call_soon(self._go, loop)  # the batch includes all attempts of this iteration of the loop
        return answered

    def withdraw(self, answered: _Answered) -> bool:
        """Remove an attempt that was not sent yet. Return whether it was removed."""
        return self._waiting.pop(answered, None) is not None

    def _go(self, loop: asyncio.AbstractEventLoop) -> None:
        batch = [*islice(self._waiting.items(), _LARGEST_BATCH)]
        for answered, _ in batch:
            del self._waiting[answered]
        self._busy = bool(batch)
        if batch:
            try:
                self._start(partial(self._work, batch, loop))
            except RuntimeError as error:  # no thread can start any more, so no task may wait for one
                loop.call_soon(self._finish, batch, [error] * len(batch), loop)

    def _work(self, batch: Sequence[tuple[_Answered, Attempt]], loop: asyncio.AbstractEventLoop) -> None:
        try:
            answers = self._decide_all([attempt for _, attempt in batch])
        except Exception as error:
            answers = [error] * len(batch)
        with suppress(RuntimeError):  # the loop was closed in the meantime, so no task waits
            loop.call_soon_threadsafe(self._finish, batch, answers, loop)

    def _finish(
        self,
        batch: Sequence[tuple[_Answered, Attempt]],
        answers: Sequence[Answer | Exception],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._go(loop)
        for (answered, _), answer in zip(batch, answers, strict=True):
            if not answered.cancelled():
                answered.set_result(answer)
