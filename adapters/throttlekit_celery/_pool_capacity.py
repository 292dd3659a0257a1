"""
Find out whether the pool of a worker has a free slot, and keep tasks until it has one.

A prefork pool accepts a task only when a process is free for it. A pool of threads or greenlets accepts any number of
tasks, and queues them internally. Without this module, a task in such a pool would be granted long before its body
begins, and many granted tasks would begin together. Tasks without limits wait only behind tasks that wait here.
"""

from __future__ import annotations

import time
from collections import deque
from functools import partial
from typing import Any
from weakref import WeakSet

from throttlekit_celery._held_task import HeldTask
from throttlekit_celery._host import count_free_processes, count_startable_processes, worker_state
from throttlekit_celery._loop_calls import NextCall

__all__ = ["PoolCapacity"]

_CHECK_EVERY = 0.01


class PoolCapacity:
    """Keeps tasks of one worker, in order, until its pool has a free slot for the first task."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._received: WeakSet[Any] = WeakSet()  # requests
        self._waiting: deque[HeldTask] = deque()
        self._next_check = NextCall(consumer, self._fill)
        self._admitted: Any = None  # a request

    def start(self) -> None:
        """Prepare for a new connection of the worker, which may have dropped its timers."""
        self._next_check.drop()
        if self._waiting:
            self._next_check.schedule(_CHECK_EVERY)

    def record_received(self, request: Any) -> None:
        """Record that the worker has received a task, with or without limits. Other workers may share the process."""
        self._received.add(request)

    def take_process(self, held: HeldTask) -> bool:
        """
        Return whether a process is free for *held*, to which Celery's semaphore has given a slot. If not, let *held*
        wait for another slot.

        The semaphore has too many slots after a lost connection, and after a change of the number of processes or the
        replacement of a process. Celery alone would queue the task in the pool. The slot that does not exist is not
        released, so the semaphore is right again.
        """
        free = count_free_processes(self._consumer, ending=1)
        if free is None or free > 0:
            return True
        self._consumer.controller.semaphore.value = 0
        self._consumer.on_task_request(held.request)
        self._consumer.controller.semaphore._waiting.rotate(1)  # it is the first to get the next slot
        return False

    def admit_or_queue(self, held: HeldTask) -> bool:
        """Return whether *held* may request its units now. If not, keep it until the pool has a free slot."""
        if held.request is self._admitted or count_free_processes(self._consumer) is not None:
            return True
        if not self._waiting and self._free_slots() >= 0:
            return True
        self._waiting.append(held)
        self._next_check.schedule(_CHECK_EVERY)
        return False

    def keep_order(self, request: Any) -> None:
        """
        Let *request*, which has no limits, wait behind the tasks that wait here when it is passed to the pool.

        Otherwise tasks without limits would use each slot that becomes free, and the tasks that wait here would wait
        until there are no others. In a worker with a prefork pool, all tasks wait for the processes in Celery's order.
        """
        if count_free_processes(self._consumer) is None:
            request.execute_using_pool = partial(self._pass_in_order, request, request.execute_using_pool)

    def on_slot_freed(self) -> None:
        """Check for waiting tasks in the worker's own thread, at once. Called in a thread of the pool."""
        if self._waiting and self._consumer.hub is not None:
            self._consumer.hub.call_soon(self._fill)

    def count_free(self, woken: int) -> int:
        """
        Return the number of free slots of the worker's pool, minus the *woken* tasks that have not reached the pool.
        Called in any thread.

        If other tasks wait for slots, no slot is ever free. In that case, one woken task at a time waits among the
        other tasks, so that tasks without limits cannot prevent it from running.
        """
        slots = count_free_processes(self._consumer)
        if slots is None:
            slots = self._free_slots()
            queued = slots < 0 or bool(self._waiting)
        else:
            slots = max(0, slots) + count_startable_processes(self._consumer)
            queued = bool(self._consumer.controller.semaphore._waiting)
        return max(0, (max(0, slots) or int(queued)) - woken)

    def take_all(self) -> list[HeldTask]:
        """Remove and return all tasks that wait."""
        waiting = list(self._waiting)
        self._waiting.clear()
        self._next_check.drop()
        return waiting

    def _free_slots(self) -> int:
        """
        Return the number of slots of the pool, minus the tasks of the worker that Celery has reserved and that do not
        wait here. All workers of a process share Celery's list of reserved requests.
        """
        own = sum(request in self._received for request in _reserved_requests())
        pool = self._consumer.pool
        slots = pool.num_processes if getattr(pool, "uses_semaphore", False) else pool.limit
        return max(1, slots or 0) - (own - len(self._waiting))

    def _fill(self) -> None:
        while self._waiting:
            first = self._waiting.popleft()
            if first.has_limits and self._free_slots() < 0:
                self._waiting.appendleft(first)
                self._next_check.schedule(_CHECK_EVERY)
                return
            self._admitted = first.request
            try:
                self._consumer.on_task_request(first.request)
            finally:
                self._admitted = None

    def _pass_in_order(self, request: Any, execute: Any, pool: Any, **options: Any) -> Any:
        """Pass *request*, which has no limits, to the pool, or keep it. Celery calls this in place of *execute*."""
        if self._waiting and request is not self._admitted:
            self._waiting.append(HeldTask(request, execute, time.monotonic(), has_limits=False))
            self._next_check.schedule(_CHECK_EVERY)
            return None
        request.__dict__.pop("execute_using_pool", None)  # a reference cycle
        return execute(pool, **options)


def _reserved_requests() -> list[Any]:
    """Return the requests that all workers of this process have reserved."""
    while True:
        try:
            return list(worker_state().reserved_requests)
        except RuntimeError:  # a thread of the pool removed a request during the copy
            continue
