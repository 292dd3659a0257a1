"""Test doubles: a limiter that allows or denies as a test requires, and a record of its decisions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager

from throttlekit._core.algorithm import Use
from throttlekit._core.answer import Answer, Reason, Requester
from throttlekit._core.claim import StoreClaim
from throttlekit._core.wait_control import Charge
from throttlekit._wiring import wiring_of
from throttlekit.hookspecs import Decided, hookimpl
from throttlekit.limiter import Limiter
from throttlekit.stores import MemoryStore
from throttlekit.stores.base import Lease

__all__ = ["Seen", "allowing", "denying", "in_memory"]


class Seen:
    """
    A record of a limiter's decisions.

    Attributes:
        limiter: The limiter.
        decisions: Each decision of `acquire`, in order, as the hook `throttlekit_decided` receives it.
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
        Fail unless a job was allowed to run.

        Args:
            job: The job's name (the actor's, the function's, the task's). Default: any.
            limit: The name of one of the job's limits. Default: any.
            within: The longest time to wait for it, in seconds, because workers decide in other threads.

        Returns:
            The last such decision.

        Raises:
            AssertionError: There is none. The message lists the decisions.
        """
        return self._find("allowed", lambda event: event.decision.allowed, job, limit, within)

    def assert_deferred(self, job: str | None = None, *, limit: str | None = None, within: float = 0.0) -> Decided:
        """Fail unless a job was denied and deferred. Arguments, result and error as for `assert_allowed`."""
        return self._find("deferred", _is_deferred, job, limit, within)

    def assert_not_asked(self) -> None:
        """Fail if there was a decision: the job should have no limit, or its framework's test mode should skip them."""
        if self.decisions:
            raise AssertionError(f"no decision was expected; there were: {self._summary()}")

    def _find(
        self, what: str, wanted: Callable[[Decided], bool], job: str | None, limit: str | None, within: float
    ) -> Decided:
        def last() -> Decided | None:
            for event in reversed(self.decisions):
                matches = (job is None or _job(event) == job) and (limit is None or limit in _limits(event))
                if matches and wanted(event):
                    return event
            return None

        with self._more:
            found = self._more.wait_for(last, within)
        if found is None:
            missing = f"no job{f' {job!r}' if job else ''} was {what}{f' under {limit!r}' if limit else ''}"
            raise AssertionError(f"{missing}; the decisions were: {self._summary()}")
        return found

    def _summary(self) -> str:
        texts = [f"{_job(each)} {each.decision.reason} by {each.decision.limit.name!r}" for each in self.decisions]
        return "; ".join(texts) or "none"


def _job(event: Decided) -> str:
    return event.job.name if event.job else "(no job)"


def _limits(event: Decided) -> list[str]:
    return [limit.name for limit in event.limits]


def _is_deferred(event: Decided) -> bool:
    return event.job is not None and not event.decision.allowed and not event.decision.final


def allowing(limiter: Limiter | None = None) -> AbstractContextManager[Seen]:
    """
    Within `with allowing(limiter) as seen:`, every job is allowed, and nothing is charged. No store is called.

    Args:
        limiter: The limiter that your program has made; adapters keep using it. Default: a new one, `seen.limiter`.

    Returns:
        A context manager that returns the record of the decisions, a `Seen`. At its end the limiter is restored.
    """
    return _replace_store(limiter, _FixedStore(None))


def denying(limiter: Limiter | None = None, *, delay: float = 60.0) -> AbstractContextManager[Seen]:
    """
    Like `allowing`, but every job is denied with a delay of *delay* seconds. Code that waits for a grant in place
    (`hold`, an eager task) never returns.
    """
    return _replace_store(limiter, _FixedStore(delay))


def in_memory(
    limiter: Limiter | None = None, *, clock: Callable[[], int] | None = None
) -> AbstractContextManager[Seen]:
    """
    Like `allowing`, but the limits are enforced, in this process's memory. They are unused at first.

    Args:
        clock: A `FakeClock`. Default: the real time.
    """
    return _replace_store(limiter, MemoryStore(clock_us=clock))


@contextmanager
def _replace_store(limiter: Limiter | None, store: MemoryStore) -> Generator[Seen, None, None]:
    seen = Seen()
    own = () if limiter is None else limiter._plugins  # pyright: ignore[reportPrivateUsage]
    other = Limiter(store, plugins=[*(each for each in own if not isinstance(each, Seen)), seen])
    if isinstance(store, _FixedStore):
        wiring_of(other).stores.in_process = store
    seen.limiter = other if limiter is None else limiter
    kept = vars(seen.limiter).copy()
    vars(seen.limiter).update(vars(other))
    try:
        yield seen
    finally:
        vars(seen.limiter).update(kept)
        other.close()


class _FixedStore(MemoryStore):
    """A store that denies every request with *delay* seconds, or, without one, allows every request."""

    def __init__(self, delay: float | None) -> None:
        super().__init__()
        self._delay = delay

    def decide(
        self, claims: Sequence[StoreClaim], requester: Requester, now_us: int | None = None, *, attempt: str = ""
    ) -> Answer:
        now_us = time.time_ns() // 1000 if now_us is None else now_us
        uses = tuple(Use(0, now_us) for _ in claims)
        if self._delay is None:
            return Answer(Reason.ALLOWED, 0, now_us, now_us, uses)
        return Answer(Reason.EXHAUSTED, 0, now_us, now_us + round(self._delay * 1_000_000), uses)

    def return_units(self, charges: Sequence[Charge], requester: Requester, now_us: int | None = None) -> None: ...

    def renew(self, leases: Sequence[Lease], now_us: int | None = None) -> Sequence[bool]:
        return [True] * len(leases)
