"""Limits for code outside a job: it waits in line where it stands."""

from __future__ import annotations

import functools
import inspect
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Protocol, TypeVar, cast

from throttlekit._core.algorithms.concurrency import Concurrency
from throttlekit._core.decision import Decision
from throttlekit._core.job import Job
from throttlekit._core.limit.base import Limit
from throttlekit._engine.call import Call
from throttlekit._engine.delivery import Delivery
from throttlekit._engine.running import Holder, Running
from throttlekit._engine.threads import Threads, in_running_loop
from throttlekit.errors import ConfigurationError, WaitedTooLong

__all__ = ["Hold", "Verbs", "limited_by"]

_F = TypeVar("_F", bound=Callable[..., object])
_LATENESS = 0.01
_LONGEST_SLEEP = 5.0
_IN_USE = "this hold is in use: call limiter.hold(…) anew for each with"


class Verbs(Holder, Protocol):
    """What a hold needs of a limiter."""

    @property
    def threads(self) -> Threads: ...

    def cancel(self, decision: Decision) -> None: ...

    def acquire(
        self, *limits: Limit, job: Job | None, key: str | int | None, cost: int | None, delivery: Delivery
    ) -> Decision: ...


class Hold:
    """What `Limiter.hold` returns: a context manager, for `with` and for `async with`. Each is entered once."""

    def __init__(self, limiter: Verbs, call: Call, timeout: float) -> None:
        self._limiter = limiter
        delivery = Delivery(longest=_LONGEST_SLEEP, lateness=_LATENESS, max_wait=timeout)
        self._call = call._replace(job=call.job or Job(), delivery=delivery)
        self._timeout = timeout
        self._began: float | None = None
        self._running: Running | None = None
        self._deciding = threading.Lock()
        self._left = False
        self._got: Decision | None = None

    def pass_line(self) -> Decision:
        """
        Wait in line until the limits let the caller pass. Nothing is renewed.

        Raises:
            WaitedTooLong: As for `Limiter.hold`.
        """
        while not (decision := self._ask()).allowed:
            time.sleep(decision.delay)
        return decision

    async def pass_line_async(self) -> Decision:
        """As `pass_line`, in an event loop. If it is cancelled, it has taken nothing."""
        import asyncio  # a third of what `import throttlekit` would cost

        while True:
            try:
                decision = await self._limiter.threads.carry_through(self._ask_if_wanted)
            except asyncio.CancelledError:
                # The thread may be granted it all the same, and the loop may be gone by then.
                with self._deciding:
                    self._left, got = True, self._got
                if got is not None:
                    await self._limiter.threads.carry_through(functools.partial(self._limiter.cancel, got))
                raise
            if decision is None:
                raise ConfigurationError(_IN_USE)
            if decision.allowed:
                return decision
            await asyncio.sleep(decision.delay)

    def __enter__(self) -> Running:
        self.refuse_in_loop("write `async with limiter.hold(…)`, or `async def` for a function with @limiter.limited")
        return self._begin(self.pass_line())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end().release()

    async def __aenter__(self) -> Running:
        return self._begin(await self.pass_line_async())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._limiter.threads.carry_through(self._end().release)

    def refuse_slots(self) -> None:
        """
        Refuse to wait for what only the end of a `with` gives back.

        Raises:
            ConfigurationError: One of the limits gives slots.
        """
        for limit in self._call.limits:
            if isinstance(limit, Concurrency):
                raise ConfigurationError(
                    f"limit {limit.name!r} gives slots, which have to be given back: use `hold` for it, not `wait`"
                )

    def refuse_in_loop(self, remedy: str) -> None:
        """
        Refuse to wait in a thread whose event loop would stand still: a task of it may be what is waited for.

        Raises:
            ConfigurationError: An event loop runs in this thread.
        """
        if in_running_loop():
            raise ConfigurationError(f"this would stop the event loop that runs here: {remedy}")

    def _ask(self) -> Decision:
        if self._running is not None or self._left:
            raise ConfigurationError(_IN_USE)
        limits, job, key, cost, delivery, _ = self._call
        decision = self._limiter.acquire(*limits, job=job, key=key, cost=cost, delivery=delivery)
        self._call = self._call._replace(job=replace(job or Job(), ticket=decision.ticket))
        self._began = time.monotonic() if self._began is None else self._began
        over = not decision.allowed and time.monotonic() - self._began >= self._timeout
        if decision.final or over:
            name, reason = decision.limit.name, decision.reason
            raise WaitedTooLong(f"limit {name!r} did not let this pass: {reason}", limit=name, reason=reason)
        return decision

    def _begin(self, decision: Decision) -> Running:
        self._running = Running(self._limiter, decision, job=self._call.job)
        self._running.keep()
        return self._running

    def _end(self) -> Running:
        if self._running is None:
            raise ConfigurationError("this hold was not entered")
        running, self._running = self._running, None
        return running

    def _ask_if_wanted(self) -> Decision | None:
        """None: the caller was cancelled before this thread began."""
        with self._deciding:
            if self._left:
                return None
        decision = self._ask()
        with self._deciding:
            self._got, left = decision, self._left
        if left:
            self._limiter.cancel(decision)
        return decision


def limited_by(make: Callable[[Call, float], Hold], limits: Sequence[Limit], timeout: float) -> Callable[[_F], _F]:
    """The decorator that `Limiter.limited` returns. *make* makes the hold of one call."""

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
