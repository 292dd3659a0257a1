"""Where a job is in Redis: in huey's queue, in a worker's hand, or in huey's schedule."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from huey.storage import ConnectionError, TimeoutError  # type: ignore[import-untyped]

import throttlekit_lua

__all__ = ["ANOTHERS_AFTER_S", "PREFIX", "Schedule", "Taken"]

PREFIX = "throttlekit:huey:"
"""What our keys beside huey's begin with; the huey's name in Redis follows."""

ANOTHERS_AFTER_S = 10
"""Seconds after which a job that is in a worker's hand is another worker's."""
_INSIST_S, _ASK_AGAIN_S = 8.0, 0.1
"""For how long, once a job is in hand, a lost connection is waited for: less than until the job is another's."""
_PIECE = 100
"""How many jobs one script moves."""
_TAKE, _DEFER, _WAKE = (throttlekit_lua.script(f"huey_{name}") for name in ("take", "defer", "wake"))


@dataclass(frozen=True, slots=True)
class Taken:
    """
    A message that a worker has taken.

    Attributes:
        hand: Tells it from messages that are equal byte for byte while it is in hand; "": it is not.
        since: When it was asked for, by the monotonic clock; it came later.
    """

    message: bytes
    hand: str = ""
    since: float = 0.0

    @property
    def in_hand(self) -> bytes:
        """Its member of the jobs in workers' hands; empty: it is not there."""
        return f"{self.hand} ".encode() + self.message if self.hand else b""


class Schedule:
    """
    One huey's queue and schedule in Redis. A job that may be held to limits stays there until it is decided on.

    Args:
        storage: Huey's.
        texts: Returns what to look for in a message of the queue: with none of them in it, no limit holds it.
    """

    def __init__(self, storage: Any, texts: Callable[[], Sequence[str]]) -> None:
        self.storage, self._texts, self._conn = storage, texts, storage.conn
        self._sorted = bool(storage.priority)
        prefix = f"{PREFIX}{storage.name}"
        # A list and a sorted set have different names: the class of a huey may change while jobs are there.
        woken = "woken-by-priority" if self._sorted else "woken"
        self._in_hand, self._woken = f"{prefix}:in-hand", f"{prefix}:{woken}"
        self._take, self._defer, self._wake = map(self._conn.register_script, (_TAKE, _DEFER, _WAKE))
        self._listened: deque[tuple[bytes, str]] = deque()  # a message, and the hand in which it was taken

    def next(self, seconds: float) -> Taken | None:
        """The next message; None: there was none for so many *seconds*."""
        keys = [self.storage.queue_key, self._in_hand, self._woken]
        end, got, hand, texts = time.monotonic() + seconds, b"", os.urandom(8).hex(), self._texts()
        with suppress(IndexError):
            got, hand = self._listened.popleft()
        while True:
            args, since = [int(self._sorted), ANOTHERS_AFTER_S * 1_000_000, hand, got, *texts], time.monotonic()
            try:
                found = self._take(keys=keys, args=args)
            except BaseException:
                if got:  # it is in no list of Redis
                    self._listened.append((got, hand))
                raise
            if found is not None:
                return Taken(found[0], found[1].decode(), since)
            left = end - time.monotonic()
            if left <= 0 or not self.storage.blocking:
                return None
            taken = self._listen(left)
            if taken is None or taken.hand or not any(text.encode() in taken.message for text in texts):
                return taken
            got = taken.message

    def let_go(self, taken: Taken) -> bool:
        """Huey's own from here on; False: it is another worker's, because this one stood still for too long."""
        if not taken.hand:
            return True
        until = taken.since + _INSIST_S
        gone, again = self._insist(lambda: self._conn.zrem(self._in_hand, taken.in_hand), until)
        return bool(gone) or (again and time.monotonic() < until)  # then it was let go, and the answer was lost

    def defer(self, taken: Taken, message: bytes, due: Any) -> bool:
        """
        Put a denied job into huey's schedule; return False, and do nothing, if it is another worker's by now.

        Args:
            taken: As it was taken; in no hand if its body has begun.
            message: What comes back, which is unique.
            due: When it comes back if nobody wakes it, by huey's own clock.
        """
        keys, until = [self._in_hand, self.storage.schedule_key], (taken.since or time.monotonic()) + _INSIST_S
        args = [taken.in_hand, message, self.storage.convert_ts(due)]
        return bool(self._insist(lambda: self._defer(keys=keys, args=args), until)[0])

    def wake(self, jobs: Sequence[tuple[float, bytes]]) -> int:
        """
        Hand *jobs*, of a priority and a message each, to whichever workers are idle, in their order. Returns how many
        are in a hand now; the others were flushed, or decided on.
        """
        keys, found = [self.storage.schedule_key, self._in_hand, self._woken], 0
        for start in range(0, len(jobs), _PIECE):
            args = [part for job in jobs[start : start + _PIECE] for part in job]
            found += int(self._wake(keys=keys, args=[int(self._sorted), *args]))
        return found

    def wake_due(self, now: Any, read: Callable[[bytes], Any]) -> None:
        """
        Wake all denied jobs that are due *now*, by huey's clock. Huey's own scheduler would take all of them at once,
        and put one after the other into the queue: a kill in between loses the rest.

        Args:
            read: Returns what a denied job's message contains; None: it is the user's own.
        """
        until, users = self.storage.convert_ts(now), 0
        while True:
            due = self._conn.zrangebyscore(self.storage.schedule_key, "-inf", until, start=users, num=_PIECE)
            ours = [(found.priority or 0, data) for data in due if (found := read(data)) is not None]
            self.wake(ours)
            users += len(due) - len(ours)
            if len(due) < _PIECE:
                return

    def flush(self) -> None:
        """Remove what is stored of jobs beside huey's own keys. A worker that has one in hand does not run it."""
        self._conn.unlink(self._in_hand, self._woken)

    def _insist(self, ask: Callable[[], Any], until: float) -> tuple[Any, bool]:
        """What Redis answers to *ask*, and whether it was asked again, as no answer came. After *until* it raises."""
        again = False
        while True:
            try:
                return ask(), again
            except (ConnectionError, TimeoutError):
                if time.monotonic() > until:
                    raise
                again = True
                time.sleep(_ASK_AGAIN_S)

    def _listen(self, seconds: float) -> Taken | None:
        """Wait for a job that was woken, or for a message of the queue, which is in no list of Redis from then on."""
        pop, since = self._conn.bzpopmin if self._sorted else self._conn.brpop, time.monotonic()
        found = None
        with suppress(TimeoutError):
            found = pop([self._woken, self.storage.queue_key], timeout=seconds)
        if found is None:
            return None
        if found[0] == self._woken.encode():
            return Taken(found[1][34:], found[1][17:33].decode(), since)
        return Taken(found[1][8:] if self._sorted else found[1])
