"""
Hold the denied tasks of a worker in its memory until the store wakes them.

A held task stays unacknowledged, so a killed worker loses no task. Each held task raises the worker's prefetch count
by one, so that the worker can still fetch other tasks. Example: a prefetch count of 4 is raised to 104 by 100 held
tasks.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any
from uuid import uuid4

from throttlekit import Limiter
from throttlekit.adapter import Waiting, Waker
from throttlekit_celery._held_task import HeldTask, State
from throttlekit_celery._host import consume_again, has_fixed_windows, list_as_scheduled, worker_state
from throttlekit_celery._loop_calls import LoopCalls, NextCall
from throttlekit_celery._pool_capacity import PoolCapacity

__all__ = ["HeldTasks"]

_log = logging.getLogger("throttlekit.celery")

_CHECK_EVERY, _FREED_WITHIN = 0.5, 0.01
"""The seconds between checks of held tasks, and between checks of a pool that was full."""
_MOST_AT_ONCE = 100
"""
The number of tasks that one check, which blocks the worker's loop, may end or put back before the next check. After as
many errors, the other tasks are checked later.
"""

_UNLIMITED = 65_535  # kombu treats a higher prefetch count as unlimited


class HeldTasks:
    """
    Holds the denied tasks of one worker until the store wakes them, and passes woken tasks to Celery again.

    Args:
        max_held: The number of held tasks above which the prefetch count is not raised, so that the worker fetches no
            new tasks until some have run.
        check: A function that is called with each held task every 0.5 s, in the worker's own thread. It returns whether
            it has ended the task or put it back.
    """

    def __init__(
        self, consumer: Any, limiter: Limiter, capacity: PoolCapacity, max_held: int, check: Callable[[HeldTask], bool]
    ) -> None:
        self._consumer = consumer
        self.loop = LoopCalls(consumer)
        self.waker: Waker[HeldTask] = limiter.make_waker(self._free, self._start, give_back=self._on_given_back)
        self._capacity, self._max_held, self._check = capacity, max_held, check
        self._tasks: set[HeldTask] = set()
        self._woken: set[HeldTask] = set()  # woken tasks that have not reached the pool
        self._was_full = False
        self._next_check = NextCall(consumer, self._check_all)
        self._checked_at = 0.0
        self._window, self._widens_at = 0, 0
        """The prefetch count of each consumer, if it is fixed, and the number of held tasks at which it is raised."""
        self._lock = threading.Lock()  # the waker calls from another thread
        list_as_scheduled(consumer, lambda: [held.request for held in self])

    def __iter__(self) -> Iterator[HeldTask]:
        with self._lock:
            return iter(list(self._tasks))

    def start(self) -> None:
        """Prepare for a new connection of the worker, which may have dropped its timers."""
        for held in (*self._tasks, *self._woken):
            held.raised = False  # the new connection begins with the initial prefetch count
        self.loop.start()
        self._next_check.drop()
        self._window, self._widens_at = 0, 0
        least = self._consumer.initial_prefetch_count
        if least and has_fixed_windows(self._consumer):
            self._window, self._widens_at = least, max(1, least // 2)
        if self._tasks:
            self._check_later()

    def waiting_of(self, held: HeldTask) -> Waiting:
        """Return the `Waiting` of *held*, for a request that may be denied."""
        return Waiting(self.waker, held, held.id)

    def close(self) -> None:
        """Stop holding tasks."""
        self.waker.close()
        with self._lock:
            self._woken.clear()
            self._tasks.clear()
        self.loop.close()

    # Called in the worker's own thread

    def hold(self, held: HeldTask, delay: float) -> None:
        """Hold *held*, which was denied and passed to the waker, and whose turn is in about *delay* seconds."""
        with self._lock:
            if held in self._woken:
                return  # it was woken in the meantime, and starts soon
            self._add(held, State.HELD)
        _show_as_scheduled(held, delay)

    def requeue(self, held: HeldTask) -> bool:
        """Remove *held* from its waker, and keep it until `forget`. Return False if it was woken in the meantime."""
        if self.waker.pass_on(held.id) is not held:
            return False
        with self._lock:
            self._add(held, State.REQUEUEING)
        return True

    def hold_again(self, held: HeldTask, delay: float) -> None:
        """Make *held*, which the waker does not have, request its units in *delay* seconds."""
        with self._lock:
            self._woken.discard(held)
            self._add(held, State.HELD)
        _show_as_scheduled(held, delay)
        self.waker.hold(held.id, held, round(delay * 1_000_000))

    def on_arrival(self, held: HeldTask) -> None:
        """Record that *held* has reached the pool."""
        with self._lock:
            self._woken.discard(held)

    def forget(self, held: HeldTask) -> None:
        """Stop holding *held*."""
        with self._lock:
            self._tasks.discard(held)
            self._woken.discard(held)
            raised, held.raised = held.raised, False
        if raised:
            self._consumer.qos.decrement_eventually()

    def take_all(self) -> list[HeldTask]:
        """Remove and return all tasks after a lost connection."""
        with self._lock:
            taken = [*self._tasks, *(held for held in self._woken if held not in self._tasks)]
            self._tasks.clear()
            self._woken.clear()
        taken.sort(key=lambda held: held.received_at)  # sets have no order
        for held in taken:
            held.raised = False  # the next connection begins with the initial prefetch count
            self.waker.pass_on(held.id)
        return taken

    def _add(self, held: HeldTask, state: State) -> None:
        if held not in self._tasks:
            qos = self._consumer.qos
            most = min(getattr(qos, "max_prefetch", None) or _UNLIMITED, _UNLIMITED)  # worker_eta_task_limit
            held.raised = not self._window and len(self._tasks) < self._max_held and 0 < qos.value < most
            self._tasks.add(held)
            if held.raised:
                qos.increment_eventually()
            if len(self._tasks) == self._widens_at:
                self.loop.call(self._fit_window)
        held.set_state(state)
        self._check_later()

    def _fit_window(self) -> None:
        """
        Start new consumers with a higher prefetch count, so that the worker can fetch more tasks than the held tasks.
        Only queues whose consumers have a fixed prefetch count, such as quorum queues of RabbitMQ, need this.
        """
        held, least = len(self._tasks), self._consumer.initial_prefetch_count
        window = min(least + held, max(least, self._max_held - held), _UNLIMITED)
        consume_again(self._consumer, window)
        self._window, self._widens_at = window, held + window - least // 2
        if len(self._tasks) >= self._widens_at:  # tasks arrived while the consumers were replaced
            self.loop.call(self._fit_window)

    def _take_up(self, held: HeldTask) -> None:
        with self._lock:
            if held not in self._woken:
                return  # the connection was lost in the meantime
            self._tasks.discard(held)
            raised, held.raised = held.raised, False
            held.set_state(State.RESERVED)
        try:
            for callback in self._consumer.on_task_message:  # `--autoscale` starts a process for it
                callback(held.request)
            self._consumer.on_task_request(held.request)
        except Exception:
            _log.exception("Task %s could not be started again; the broker keeps it.", held.request.id)
            self.on_arrival(held)
            if held.state is State.RESERVED:
                held.set_state(State.GONE)
        if raised:
            self._consumer.qos.decrement_eventually()

    def _check_later(self) -> None:
        self._next_check.schedule(_CHECK_EVERY if self._checked_at and not self._was_full else _FREED_WITHIN)

    def _check_all(self) -> None:
        try:
            if self._was_full and self._free():
                self._was_full = False
                self.waker.report_free()
            now = time.monotonic()
            if now - self._checked_at >= _CHECK_EVERY:
                self._checked_at = 0.0 if self._check_some() else now
                if self._window > 2 * (self._consumer.initial_prefetch_count + len(self._tasks)):
                    self._fit_window()
        finally:
            self._next_check.drop()  # a check that a task scheduled as it was put back, which may be too late
            if self._tasks:
                self._check_later()

    def _check_some(self) -> bool:
        """Check the held tasks, at last those that failed. Return whether to continue soon, because many have ended."""
        ended = failed = 0
        for held in sorted(self, key=lambda held: held.check_failed):
            try:
                ended += self._check(held)
                held.check_failed = False
            except Exception:
                _log.exception("Task %s could not be checked; it is checked again.", held.request.id)
                held.check_failed = True
                failed += 1
            if _MOST_AT_ONCE in (ended, failed):
                break
        return ended == _MOST_AT_ONCE

    # Called in any thread

    def _free(self) -> int:
        free = self._capacity.count_free(len(self._woken))
        self._was_full = self._was_full or not free
        return free

    def _start(self, _: str, held: HeldTask) -> None:
        """Pass *held*, which the waker has woken, to Celery again."""
        with self._lock:
            self._woken.add(held)
        self.loop.call(partial(self._take_up, held))

    def _on_given_back(self, held: HeldTask) -> None:
        """Handle *held*, which the waker gave back: it has another message with this id, or the worker stops."""
        self.loop.call(partial(self._wait_separately, held))

    def _wait_separately(self, held: HeldTask) -> None:
        """Make *held* wait with a separate id, unless it is a second delivery of the same message."""
        tag = held.request.message.delivery_tag
        if any(
            other.id == held.id and other.request.message.delivery_tag == tag for other in self if other is not held
        ):
            self.forget(held)
            held.set_state(State.GONE)
            return
        held.separate_id = f"{held.id}:{uuid4().hex}"
        self._start(held.id, held)


def _show_as_scheduled(held: HeldTask, delay: float) -> None:
    """Let `inspect scheduled` show *held* with an ETA in *delay* seconds, and `inspect query_task` find it."""
    held.request._eta = datetime.now(timezone.utc) + timedelta(seconds=delay)
    if task_scheduled := getattr(worker_state(), "task_scheduled", None):  # Celery 5.7
        task_scheduled(held.request)
