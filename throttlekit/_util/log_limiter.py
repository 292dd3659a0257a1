"""What is told at most every so often, however often it happens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar

from throttlekit._util.fork_safety import renew_lock_after_fork

__all__ = ["CountedEvery", "Every", "is_first_in_fleet", "once_in_fleet"]

_FIRST: ContextVar[Callable[[str], bool] | None] = ContextVar("throttlekit_first_in_fleet", default=None)


@contextmanager
def once_in_fleet(first: Callable[[str], bool]) -> Generator[None, None, None]:
    """
    For processes that run one job and end: log a limit's summary once for all of them, not once in each.

    Args:
        first: Called with the limit's name before a summary is logged; it is logged if this returns True.
    """
    token = _FIRST.set(first)
    try:
        yield
    finally:
        _FIRST.reset(token)


def is_first_in_fleet(limit: str) -> bool:
    """Whether this process logs the summary of *limit*: always, outside `once_in_fleet`."""
    first = _FIRST.get()
    return first is None or first(limit)


class Every:
    """
    Says yes once, and then no for *every* seconds.

    Without a lock: two threads may at worst both tell.
    """

    def __init__(self, every: float = 30.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._every = every
        self._clock = clock
        self._told_at = float("-inf")

    def due(self) -> bool:
        now = self._clock()
        if now - self._told_at < self._every:
            return False
        self._told_at = now
        return True


class CountedEvery:
    """Counts by name, and says how many at once the first time, and then once in *every* seconds."""

    def __init__(self, every: float = 30.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._every = every
        self._clock = clock
        self._lock = threading.Lock()
        renew_lock_after_fork(self, "_lock")
        self._told: dict[str, tuple[float, int]] = {}

    def one_more(self, name: str) -> int:
        """How many of *name* there were since that was told last, this one included; 0: it is not to be told yet."""
        now = self._clock()
        with self._lock:
            told_at, count = self._told.get(name, (float("-inf"), 0))
            due = now - told_at >= self._every
            self._told[name] = (now, 0) if due else (told_at, count + 1)
        return count + 1 if due else 0
