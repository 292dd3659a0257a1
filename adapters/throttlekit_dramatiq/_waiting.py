"""The messages that wait in a delay queue's consumer: first by when they are due, and by the slot they wait for."""

from __future__ import annotations

import threading
import time
from queue import Empty
from typing import Any, NamedTuple, TypeAlias

from dramatiq.common import current_millis

from throttlekit.adapter import Entry, Lane, Waited, WaitingRoom, lane_in
from throttlekit_dramatiq._message_state import TICKET

__all__ = ["LONGEST_HOLD", "Held", "Retimed", "Waiting", "WaitingEntry", "due_and_message"]

_LOOK_EVERY, _DUE_ANYWAY_MS = 0.5, 250

LONGEST_HOLD = 600.0
"""Seconds. RabbitMQ closes a channel that holds a message for 30 minutes; three waits of 10 would be too long."""


class Retimed(NamedTuple):
    """
    An item of the delay queue that goes on waiting, without a broker operation. *due* is its new due time in ms, and
    *lane* is where it waits; None: in the lane of its ticket.
    """

    item: Any
    due: int
    since: float
    before: Waited
    lane: Lane | None = None


class Held(NamedTuple):
    """What Dramatiq put into its delay queue, the message in it, and since when it is held, by the monotonic clock."""

    item: Any
    message: Any
    since: float


WaitingEntry: TypeAlias = Entry[Held]


class Waiting:
    """
    Replaces a consumer thread's `delay_queue`: it has every method of a queue that Dramatiq calls on it.

    In addition, the first message of a limit's line can be removed before it is due, and put back with another due
    time.

    It does not extend `queue.PriorityQueue`, whose lock and hooks are private: gevent replaces that class with one that
    has neither.
    """

    def __init__(self) -> None:
        self.unfinished_tasks = 0
        self._room: WaitingRoom[Held] = WaitingRoom(second=1000)
        self._lock = threading.Lock()
        self._all_done = threading.Condition(self._lock)

    def put(self, item: Any) -> None:
        """Add an item of Dramatiq's, or a `Retimed` one. Call `task_done` once for each."""
        retimed = item if isinstance(item, Retimed) else None
        item = retimed.item if retimed else item
        due, message = due_and_message(item)
        now = time.monotonic()
        due, since, before = (retimed.due, retimed.since, retimed.before) if retimed else (due, now, None)
        lane = (retimed and retimed.lane) or lane_in(message.options.get(TICKET))
        latest = max(due, current_millis() + LONGEST_HOLD * 1000)
        with self._lock:
            self._room.put(Held(item, message, since), due, lane, now=now, latest=latest, before=before)
            self.unfinished_tasks += 1

    def get_nowait(self) -> Any:
        """
        Remove the item that is due first, and return it as Dramatiq put it in.

        Raises:
            Empty: No message waits.
        """
        with self._lock:
            entry = self._room.first()
            if entry is None:
                raise Empty
            self._room.remove(entry)
            return entry.item.item

    def task_done(self) -> None:
        """Record that a message that was removed is dealt with."""
        with self._lock:
            self.unfinished_tasks -= 1
            if self.unfinished_tasks == 0:
                self._all_done.notify_all()

    def join(self) -> None:
        """Block until `task_done` has been called for every message."""
        with self._lock:
            self._all_done.wait_for(lambda: self.unfinished_tasks == 0)

    def qsize(self) -> int:
        """Return how many messages wait."""
        with self._lock:
            return len(self._room)

    def first(self) -> WaitingEntry | None:
        """The entry that is due first; it stays."""
        with self._lock:
            return self._room.first()

    def first_in(self, lane: str) -> WaitingEntry | None:
        """The entry that stands first in *lane*; it stays."""
        with self._lock:
            return self._room.first_in(lane)

    def to_look_at(self, now_ms: int) -> WaitingEntry | None:
        """The first entry of a lane at which this process has not looked lately; it stays."""
        with self._lock:
            return self._room.to_look_at(time.monotonic(), _LOOK_EVERY, now_ms + _DUE_ANYWAY_MS)

    def remove(self, entry: WaitingEntry) -> bool:
        """Remove *entry*, to call `task_done` for; return False if another thread has."""
        with self._lock:
            return self._room.remove(entry)

    def messages(self) -> list[Any]:
        """All messages that wait; they stay."""
        with self._lock:
            return [entry.item.message for entry in self._room]


def due_and_message(item: Any) -> tuple[int, Any]:
    """When an item of a delay queue is due, in ms, and its message."""
    # A pair before Dramatiq 2.2.
    return (item[0], item[1]) if isinstance(item, tuple) else (item.priority, item.message)  # pyright: ignore[reportUnknownVariableType]
