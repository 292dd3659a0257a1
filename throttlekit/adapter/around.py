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

__all__ = ["Admitted", "Around", "watched"]


class Around:
    """
    The context of a body, `with Around(throttling, run, follow):` or `async with`. It calls `begin` and `end`, and
    handles a 429 of the body.

    If the body runs inside the body of another job, that job is the current one again afterwards.

    Args:
        run: The outcome that admitted the job. For a job that runs uncharged, `begin` is not called.
        follow: Called with the new outcome if the body raised `RateLimited`, once its slots are released. It raises, or
            returns whether to suppress the error. It is not called for `Run`, when the error is like any other.
    """

    def __init__(self, throttling: Throttling[Any], run: Run, follow: Callable[[Outcome], bool]) -> None:
        self._throttling, self._run, self._follow = throttling, run, follow
        self._outer = current()

    def __enter__(self) -> None:
        if self._run.decision is not None and self._run.decision.allowed:
            begin(self._throttling.limiter, self._run.decision, self._run.job)

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
                await end_async(self._throttling.limiter, error)
                resume(self._outer)
        return not isinstance(outcome, Run) and self._follow(outcome)


class Admitted:
    """
    An outcome other than `Deferred`, until the body begins or is cancelled. Only the first call of `around` or
    `cancel`, in any thread, has an effect.

    Args:
        outcome: `Run`, or, if the framework calls the body to end a job, `Failed` or `Dropped`.
        follow: As for `Around`.

    Attributes:
        begun: Whether the body has begun.
    """

    def __init__(self, throttling: Throttling[Any], outcome: Outcome, follow: Callable[[Outcome], bool]) -> None:
        self._throttling, self._follow = throttling, follow
        self._outcome = [outcome]
        self.begun = False

    def around(self) -> Any:
        """
        Return the context in which the body runs, or None if the body does not run. A nested call of the job's function
        is an ordinary call.

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
        return Around(self._throttling, outcome, self._follow)

    def cancel(self) -> Callable[[], None] | None:
        """Return a function that refunds the job, whose body never begins now, or None if nothing was charged."""
        outcome = self._take()
        decision = outcome.decision if isinstance(outcome, Run) else None
        return None if decision is None else partial(self._throttling.limiter.cancel, decision)

    def _take(self) -> Outcome | None:
        with suppress(IndexError):
            return self._outcome.pop()
        return None


def watched(function: Callable[..., Any], admitted: Callable[[], Admitted | None]) -> Callable[..., Any]:
    """
    Wrap *function*, plain or async, as the body of the job that *admitted* returns in the calling thread or task. If
    *admitted* returns None (a job without limits, or a direct call), *function* is just called. A dropped job returns
    None.

    If the job has limits, a plain function that returns an awaitable raises `ConfigurationError`, because the awaitable
    would run after the job's slots are released.
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
                    raise _awaitable_error(made)
                return made
        return None

    @functools.wraps(function)
    async def body_async(*args: Any, **kwargs: Any) -> Any:
        if (context := around()) is not None:
            async with context:
                return await function(*args, **kwargs)
        return None

    return body_async if inspect.iscoroutinefunction(function) else body


def _awaitable_error(made: Any) -> ConfigurationError:
    if inspect.iscoroutine(made):
        made.close()
    return ConfigurationError(
        "a plain function of a job with limits returned an awaitable, which would run after the job's slots are "
        "released: declare it with `async def`; a decorator around an async function must be async itself"
    )
