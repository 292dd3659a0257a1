"""A limiter that answers as a test wants it to, and what it was asked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager

from throttlekit._core.acquire import Reason, Verdict
from throttlekit._core.algorithm import Use
from throttlekit._core.claim import StoreClaim
from throttlekit.hookspecs import Decided, hookimpl
from throttlekit.limiter import Limiter
from throttlekit.stores import MemoryStore, Store
from throttlekit.stores.base import Correction, Lease, Request

__all__ = ["Seen", "allowing", "denying", "in_memory"]


class Seen:
    """
    What a limiter was asked, and answered.

    Attributes:
        limiter: The limiter.
        decisions: Each decision of `acquire`, in order, as the hook `throttlekit_decided` tells it.
    """

    def __init__(self) -> None:
        self.limiter: Limiter
        self.decisions: list[Decided] = []
        self._more = threading.Condition()

    @hookimpl
    def throttlekit_decided(self, event: Decided) -> None:
        with self._more:
            self.decisions.append(event)
            self._more.notify_all()

    def assert_allowed(self, job: str | None = None, *, limit: str | None = None, within: float = 0.0) -> Decided:
        """
        Fail, unless a job was let run.

        Args:
            job: By its name (the actor's, the function's, the task's). Default: any.
            limit: The name of a limit that it was held to, among others. Default: any.
            within: Seconds to wait for it at most: workers decide in threads of their own.

        Returns:
            The last such decision.

        Raises:
            AssertionError: There is none. The message says what was decided.
        """
        return self._find("let run", lambda event: event.decision.allowed, job, limit, within)

    def assert_deferred(self, job: str | None = None, *, limit: str | None = None, within: float = 0.0) -> Decided:
        """Fail, unless a job was denied and sent back to wait. Takes, returns and raises the same."""
        return self._find("deferred", _deferred, job, limit, within)

    def assert_not_asked(self) -> None:
        """Fail, if there was any decision: the job has no limit, or its framework's test mode asks for none."""
        if self.decisions:
            raise AssertionError(f"no decision was expected; there were: {self._told()}")

    def _find(
        self, what: str, wanted: Callable[[Decided], bool], job: str | None, limit: str | None, within: float
    ) -> Decided:
        def last() -> Decided | None:
            for event in reversed(self.decisions):
                named = (job is None or _job(event) == job) and (limit is None or limit in _limits(event))
                if named and wanted(event):
                    return event
            return None

        with self._more:
            found = self._more.wait_for(last, within)
        if found is None:
            who = f"no job{f' {job!r}' if job else ''} was {what}{f' under {limit!r}' if limit else ''}"
            raise AssertionError(f"{who}; decided was: {self._told()}")
        return found

    def _told(self) -> str:
        told = [f"{_job(each)} {each.decision.reason} by {each.decision.limit.name!r}" for each in self.decisions]
        return "; ".join(told) or "nothing"


def _job(event: Decided) -> str:
    return event.job.name if event.job else "(no job)"


def _limits(event: Decided) -> list[str]:
    return [limit.name for limit in event.limits]


def _deferred(event: Decided) -> bool:
    return event.job is not None and not event.decision.allowed and not event.decision.refused


def allowing(limiter: Limiter | None = None) -> AbstractContextManager[Seen]:
    """
    `with allowing(limiter) as seen:` everything passes, and nothing is charged. No store is asked.

    Args:
        limiter: The one that your program has made, whose adapters go on with it. Default: a new one, `seen.limiter`.

    Returns:
        A context manager that gives what the limiter was asked, as a `Seen`. Afterwards the limiter is as it was.
    """
    return _standing_in(limiter, _Answering(None))


def denying(limiter: Limiter | None = None, *, delay: float = 60.0) -> AbstractContextManager[Seen]:
    """
    `with denying(limiter) as seen:` nothing passes, and all jobs are told to come back after *delay* seconds. As
    `allowing`. What waits in place for its turn (`hold`, an eager task) waits for ever.
    """
    return _standing_in(limiter, _Answering(delay))


def in_memory(
    limiter: Limiter | None = None, *, clock: Callable[[], int] | None = None
) -> AbstractContextManager[Seen]:
    """
    `with in_memory(limiter) as seen:` limits are what they are, and begin unused, in this process's memory. As
    `allowing`.

    Args:
        clock: A `FakeClock`. Default: time passes.
    """
    return _standing_in(limiter, MemoryStore(clock_us=clock))


@contextmanager
def _standing_in(limiter: Limiter | None, store: Store) -> Generator[Seen, None, None]:
    seen = Seen()
    other = Limiter(store, plugins=[seen])
    if isinstance(store, _Answering):
        vars(other.deciding)["in_process"] = store
    seen.limiter = other if limiter is None else limiter
    kept = vars(seen.limiter).copy()
    vars(seen.limiter).update(vars(other))
    try:
        yield seen
    finally:
        vars(seen.limiter).update(kept)
        other.close()


class _Answering:
    """A store that always says the same: come back after *delay* seconds, or, without one, yes."""

    def __init__(self, delay: float | None) -> None:
        self._delay = delay

    def acquire(self, request: Request, now_us: int | None = None) -> Verdict:
        now_us = time.time_ns() // 1000 if now_us is None else now_us
        uses = tuple(Use(0, now_us) for _ in request.claims)
        if self._delay is None:
            return Verdict(Reason.ALLOWED, 0, now_us, now_us, now_us, uses)
        back_us = now_us + round(self._delay * 1_000_000)
        return Verdict(Reason.EXHAUSTED, 0, now_us, back_us, back_us, uses)

    def settle(self, corrections: Sequence[Correction], now_us: int | None = None) -> None: ...

    def release(self, leases: Sequence[Lease], now_us: int | None = None) -> None: ...

    def renew(self, leases: Sequence[Lease], now_us: int | None = None) -> Sequence[bool]:
        return [True] * len(leases)

    def pause(self, claims: Sequence[StoreClaim], for_us: int | None, now_us: int | None = None) -> None: ...

    def reset(self, names: Sequence[str]) -> None: ...

    def close(self) -> None: ...
