"""Limits for code outside a job: `hold` and `wait` block until the limits grant the request."""

from __future__ import annotations

import functools
import inspect
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from throttlekit._core.algorithms.concurrency import Concurrency
from throttlekit._core.decision import Decision
from throttlekit._core.job import Job
from throttlekit._core.limit.base import Limit
from throttlekit._engine.call import NO_JOB, Call, Delivery, Waiting
from throttlekit._engine.claims import Claim
from throttlekit._engine.running import Holder, Running
from throttlekit._engine.waker import Waker
from throttlekit._util.threads import Threads, in_context, in_running_loop, set_in_loop
from throttlekit.errors import ConfigurationError, WaitedTooLong

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["Hold", "Verbs", "limited_by"]

_F = TypeVar("_F", bound=Callable[..., object])
_IN_USE = "this hold is in use: call limiter.hold(…) again for each with"


class Verbs(Holder, Protocol):
    """The methods of a limiter that a hold calls."""

    @property
    def threads(self) -> Threads: ...

    @property
    def waker(self) -> Waker[Callable[[], object]]:
        """The waker of the callers in this process that wait in place."""
        ...

    def cancel(self, decision: Decision) -> None: ...

    def claims(self, call: Call) -> list[Claim]: ...

    def acquire(
        self, *limits: Limit, job: Job | None, key: str | int | None, cost: int | None, delivery: Delivery
    ) -> Decision: ...


class Hold:
    """The context manager that `Limiter.hold` returns, for `with` and `async with`. It can be entered once."""

    def __init__(self, limiter: Verbs, call: Call, timeout: float) -> None:
        self._limiter = limiter
        self._call = call
        self._id = os.urandom(8).hex()
        self._timeout = timeout
        self._running: Running | None = None
        self._gave_up = False

    def wait_for_grant(self) -> Decision:
        """
        Wait until the limits grant the request, and return the grant. Its leases are not renewed.

        Raises:
            WaitedTooLong: As for `Limiter.hold`.
        """
        until, woken = time.monotonic() + self._timeout, threading.Event()
        try:
            while not (decision := self._request(woken.set)).allowed:
                left = until - time.monotonic()
                if left <= 0 or not woken.wait(min(left, threading.TIMEOUT_MAX)):
                    raise _waited_too_long(decision)
                woken.clear()
        except ConfigurationError:
            self._limiter.waker.done(self._id)
            raise
        except BaseException:  # also an interrupt, such as a job's time limit
            self._leave()
            raise
        return decision

    async def wait_for_grant_async(self) -> Decision:
        """Like `wait_for_grant`, in an event loop. If it is cancelled, nothing stays charged."""
        import asyncio  # at module level, it would take a third of the time of `import throttlekit`

        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        until = loop.time() + self._timeout
        threads = self._limiter.threads

        wake = functools.partial(set_in_loop, loop, woken)
        while True:
            denial: Decision | None = None
            request = threads.start(in_context(functools.partial(self._request, wake)))
            try:
                denial = await threads.wait_for(request)
                if denial.allowed:
                    return denial
                await asyncio.wait_for(woken.wait(), None if self._timeout == math.inf else until - loop.time())
                woken.clear()
            except asyncio.CancelledError:
                self._gave_up = True
                if request.done():
                    await threads.run_to_end(functools.partial(self._undo, request))
                else:  # it may still be granted, perhaps after the loop was closed
                    request.add_done_callback(in_context(self._undo))
                raise
            except ConfigurationError:
                self._limiter.waker.done(self._id)
                raise
            except asyncio.TimeoutError:
                if denial is None:  # the request itself timed out
                    raise
                await threads.run_to_end(self._leave)
                raise _waited_too_long(denial) from None
            except Exception:
                await threads.run_to_end(self._leave)
                raise

    def __enter__(self) -> Running:
        self.refuse_in_loop("write `async with limiter.hold(…)`, or `async def` for a function with @limiter.limited")
        return self._begin(self.wait_for_grant())

    def __exit__(self, *error: object) -> None:
        self._end().release()

    async def __aenter__(self) -> Running:
        return self._begin(await self.wait_for_grant_async())

    async def __aexit__(self, *error: object) -> None:
        await self._limiter.threads.run_to_end(self._end().release)

    def refuse_slots(self) -> None:
        """
        Reject limits that grant slots, because only the end of a `with` releases slots.

        Raises:
            ConfigurationError: One of the limits grants slots.
        """
        for limit in self._call.limits:
            if isinstance(limit, Concurrency):
                raise ConfigurationError(
                    f"limit {limit.name!r} grants slots, which must be released: use `hold` for it, not `wait`"
                )

    def refuse_in_loop(self, remedy: str) -> None:
        """
        Reject a wait in a thread with an event loop, because it would block the tasks that it may depend on.

        Raises:
            ConfigurationError: An event loop runs in this thread.
        """
        if in_running_loop():
            raise ConfigurationError(f"this would stop the event loop of this thread: {remedy}")

    def _request(self, wake: Callable[[], object]) -> Decision:
        """
        Send one request. If the limits deny it, *wake* is called in another thread when it is time to retry.

        Raises:
            WaitedTooLong: The `queue=` of a limit is full.
            RuntimeError: No thread can start.
        """
        if self._running is not None or self._gave_up:
            raise ConfigurationError(_IN_USE)
        limits, job, key, cost, _, _ = self._call
        delivery = Delivery(waits=Waiting(self._limiter.waker, wake, self._id))
        decision = self._limiter.acquire(*limits, job=job or NO_JOB, key=key, cost=cost, delivery=delivery)
        if decision.final:
            raise _waited_too_long(decision)
        if decision.allowed:
            self._limiter.waker.done(self._id)
        else:
            self._limiter.waker.begin()  # an error: without the waker's thread, the caller would wait forever
        return decision

    def _leave(self) -> None:
        """Stop waiting: leave the waitlists."""
        claims = self._limiter.claims(self._call._replace(job=self._call.job or NO_JOB))
        self._limiter.waker.leave(self._id, [each.claim for each in claims])

    def _begin(self, decision: Decision) -> Running:
        running = Running(self._limiter, decision, job=self._call.job)
        running.keep()
        self._running = running
        return running

    def _end(self) -> Running:
        if self._running is None:
            raise ConfigurationError("this hold was not entered")
        running, self._running = self._running, None
        return running

    def _undo(self, request: Future[Decision]) -> None:
        """Cancel the grant of *request*, whose caller was cancelled, or stop waiting."""
        if request.exception() is None and request.result().allowed:
            self._limiter.cancel(request.result())
        else:
            self._leave()


