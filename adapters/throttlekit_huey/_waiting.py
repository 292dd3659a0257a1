"""The denied tasks of one process: the store wakes them, and the process hands them to whichever worker is idle."""

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
"""After how long a task is woken again if huey's Redis did not answer."""


@dataclass(eq=False, slots=True)
class Item:
    """
    A task that may wait.

    Attributes:
        message: What is in huey's schedule; empty: it is not there yet.
        woken: Whether it was woken.
    """

    priority: float
    message: bytes = b""
    woken: bool = False


class WaitingTasks:
    """
    Counts the idle workers of this process, and wakes its denied tasks. A forked child begins with nothing.

    Args:
        schedule: Returns where tasks wait.

    Attributes:
        idle: The threads that wait for a task.
    """

    def __init__(self, limiter: Limiter, schedule: Callable[[], Schedule]) -> None:
        self._limiter, self._schedule = limiter, schedule
        self.idle: set[int] = set()
        self.begin()

    def begin(self) -> None:
        """A consumer is made."""
        self._pid = os.getpid()
        self.waker: Waker[Item] = self._limiter.make_waker(
            self._free, self._start, give_back=self._give_back, roams=True
        )

    def close(self) -> None:
        """The workers of this process stop: its tasks ask in other processes."""
        for item in (items := self.waker.close()):
            item.woken = True
        with suppress(ConnectionError, TimeoutError):  # then they come back when due
            self._schedule().wake([(item.priority, item.message) for item in items if item.message])

    def close_child(self) -> None:
        """A worker stops. If it is all of this process, the process does."""
        if os.getpid() != self._pid:
            self.close()

    def is_idle(self) -> None:
        """This thread waits for a task."""
        if threading.get_ident() not in self.idle:
            self.idle.add(threading.get_ident())
            self.waker.freed()

    def is_busy(self) -> None:
        """This thread has a task, or does not look for one."""
        self.idle.discard(threading.get_ident())

    def has_ended(self, id: str) -> None:
        """This thread has ended a task, which does not wait, and is about to be idle."""
        self.idle.add(threading.get_ident())
        self.waker.pass_on(id)
        self.waker.done(id)

    def is_stored(self, id: str, item: Item, message: bytes) -> None:
        """A denied task is in huey's schedule, as *message*."""
        item.message = message
        if item.woken:
            self._start(id, item)

    def _free(self) -> int:
        return len(self.idle)

    def _start(self, id: str, item: Item) -> bool:
        """The waker has woken a task. Returns whether it is in the schedule, or in a worker's hand."""
        item.woken = True
        if not item.message:
            return True  # `is_stored` goes on
        self.waker.pass_on(id, asks=True)
        try:
            return self._schedule().wake([(item.priority, item.message)]) > 0
        except (ConnectionError, TimeoutError):
            self.waker.hold(id, item, _RETRY_US)
            return True

    def _give_back(self, item: Item) -> None:
        """This process stops. Or the waker holds another message of the same id, and this one comes back when due."""
        item.woken = True
