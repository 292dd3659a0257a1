"""Short waits in the worker's own thread: a trip through the broker would cost more."""

from __future__ import annotations

import threading
import time

from throttlekit._core.decision import Decision
from throttlekit._util.fork_safety import renew_lock_after_fork

__all__ = ["InlineWaits"]


class InlineWaits:
    """
    Lets a few threads of a process wait at once, and each only briefly.

    Args:
        longest: The longest wait worth sleeping, in seconds.
        at_once: How many threads may wait at the same time.
    """

    def __init__(self, longest: float = 0.05, at_once: int = 1) -> None:
        self.longest = longest
        self._places = threading.BoundedSemaphore(at_once) if at_once else None
        if at_once:
            renew_lock_after_fork(self, "_places", lambda: threading.BoundedSemaphore(at_once))

    def wait_out(self, decision: Decision) -> bool:
        """`wait` for the delay of a denied job."""
        return self.wait(decision.delay)

    def wait(self, seconds: float) -> bool:
        """Wait for *seconds* and return True; or return False at once: too long, or too many wait already."""
        if seconds > self.longest or self._places is None or not self._places.acquire(blocking=False):
            return False
        try:
            time.sleep(seconds)
        finally:
            self._places.release()
        return True
