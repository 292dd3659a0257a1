"""Hold the denied tasks of one process, and move each task that the store wakes to the list of woken jobs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from huey.storage import ConnectionError, TimeoutError  # type: ignore[import-untyped]

from throttlekit import Limiter
from throttlekit.adapter import Waker
from throttlekit_huey._schedule import Schedule

__all__ = ["Item", "WaitingTasks"]

_RETRY_US = 500_000
"""The microseconds until a task is woken again, if huey's Redis did not answer."""


@dataclass(eq=False, slots=True)
class Item:
    """
    A task that may wait.

    Attributes:
        message: The task's message in huey's schedule. Empty until it is stored there.
        woken: Whether the task was woken.
    """

    priority: float
    message: bytes = b""
    woken: bool = False


class WaitingTasks:
    """
    Counts the idle workers of this process, and wakes its denied tasks. A forked child begins without tasks.

    Args:
        schedule: A function that returns the schedule in which tasks wait.

    Attributes:
        idle: The idents of the threads that wait for a task.
    """

    def __init__(self, limiter: Limiter, schedule: Callable[[], Schedule]) -> None:
        self._limiter, self._schedule = limiter, schedule
        self.idle: set[int] = set()
        self.begin()

    def begin(self) -> None:
        """Start waking tasks. Called when a consumer is created."""
        self._pid = os.getpid()
        self.waker: Waker[Item] = self._limiter.make_waker(
            self._free, self._start, give_back=self._give_back, roams=True
        )

    def close(self) -> None:
        """Wake all tasks, because the workers of this process stop, so that workers of other processes take them."""
        for item in (items := self.waker.close()):
            item.woken = True
        with suppress(Exception):  # otherwise huey enqueues the tasks when they are due
            self._schedule().wake([(item.priority, item.message) for item in items if item.message])

    def close_child(self) -> None:
        """Call `close` in a worker that is a child process of the consumer, when this worker stops."""
        if os.getpid() != self._pid:
            self.close()

    def mark_idle(self) -> None:
        """Record that this thread waits for a task."""
        if threading.get_ident() not in self.idle:
            self.idle.add(threading.get_ident())
            self.waker.report_free()

    def mark_busy(self) -> None:
        """Record that this thread has a task."""
        self.idle.discard(threading.get_ident())

    def finish(self, id: str) -> None:
        """Record that this thread has ended a task, which is not held, and will be idle."""
        self.idle.add(threading.get_ident())
        self.waker.pass_on(id)
        self.waker.done(id)

    def on_stored(self, id: str, item: Item, message: bytes) -> None:
        """Record that a denied task is in huey's schedule, as *message*. If the task was woken already, start it."""
        item.message = message
        if item.woken:
            self._start(id, item)

    def _free(self) -> int:
        return len(self.idle)

    def _start(self, id: str, item: Item) -> bool:
        """Move a woken task to the workers. Return whether Redis still has it, in the schedule or in hand."""
        item.woken = True
        if not item.message:
            return True  # `on_stored` continues
        self.waker.pass_on(id, at_once=True)
        try:
            return self._schedule().wake([(item.priority, item.message)]) > 0
        except (ConnectionError, TimeoutError):
            self.waker.hold(id, item, _RETRY_US)
            return True

    def _give_back(self, item: Item) -> None:
        """Handle *item*, which the waker gave back: the process stops, or it holds another message with this id."""
        item.woken = True
