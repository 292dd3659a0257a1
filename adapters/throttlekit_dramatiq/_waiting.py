"""The messages that wait in a delay queue's consumer: first by when they are due, and by the slot they wait for."""

from __future__ import annotations

import time
from queue import PriorityQueue
from typing import Any, NamedTuple, TypeAlias

from throttlekit.adapter import Entry, WaitingRoom, lane_in
from throttlekit_dramatiq._message_state import TICKET

__all__ = ["Held", "Waiting", "WaitingEntry", "due_and_message"]

_STILL_FOR = 0.5


class Held(NamedTuple):
    """What Dramatiq put into its delay queue, and the message in it."""

    item: Any
    message: Any


WaitingEntry: TypeAlias = Entry[Held]


class Waiting(PriorityQueue[Any]):
    """
    In place of a consumer thread's `delay_queue`: all that Dramatiq does with one it may do with this.

    Besides, a message that waits for a slot of a concurrency limit can be taken out before it is due, whichever stands
    in front.
    """

    def _init(self, maxsize: int) -> None:
        self._room: WaitingRoom[Held] = WaitingRoom()

    def _qsize(self) -> int:
        return len(self._room)

    def _put(self, item: Any) -> None:
        due, message = due_and_message(item)
        self._room.put(Held(item, message), due, lane_in(message.options.get(TICKET)), now=time.monotonic())

    def _get(self) -> Any:
        entry: Any = self._room.first()  # there is one: `get` has checked the size
        self._room.remove(entry, now=time.monotonic())
        return entry.item.item

    def first(self) -> WaitingEntry | None:
        """The entry that is due first; it stays."""
        with self.mutex:
            return self._room.first()

    def first_in(self, lane: str) -> WaitingEntry | None:
        """The entry that is due first of those that wait in *lane*; it stays."""
        with self.mutex:
            return self._room.first_in(lane)

    def first_in_still_lane(self) -> WaitingEntry | None:
        """The first entry of a lane that no body of this process has stirred lately; it stays."""
        with self.mutex:
            return self._room.first_in_still_lane(time.monotonic(), _STILL_FOR)

    def remove(self, entry: WaitingEntry) -> bool:
        """Take *entry* out, to call `task_done` for; return False if another thread has."""
        with self.mutex:
            return self._room.remove(entry, now=time.monotonic())

    def messages(self) -> list[Any]:
        """All messages that wait; they stay."""
        with self.mutex:
            return [entry.item.message for entry in self._room]


def due_and_message(item: Any) -> tuple[int, Any]:
    """When an item of a delay queue is due, in ms, and its message."""
    # A pair before Dramatiq 2.2.
    return (item[0], item[1]) if isinstance(item, tuple) else (item.priority, item.message)  # pyright: ignore[reportUnknownVariableType]
