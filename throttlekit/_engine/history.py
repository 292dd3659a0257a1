"""How the jobs that run in this process waited before they ran: one that hears a 429 waits once more, and goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from throttlekit._core.answer import NOT_WAITED, Waited
from throttlekit._util.fork_safety import renew_lock_after_fork

__all__ = ["History"]

_MOST = 10_000


class History:
    """
    Remembers the last 10 000 jobs that were granted after they had waited, and come back by a delay.

    Args:
        clock_us: For tests: this process's own time in microseconds.
    """

    def __init__(self, *, clock_us: Callable[[], int] = lambda: time.monotonic_ns() // 1000) -> None:
        self._clock_us = clock_us
        self._lock = threading.Lock()
        renew_lock_after_fork(self, "_lock")
        self._known: dict[str, tuple[int, Waited]] = {}
        self._again: set[str] = set()

    def note(self, id: str, waited: Waited, *, again: bool = False) -> None:
        """Note that a job was granted; or, with *again*, that it waits once more, and no store knows of that."""
        if not id or not (waited.denials or id in self._known):
            return
        with self._lock:
            self._known.pop(id, None)
            self._again.discard(id)
            if waited.denials:
                self._known[id] = self._clock_us(), waited
            if again:
                self._again.add(id)
            if len(self._known) > _MOST:
                oldest = next(iter(self._known))
                del self._known[oldest]
                self._again.discard(oldest)

    def before(self, id: str, *, again: bool) -> Waited:
        """How a job had waited that asks now; *again*: it ran, and heard a 429."""
        return self.of(id) if again or id in self._again else NOT_WAITED

    def of(self, id: str) -> Waited:
        """How a job has waited, its run included; zeros: it is not known to have waited."""
        with self._lock:
            granted, waited = self._known.get(id, (0, NOT_WAITED))
        if not waited.denials:
            return waited
        return waited._replace(for_us=waited.for_us + self._clock_us() - granted)
