"""What is told at most every so often, however often it happens."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Seldom"]


class Seldom:
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
