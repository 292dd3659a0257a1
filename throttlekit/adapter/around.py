"""The body of an admitted job, for adapters that call it themselves: in a thread, or in an event loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from throttlekit._engine.rate_limited import RateLimited
from throttlekit._engine.running import current
from throttlekit.adapter.admission import Throttling
from throttlekit.adapter.body import begin, end, end_async, resume
from throttlekit.adapter.outcome import Outcome, Run
from throttlekit.limiter import Limiter

__all__ = ["Around"]


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
