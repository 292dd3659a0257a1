"""
Keep tasks until their pool has a free slot.

A prefork pool accepts a task only when a process is free for it. A pool of threads or greenlets accepts any number of
tasks, and queues them internally. Without this module, a task in such a pool would be granted long before its body
begins, and many granted tasks would begin together.
"""

from __future__ import annotations

from collections import deque
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from throttlekit_celery._held_task import HeldTask, State
from throttlekit_celery._host import worker_state

__all__ = ["PoolCapacity"]

_CHECK_EVERY = 0.01


class PoolCapacity:
    """Keeps tasks, in order, until the pool has a free slot for the first task."""

    def __init__(self) -> None:
        self._received: WeakKeyDictionary[Any, WeakSet[Any]] = WeakKeyDictionary()  # requests, by consumer
        self._waiting: deque[tuple[HeldTask, Any]] = deque()
        self._checking = False
        self._admitted: HeldTask | None = None

    def record_received(self, consumer: Any, request: Any) -> None:
        """Record that *consumer* has received a task, with or without limits. Other workers may share the process."""
        self._received.setdefault(consumer, WeakSet()).add(request)

    def admit_or_queue(self, held: HeldTask, pool: Any) -> bool:
        """Return whether *held* may request its units now. If not, keep it until the pool has a free slot."""
        if held is self._admitted:
            return True
        if getattr(pool, "uses_semaphore", False) or (not self._waiting and self._is_free(held, pool)):
            return True
        held.set_state(State.WAITING_FOR_POOL)
        self._waiting.append((held, pool))
        if not self._checking:
            self._check_later(held.consumer)
        return False

    def on_slot_freed(self, consumer: Any) -> None:
        """Check for waiting tasks in the worker's own thread, at once. Called in a thread of the pool."""
        if self._waiting and consumer.hub is not None:
            consumer.hub.call_soon(self._fill)

    def count_free(self, consumer: Any, woken: int) -> int:
        """
        Return the number of free slots of the worker's pool, minus the *woken* tasks that have not reached the pool.
        Called in any thread.

        If other tasks wait for slots, no slot is ever free. In that case, one woken task at a time waits among the
        other tasks, so that tasks without limits cannot prevent it from running.
        """
        pool, semaphore = consumer.pool, getattr(consumer.controller, "semaphore", None)
        if getattr(pool, "uses_semaphore", False) and semaphore is not None:
            slots, queued = semaphore.value, len(semaphore._waiting)
        else:
            slots, queued = self._free_slots(consumer, pool), len(self._waiting)
        return max(0, (slots or (1 if queued else 0)) - woken)

    def take_all(self) -> list[HeldTask]:
        """Remove and return all tasks that wait."""
        waiting = [held for held, _ in self._waiting]
        self._waiting.clear()
        self._checking = False  # a worker that loses its connection drops its timers
        return waiting

    def _is_free(self, held: HeldTask, pool: Any) -> bool:
        """Return whether *pool* has a slot for *held*, which Celery counts as reserved, and which does not wait."""
        return self._free_slots(held.consumer, pool) >= 0

    def _free_slots(self, consumer: Any, pool: Any) -> int:
        """
        Return the number of slots of *pool*, minus the tasks of *consumer* that Celery has reserved and that do not
        wait here. All workers of a process share Celery's list of reserved requests.
        """
        received = self._received.get(consumer, ())
        own = sum(request in received for request in _reserved_requests())
        return max(1, pool.limit or 0) - (own - len(self._waiting))

    def _check_later(self, consumer: Any) -> None:
        self._checking = True
        consumer.timer.call_after(_CHECK_EVERY, self._check)

    def _check(self) -> None:
        self._checking = False
        self._fill()

    def _fill(self) -> None:
        while self._waiting:
            first, pool = self._waiting.popleft()
            if not self._is_free(first, pool):
                self._waiting.appendleft((first, pool))
                if not self._checking:
                    self._check_later(first.consumer)
                return
            self._admitted = first
            first.set_state(State.RESERVED)
            try:
                first.consumer.on_task_request(first.request)
            finally:
                self._admitted = None


def _reserved_requests() -> list[Any]:
    """Return the requests that all workers of this process have reserved."""
    while True:
        try:
            return list(worker_state().reserved_requests)
        except RuntimeError:  # a thread of the pool removed a request during the copy
            continue
