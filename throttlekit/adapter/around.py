"""The body of an admitted job, for adapters that call it themselves: in a thread, or in an event loop."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

from throttlekit._engine.rate_limited import RateLimited
from throttlekit._engine.running import current
from throttlekit.adapter.admission import Throttling
from throttlekit.adapter.body import begin, end, end_async, resume
from throttlekit.adapter.outcome import Failed, Outcome, Run
from throttlekit.errors import ConfigurationError
from throttlekit.limiter import Limiter

__all__ = ["Admitted", "Around", "watched"]


class Around:
    """
    `with Around(throttling, run, follow):` or `async with`: `begin` and `end` around a body, and a 429 that it raises.

    Inside the body of another job, that job is the current one again afterwards.

    Args:
        run: What admitted the job. One that runs uncharged has no decision of its own.
        follow: Called with what becomes of a job whose body raised `RateLimited`, once its slots are released. It
            raises, or returns whether the error ends here; for `Run`, where it is an error like any other, it is not
            called.
    """

    def __init__(self, throttling: Throttling[Any], run: Run, follow: Callable[[Outcome], bool]) -> None:
        self._throttling, self._run, self._follow = throttling, run, follow
        self._outer = current()

    @property
    def _limiter(self) -> Limiter:
        return self._throttling.limiter

    def __enter__(self) -> None:
        if self._run.decision is not None and self._run.decision.allowed:
            begin(self._limiter, self._run.decision, self._run.job)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        outcome: Outcome = self._run
        try:
            if isinstance(error, RateLimited):
                outcome = self._throttling.rate_limited(self._run, error, release=partial(end, error))
        finally:
            if current() is not self._outer:
                end(error)
                resume(self._outer)
        return not isinstance(outcome, Run) and self._follow(outcome)

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        outcome: Outcome = self._run
        try:
            if isinstance(error, RateLimited):
                outcome = await self._throttling.rate_limited_async(self._run, error)
        finally:
            if current() is not self._outer:
                await end_async(self._limiter, error)
                resume(self._outer)
        return not isinstance(outcome, Run) and self._follow(outcome)


class Admitted:
    """
    A job that is not deferred, until its body begins, or it is known that none will. Of `around` and `cancel` the one
    counts that comes first, in any thread.

    Args:
        outcome: `Run`, or `Failed` or `Dropped` where the framework calls the body to end a job.
        follow: As for `Around`.

    Attributes:
        begun: Whether the body has begun.
    """

    def __init__(self, throttling: Throttling[Any], outcome: Outcome, follow: Callable[[Outcome], bool]) -> None:
        self._throttling, self._follow = throttling, follow
        self._outcome = [outcome]
        self._around: Around | None = None
        self.begun = False

    def around(self) -> Any:
        """
        What the body runs in; None: it does not run. Inside of it, the job's function is any function.

        Raises:
            Exception: The error of `Failed`.
        """
        if self.begun:
            return nullcontext()
        outcome = self._take()
        self.begun = outcome is not None
        if isinstance(outcome, Failed):
            raise outcome.error
        if not isinstance(outcome, Run):
            return None
        self._around = Around(self._throttling, outcome, self._follow)
        return self._around

    def cancel(self) -> Callable[[], None] | None:
        """What gives back all that a job was charged whose body has not begun, and now never does; None: nothing."""
        outcome = self._take()
        decision = outcome.decision if isinstance(outcome, Run) else None
        return None if decision is None else partial(self._throttling.limiter.cancel, decision)

    def _take(self) -> Outcome | None:
        with suppress(IndexError):
            return self._outcome.pop()
        return None


def watched(function: Callable[..., Any], admitted: Callable[[], Admitted | None]) -> Callable[..., Any]:
    """
    *function*, plain or async, as a framework's worker calls it: the body of the job that *admitted* returns in its
    thread or task. None: a job without limits, or a call by hand. A dropped one returns None.

    A plain function of a job with limits that returns an awaitable fails with `ConfigurationError`: what its caller
    awaits would run after the job's slots are released.
    """

    def around() -> Any:
        job = admitted()
        return nullcontext() if job is None else job.around()

    @functools.wraps(function)
    def body(*args: Any, **kwargs: Any) -> Any:
        if (context := around()) is not None:
            with context:
                made = function(*args, **kwargs)
                if isinstance(context, Around) and inspect.isawaitable(made):
                    raise _returned_its_body(made)
                return made
        return None

    @functools.wraps(function)
    async def body_async(*args: Any, **kwargs: Any) -> Any:
        if (context := around()) is not None:
            async with context:
                return await function(*args, **kwargs)
        return None

    return body_async if inspect.iscoroutinefunction(function) else body


def _returned_its_body(made: Any) -> ConfigurationError:
    if inspect.iscoroutine(made):
        made.close()
    return ConfigurationError(
        "a job with limits is a plain function that returned something to await, which would run after its slots are "
        "given back: declare it with `async def`; a decorator around an async function must be async itself"
    )
