"""
The tasks whose places are in no message yet: put back a few at a time, so that no other task stands behind many copies.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from throttlekit.adapter import Ticket
from throttlekit_celery._waiting import HeldTask, State

__all__ = ["Unsaved", "is_unsaved"]

_DURABLE_AFTER = 30.0
"""The place of a task that waits longer than this is written into its message: a killed worker does not lose it."""

_EVERY = 0.1
_LATE, _MOST_SKIPPED = 0.05, 10
"""A turn that comes later than this is left out, so many times in a row: the worker's loop has more to do than it can,
and tasks are due."""

_MOST_IN_QUEUE = 10
"""No copy is put behind so many messages of its queue: with them it would stand before each task that comes."""

_ASK_AGAIN_AFTER = 0.01
_AFTER_ERROR = 1.0


def is_unsaved(held: HeldTask, delay: float) -> bool:
    """Whether *held* is to wait for so long that its message should carry its place, and does not."""
    return delay > _DURABLE_AFTER and _stands(held.ticket) != _stands(held.carried)


class Unsaved:
    """
    Held tasks that are to be put back, in the order of coming.

    Args:
        in_queue: How many messages lie in the queue of that name; None: not known yet. May raise any error of the
            broker's client.
        put_back: Puts a held task back; returns False if it could not. Must not raise.
    """

    def __init__(self, in_queue: Callable[[str], int | None], put_back: Callable[[HeldTask], bool]) -> None:
        self._in_queue, self._put_back = in_queue, put_back
        self._queues: dict[str, deque[HeldTask]] = {}
        self._turn: object = None
        self._due, self._skipped = 0.0, 0  # when the next turn is, and how many were left out
        self._lock = threading.Lock()  # without an event loop, timers run in a thread of their own

    def clear(self) -> None:
        """The worker stops, or has connected anew: it holds nothing, and has forgotten its timers."""
        with self._lock:
            self._queues, self._turn = {}, None

    def add(self, held: HeldTask) -> None:
        """Put *held* back before long, unless it is held no longer by then, or due soon."""
        if held.queue is None:
            return
        with self._lock:
            self._queues.setdefault(held.queue, deque()).append(held)
            if self._turn is None:
                self._later(held.consumer, _EVERY)

    def _later(self, consumer: Any, delay: float) -> None:
        self._turn, self._due = object(), time.monotonic() + delay
        consumer.timer.call_after(delay, self._take_turn, (consumer, self._turn))

    def _take_turn(self, consumer: Any, turn: object) -> None:
        """Put back as many tasks of one queue as it has room for, each queue in its turn."""
        with self._lock:
            if turn is not self._turn:
                return
            name, tasks = next(iter(self._queues.items()))
        skips = time.monotonic() > self._due + _LATE and self._skipped < _MOST_SKIPPED
        self._skipped = self._skipped + 1 if skips else 0
        delay = _EVERY if skips else self._save(name, tasks)
        with self._lock:
            if turn is not self._turn:
                return
            if not tasks:
                del self._queues[name]
            elif delay != _ASK_AGAIN_AFTER:
                self._queues[name] = self._queues.pop(name)
            self._turn = None
            if self._queues:
                self._later(consumer, delay)

    def _save(self, name: str, tasks: deque[HeldTask]) -> float:
        """Return in how many seconds the next turn is."""
        room: int | None = None
        while tasks:
            held = tasks[0]
            if held.state is not State.HELD or held.due <= time.monotonic() + _DURABLE_AFTER:
                tasks.popleft()
                continue
            if room is None:
                try:
                    length = self._in_queue(name)
                except Exception:
                    return _AFTER_ERROR
                if length is None:
                    return _ASK_AGAIN_AFTER
                room = _MOST_IN_QUEUE - length
            if room <= 0:
                break
            room -= 1
            tasks.popleft()
            if not self._put_back(held):
                return _AFTER_ERROR
        return _EVERY


def _stands(ticket: Mapping[str, Any] | None) -> dict[str, tuple[int, int, int]]:
    """Where a task with *ticket* stands in each line. Its due instant is another each time that it asks."""
    places = Ticket.read(ticket).places
    return {limit: (place.epoch, place.start, place.number) for limit, place in places.items()}