def _waited_too_long(denial: Decision) -> WaitedTooLong:
    name, reason = denial.limit.name, denial.reason
    return WaitedTooLong(f"limit {name!r} denied this call: {reason}", limit=name, reason=reason)


def limited_by(make: Callable[[Call, float], Hold], limits: Sequence[Limit], timeout: float) -> Callable[[_F], _F]:
    """Return the decorator of `Limiter.limited`. *make* returns the hold for one call."""

    def decorate(function: _F) -> _F:
        if not callable(function):  # pyright: ignore[reportUnnecessaryComparison]
            raise ConfigurationError(f"limited decorates a function, not {function!r}")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigurationError(
                f"limited cannot decorate {function!r}: a generator's body runs after its call. "
                "Write `with limiter.hold(…)` in its body"
            )
        for limit in limits:
            limit.check_function(function)

        def hold(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hold:
            name = getattr(function, "__qualname__", type(function).__name__)
            job = Job(name=name, args=args, kwargs=kwargs, function=function)
            return make(Call(limits, job), timeout)

        if inspect.iscoroutinefunction(function):
            coroutine: Callable[..., Any] = function

            @functools.wraps(function)
            async def held_async(*args: Any, **kwargs: Any) -> Any:
                async with hold(args, kwargs):
                    return await coroutine(*args, **kwargs)

            return cast(_F, held_async)

        @functools.wraps(function)
        def held(*args: Any, **kwargs: Any) -> Any:
            with hold(args, kwargs):
                return function(*args, **kwargs)

        return cast(_F, held)

    return decorate
