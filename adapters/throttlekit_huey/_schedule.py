"""
Move jobs in Redis between huey's queue, the jobs "in hand", and huey's schedule.

A job is "in hand" from the time when a worker takes it from the queue until its limits are decided. During this time
it is a member of a sorted set, so a killed worker loses no job: after `TAKEOVER_AFTER_S`, another worker takes it.
"""

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

__all__ = ["PREFIX", "TAKEOVER_AFTER_S", "Schedule", "TakenMessage"]

PREFIX = "throttlekit:huey:"
"""The prefix of throttlekit's keys in huey's Redis, before the name of the huey."""

TAKEOVER_AFTER_S = 10
"""The seconds after which another worker may take a job that is in hand."""
_RETRY_FOR_S, _RETRY_EVERY_S = 8.0, 0.1
"""After a connection error, a worker with a job in hand retries every 0.1 s for 8 s, so never after a takeover."""
_PIECE = 100
"""The maximum number of jobs that one call of a script moves."""
_TAKE, _DEFER, _WAKE = (throttlekit_lua.script(f"huey_{name}") for name in ("take", "defer", "wake"))


@dataclass(frozen=True, slots=True)
class TakenMessage:
    """
    A message that a worker has taken.

    Attributes:
        hand: A random text that distinguishes equal messages in hand. "" if the message is not in hand.
        since: The time at which the worker requested a message, before it received this one, by the monotonic clock.
    """

    message: bytes
    hand: str = ""
    since: float = 0.0

    @property
    def in_hand(self) -> bytes:
        """The message's member in the set of jobs in hand. Empty if the message is not in hand."""
        return f"{self.hand} ".encode() + self.message if self.hand else b""


class Schedule:
    """
    One huey's queue and schedule in Redis. A job that may have limits stays in Redis until its limits are decided.

    Args:
        storage: Huey's storage.
        texts: A function that returns the texts of which a message with limits contains at least one.
    """

    def __init__(self, storage: Any, texts: Callable[[], Sequence[str]]) -> None:
        self.storage, self._texts, self._conn = storage, texts, storage.conn
        self._sorted = bool(storage.priority)
        prefix = f"{PREFIX}{storage.name}"
        # A list and a sorted set need different names: the class of a huey may change while Redis has jobs.
        woken = "woken-by-priority" if self._sorted else "woken"
        self._in_hand, self._woken = f"{prefix}:in-hand", f"{prefix}:{woken}"
        self._take, self._defer, self._wake = map(self._conn.register_script, (_TAKE, _DEFER, _WAKE))
        self._popped: deque[tuple[bytes, str]] = deque()  # messages that are in no list of Redis, and their `hand`

    def next(self, seconds: float) -> TakenMessage | None:
        """Take the next message. Return None if no message arrives within *seconds*."""
        keys = [self.storage.queue_key, self._in_hand, self._woken]
        end, got, hand, texts = time.monotonic() + seconds, b"", os.urandom(8).hex(), self._texts()
        with suppress(IndexError):
            got, hand = self._popped.popleft()
        while True:
            args, since = [int(self._sorted), TAKEOVER_AFTER_S * 1_000_000, hand, got, *texts], time.monotonic()
            try:
                found = self._take(keys=keys, args=args)
            except BaseException:
                if got:  # Redis no longer has this message: keep it
                    self._popped.append((got, hand))
                raise
            if found is not None:
                return TakenMessage(found[0], found[1].decode(), since)
            left = end - time.monotonic()
            if left <= 0 or not self.storage.blocking:
                return None
            taken = self._listen(left)
            if taken is None or taken.hand or not any(text.encode() in taken.message for text in texts):
                return taken
            got = taken.message

    def release(self, taken: TakenMessage) -> bool:
        """Remove *taken* from the jobs in hand. Return False if another worker has it, as this one was too slow."""
        if not taken.hand:
            return True
        until = taken.since + _RETRY_FOR_S
        gone, again = self._retry(lambda: self._conn.zrem(self._in_hand, taken.in_hand), until)
        return bool(gone) or (again and time.monotonic() < until)  # after a retry: the first reply was lost

    def defer(self, taken: TakenMessage, message: bytes, due: Any) -> bool:
        """
        Put a denied job into huey's schedule. Return False, and do nothing, if another worker has taken it over.

        Args:
            taken: The message that the worker has taken. If its body has begun, it is not in hand.
            message: The message for the schedule, which is unique.
            due: The time at which huey enqueues the job if the store does not wake it, by huey's own clock.
        """
        keys, until = [self._in_hand, self.storage.schedule_key], (taken.since or time.monotonic()) + _RETRY_FOR_S
        args = [taken.in_hand, message, self.storage.convert_ts(due)]
        return bool(self._retry(lambda: self._defer(keys=keys, args=args), until)[0])

    def wake(self, jobs: Sequence[tuple[float, bytes]]) -> int:
        """
        Move *jobs*, each a priority and a message, from the schedule to the woken jobs, which idle workers take first.

        Returns:
            The number of jobs that are in hand now. The others were flushed, or another worker has decided them.
        """
        keys, found = [self.storage.schedule_key, self._in_hand, self._woken], 0
        for start in range(0, len(jobs), _PIECE):
            args = [part for job in jobs[start : start + _PIECE] for part in job]
            found += int(self._wake(keys=keys, args=[int(self._sorted), *args]))
        return found

    def wake_due(self, now: Any, read: Callable[[bytes], Any]) -> None:
        """
        Wake all denied jobs that are due *now*, by huey's clock.

        Huey's own scheduler would remove all due jobs at once, and then enqueue one after the other. If it were killed
        in between, the remaining jobs would be lost.

        Args:
            read: A function that returns the content of a denied job's message, or None if the user scheduled it.
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
        """Remove the jobs in throttlekit's keys. A worker that has such a job in hand does not run it."""
        self._conn.unlink(self._in_hand, self._woken)

    def _retry(self, call: Callable[[], Any], until: float) -> tuple[Any, bool]:
        """
        Return the result of *call*, which is repeated after errors until *until*, and whether a reply was lost. Also a
        server that fails over, or has no memory left, answers with an error.
        """
        again = False
        while True:
            try:
                return call(), again
            except Exception as error:
                if time.monotonic() > until:
                    raise
                again = again or isinstance(error, (ConnectionError, TimeoutError))
                time.sleep(_RETRY_EVERY_S)

    def _listen(self, seconds: float) -> TakenMessage | None:
        """Wait for a woken job or a message of the queue. A message of the queue is in no list of Redis afterwards."""
        pop, since = self._conn.bzpopmin if self._sorted else self._conn.brpop, time.monotonic()
        found = None
        with suppress(TimeoutError):
            found = pop([self._woken, self.storage.queue_key], timeout=seconds)
        if found is None:
            return None
        if found[0] == self._woken.encode():
            return TakenMessage(found[1][34:], found[1][17:33].decode(), since)
        return TakenMessage(found[1][8:] if self._sorted else found[1])
