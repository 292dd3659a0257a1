"""The jobs that wait in one process: first by when they are due, and by the slot that they wait for."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

__all__ = ["Entry", "WaitingRoom", "lane_in"]

_TIDY_AFTER = 1000
"""Entries that may be marked as gone before all of them are cleared away."""

_T = TypeVar("_T")


@dataclass(slots=True, order=True)
class Entry(Generic[_T]):
    """
    One job that waits.

    Attributes:
        due: When it is to be taken up, in the caller's unit; jobs that are due at once keep the order of coming.
        item: The caller's own object.
        gone: It was removed.
    """

    due: float
    number: int
    item: _T = field(compare=False)
    lane: str = field(default="", compare=False)
    gone: bool = field(default=False, compare=False)


@dataclass(slots=True)
class _Lane(Generic[_T]):
    """Jobs that wait for slots of the same holders, and when one of them was last taken up."""

    stirred: float
    entries: list[Entry[_T]] = field(default_factory=list[Entry[_T]])


class WaitingRoom(Generic[_T]):
    """
    Keeps jobs in the order in which they are due, and finds the first of a lane, whichever stands in front.

    Every operation looks at a few entries only: a removed entry is marked, and cleared away now and then. Not safe
    between threads: the caller holds a lock. Time is an argument.
    """

    def __init__(self) -> None:
        self._entries: list[Entry[_T]] = []
        self._lanes: dict[str, _Lane[_T]] = {}
        self._living = self._number = self._removed = 0

    def __len__(self) -> int:
        return self._living

    def __iter__(self) -> Iterator[Entry[_T]]:
        """All jobs that wait, in no order."""
        return (entry for entry in self._entries if not entry.gone)

    def put(self, item: _T, due: float, lane: str = "", *, now: float = 0.0) -> Entry[_T]:
        """
        Let *item* wait until *due*.

        Args:
            lane: What it waits for, as `lane_in` reads it off the ticket; "" if not for a slot.
            now: When the lane begins to be still, for `first_in_still_lane`.
        """
        self._number += 1
        self._living += 1
        entry = Entry(due, self._number, item, lane)
        self._add(entry, now)
        return entry

    def first(self) -> Entry[_T] | None:
        """The entry that is due first; it stays."""
        return _first_of(self._entries)

    def first_in(self, lane: str) -> Entry[_T] | None:
        """The entry that is due first of those that wait in *lane*; it stays."""
        waiting = self._lanes.get(lane)
        entry = _first_of(waiting.entries) if waiting else None
        if entry is None:
            self._lanes.pop(lane, None)
        return entry

    def first_in_still_lane(self, now: float, still_for: float) -> Entry[_T] | None:
        """
        The entry that is due first of one lane, each lane in its turn; it stays. None if an entry of that lane was
        removed less than *still_for* ago.

        In a lane whose slots are all held in other processes, no body here ends and wakes the next job.
        """
        lane = next(iter(self._lanes), None)
        if lane is None:
            return None
        entry = self.first_in(lane)
        if entry is None:
            return None
        last = self._lanes[lane] = self._lanes.pop(lane)
        return entry if now - last.stirred >= still_for else None

    def remove(self, entry: Entry[_T], *, now: float = 0.0) -> bool:
        """Take *entry* out; return False if it was taken out before."""
        if entry.gone:
            return False
        entry.gone = True
        self._living -= 1
        self._removed += 1
        if entry.lane in self._lanes:
            self._lanes[entry.lane].stirred = now
        if self._removed > max(_TIDY_AFTER, self._living):
            self._tidy()
        return True

    def _add(self, entry: Entry[_T], now: float) -> None:
        heapq.heappush(self._entries, entry)
        if entry.lane:
            if entry.lane not in self._lanes:
                self._lanes[entry.lane] = _Lane(now)
            heapq.heappush(self._lanes[entry.lane].entries, entry)

    def _tidy(self) -> None:
        living = list(self)
        for lane in self._lanes.values():
            lane.entries.clear()
        self._entries, self._removed = [], 0
        for each in living:
            self._add(each, 0.0)
        self._lanes = {name: lane for name, lane in self._lanes.items() if lane.entries}


def lane_in(ticket: Mapping[str, Any] | None) -> str:
    """What a job that carries *ticket* waits for: a slot of certain holders; "" if not for a slot."""
    lane = ticket.get("lane") if isinstance(ticket, Mapping) else None  # pyright: ignore[reportUnnecessaryIsInstance]
    return lane if isinstance(lane, str) else ""


def _first_of(entries: list[Entry[_T]]) -> Entry[_T] | None:
    while entries and entries[0].gone:
        heapq.heappop(entries)
    return entries[0] if entries else None
