"""A delay queue's messages, first by when they are due; and those that wait for a slot also by whose slot."""

from __future__ import annotations

import heapq
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from queue import PriorityQueue
from typing import Any

__all__ = ["TICKET", "Entry", "Waiting", "due_and_message"]

TICKET = "throttlekit"
"""The message option in which a denied message carries its place in the line."""

_TIDY_AFTER = 1000
_STILL_AFTER = 0.5


@dataclass(slots=True, order=True)
class Entry:
    """A message that waits: due in ms, and in the order of coming if two are due at once."""

    due: int
    number: int
    item: Any = field(compare=False)
    message: Any = field(compare=False)
    gone: bool = field(default=False, compare=False)


@dataclass(slots=True)
class _Lane:
    """Those who wait for slots of the same holders; and when one of them was last brought up."""

    stirred: float
    entries: list[Entry] = field(default_factory=list[Entry])


class Waiting(PriorityQueue[Any]):
    """
    In place of a consumer thread's `delay_queue`, and all that Dramatiq does with one it may do with this.

    Besides, a message that waits for a slot of a concurrency limit can be taken out before its time, whichever
    stands in front. No operation looks at more than a few entries: what is taken out is marked as gone, and
    cleared away now and then.
    """

    def _init(self, maxsize: int) -> None:
        self._entries: list[Entry] = []
        self._lanes: dict[str, _Lane] = {}
        self._gone = 0
        self._put_so_far = self._removed = 0

    def _qsize(self) -> int:
        return len(self._entries) - self._gone

    def _put(self, item: Any) -> None:
        due, message = due_and_message(item)
        self._put_so_far += 1
        self._add(Entry(due, self._put_so_far, item, message))

    def _get(self) -> Any:
        entry: Any = self._first_of(self._entries)  # there is one: the size was asked for before
        self._remove(entry)
        return entry.item

    def first(self) -> Entry | None:
        """The entry that is due first; it stays."""
        with self.mutex:
            return self._first_of(self._entries)

    def first_in(self, lane: str) -> Entry | None:
        """The entry that is due first of those that wait in *lane*; it stays."""
        with self.mutex:
            return self._first_in(lane)

    def first_in_a_still_lane(self) -> Entry | None:
        """
        The entry that is due first of one lane, each in its turn; it stays. None if that lane has just been asked for.

        A lane whose bodies all run in other processes is woken by nobody here.
        """
        with self.mutex:
            lane = next(iter(self._lanes), None)
            if lane is None:
                return None
            entry = self._first_in(lane)
            if entry is None:
                return None
            last = self._lanes.pop(lane)
            self._lanes[lane] = last
            return entry if time.monotonic() - last.stirred >= _STILL_AFTER else None

    def remove(self, entry: Entry) -> bool:
        """Take *entry* out, to call `task_done` for; False if another has."""
        with self.mutex:
            if entry.gone:
                return False
            self._remove(entry)
            lane = self._lanes.get(_lane(entry.message))
            if lane is not None:
                lane.stirred = time.monotonic()
            return True

    def messages(self) -> list[Any]:
        """All that wait; they stay."""
        with self.mutex:
            return [entry.message for entry in self._entries if not entry.gone]

    def _add(self, entry: Entry) -> None:
        heapq.heappush(self._entries, entry)
        lane = _lane(entry.message)
        if lane:
            if lane not in self._lanes:
                self._lanes[lane] = _Lane(time.monotonic())
            heapq.heappush(self._lanes[lane].entries, entry)

    def _first_in(self, lane: str) -> Entry | None:
        waiting = self._lanes.get(lane)
        entry = self._first_of(waiting.entries) if waiting else None
        if entry is None:
            self._lanes.pop(lane, None)
        return entry

    def _first_of(self, entries: list[Entry]) -> Entry | None:
        while entries and entries[0].gone:
            heapq.heappop(entries)
            self._gone -= entries is self._entries
        return entries[0] if entries else None

    def _remove(self, entry: Entry) -> None:
        entry.gone = True
        self._gone += 1
        self._removed += 1
        if self._removed > max(_TIDY_AFTER, self._qsize()):
            living = [each for each in self._entries if not each.gone]
            for lane in self._lanes.values():
                lane.entries.clear()
            self._entries, self._gone, self._removed = [], 0, 0
            for each in living:
                self._add(each)
            self._lanes = {name: lane for name, lane in self._lanes.items() if lane.entries}


def due_and_message(item: Any) -> tuple[int, Any]:
    """What is in an item of a delay queue."""
    # A pair before Dramatiq 2.2.
    return (item[0], item[1]) if isinstance(item, tuple) else (item.priority, item.message)  # pyright: ignore[reportUnknownVariableType]


def _lane(message: Any) -> str:
    ticket = message.options.get(TICKET)
    lane = ticket.get("lane") if isinstance(ticket, Mapping) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return lane if isinstance(lane, str) else ""
