"""A waiting room for workers that are event loops."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from throttlekit.adapter.waiting import Entry, WaitingRoom, lane_in

__all__ = ["Due", "LoopRoom"]

_LOOK_EVERY = 0.5
_SOON = 0.03
"""Seconds: a job that is due within so much is on time."""

_T = TypeVar("_T")


class Due(NamedTuple, Generic[_T]):
    """A job that is to ask again. *early*: before it is due, on the guess that it is admitted."""

    item: _T
    early: bool


class LoopRoom(Generic[_T]):
    """
    Jobs that wait in an event loop: a `WaitingRoom`, and a bell that rings when one of them is to ask again.

    `await rung()`, then take with `next()` until it returns None. All of it belongs to one loop and its thread.
    """

    def __init__(self) -> None:
        self._room: WaitingRoom[_T] = WaitingRoom()
        self._woken: deque[Entry[_T]] = deque()
        self._bell: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._room) + len(self._woken)

    def put(self, item: _T, delay: float, ticket: Mapping[str, Any] | None, longest: float) -> None:
        """Let *item*, denied with *ticket*, wait for *delay* seconds; for *longest*, however late its lane becomes."""
        now = asyncio.get_running_loop().time()
        self._room.put(item, now + delay, lane_in(ticket), now=now, latest=now + longest)
        self.ring()

    def wake(self, lanes: Sequence[str]) -> None:
        """Let the job that stands first in one of *lanes* ask: it may be admitted now."""
        for lane in lanes:
            entry = self._room.first_in(lane)
            if entry is not None and self._room.remove(entry):
                self._woken.append(entry)
                self.ring()
                return

    def next(self) -> Due[_T] | None:
        """The job that is to ask now; it is taken out."""
        if self._woken:
            return Due(self._woken.popleft().item, early=True)
        now = asyncio.get_running_loop().time()
        entry, early = self._room.first(), False
        if entry is None or entry.due > now:
            entry, early = self._room.to_look_at(now, _LOOK_EVERY, now + _SOON), True
        if entry is None:
            return None
        self._room.remove(entry)
        return Due(entry.item, early)

    def drain(self) -> list[_T]:
        """Take out all jobs, in the order in which they are due."""
        found = [entry.item for entry in (*self._woken, *sorted(self._room))]
        self._room, self._woken = WaitingRoom(), deque()
        return found

    async def rung(self) -> None:
        """
        Wait until a job is due or woken, or `ring` is called; for half a second at most, as lines move and as signal
        handlers of frameworks do not always wake their loop. One task at a time.
        """
        loop = asyncio.get_running_loop()
        first, look = self._room.first(), loop.time() + _LOOK_EVERY
        bell = self._bell = loop.create_future()
        timer = loop.call_at(look if first is None else min(first.due, look), self.ring)
        try:
            await bell
        finally:
            self._bell = None
            timer.cancel()

    def ring(self, _: object = None) -> None:
        """End `rung`. May be a callback of a future."""
        if self._bell is not None and not self._bell.done():
            self._bell.set_result(None)
