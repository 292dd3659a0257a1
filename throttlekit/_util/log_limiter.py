"""Limit how often a log message is written."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar

from throttlekit._util.fork_safety import renew_lock_after_fork

__all__ = ["CountedEvery", "Every", "is_first_in_fleet", "once_in_fleet"]

_NEVER = float("-inf"), 0
_MOST_NAMES = 10_000
_FIRST: ContextVar[Callable[[str], bool] | None] = ContextVar("throttlekit_first_in_fleet", default=None)


@contextmanager
def once_in_fleet(first: Callable[[str], bool]) -> Generator[None, None, None]:
    """
    Log each limit's summary once for all processes, in place of once per process: for processes that run one job.

    Args:
        first: Called with the limit's name before a summary is logged. The summary is logged if it returns True.
    """
    token = _FIRST.set(first)
    try:
        yield
    finally:
        _FIRST.reset(token)


def is_first_in_fleet(limit: str) -> bool:
    """Whether this process logs the summary of *limit*. Outside `once_in_fleet` it always does."""
    first = _FIRST.get()
    return first is None or first(limit)


class Every:
    """
    A timer whose `due` returns True once, and then False for *every* seconds.

    It takes no lock, so two threads may both get True.
    """

    def __init__(self, every: float = 30.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._every = every
        self._clock = clock
        self._last = float("-inf")

    def due(self) -> bool:
        now = self._clock()
        if now - self._last < self._every:
            return False
        self._last = now
        return True


class CountedEvery:
    """
    Counts events by name. The first event is reported at once, and later counts once in *every* seconds. Of more than
    10 000 names, those without an event for the longest time are forgotten.
    """

    def __init__(self, every: float = 30.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._every = every
        self._clock = clock
        self._lock = threading.Lock()
        renew_lock_after_fork(self, "_lock")
        self._counts: dict[str, tuple[float, int]] = {}

    def one_more(self, name: str) -> int:
        """Count an event of *name*. Return the events since the last report, or 0 if no report is due."""
        now = self._clock()
        with self._lock:
            last, count = self._counts.pop(name, _NEVER)  # the name moves to the end
            due = now - last >= self._every
            self._counts[name] = (now, 0) if due else (last, count + 1)
            if len(self._counts) > _MOST_NAMES:
                del self._counts[next(iter(self._counts))]
        return count + 1 if due else 0
