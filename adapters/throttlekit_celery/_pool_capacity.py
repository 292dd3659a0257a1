"""
Tasks whose pool has no slot free.

A prefork pool lets a task wait until it can run. A pool of threads or greenlets takes any number at once, and lets
them wait inside: a grant would then lie any time before its body, and a pile of granted tasks would begin together.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from throttlekit_celery._host import worker_state
from throttlekit_celery._waiting import HeldTask

__all__ = ["Room"]

_LOOK_EVERY = 0.01


class Room:
    """Lets tasks wait, in order, until the pool has a slot for the first of them."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[HeldTask, Any]] = deque()
        self._looking = False
        self._admitted: HeldTask | None = None

    def admits(self, gated: HeldTask, pool: Any) -> bool:
        """Whether *gated* may try to run now. If not, Celery is given it again when a slot is free."""
        if gated is self._admitted:
            return True
        if getattr(pool, "uses_semaphore", False) or (not self._waiting and self._free(pool)):
            return True
        self._waiting.append((gated, pool))
        if not self._looking:
            self._look_later(gated.consumer)
        return False

    def vacant(self, consumer: Any) -> None:
        """A slot of the pool is free. A thread of the pool may say so: then the worker's own looks, at once."""
        if self._waiting and consumer.hub is not None:
            consumer.hub.call_soon(self._fill)

    def take_all(self) -> list[HeldTask]:
        """Everybody who waits; nobody does afterwards."""
        waiting = [gated for gated, _ in self._waiting]
        self._waiting.clear()
        self._looking = False  # a worker that loses its connection forgets its timers
        return waiting

    def _free(self, pool: Any) -> bool:
        # Reserved are those that were handed to the pool, those that wait here, and the one that asks.
        handed_over = len(worker_state().reserved_requests) - len(self._waiting) - 1
        return handed_over < max(1, pool.limit or 0)

    def _look_later(self, consumer: Any) -> None:
        self._looking = True
        consumer.timer.call_after(_LOOK_EVERY, self._look)

    def _look(self) -> None:
        self._looking = False
        self._fill()

    def _fill(self) -> None:
        while self._waiting:
            first, pool = self._waiting.popleft()
            if not self._free(pool):
                self._waiting.appendleft((first, pool))
                if not self._looking:
                    self._look_later(first.consumer)
                return
            self._admitted = first
            try:
                first.consumer.on_task_request(first.request)
            finally:
                self._admitted = None
