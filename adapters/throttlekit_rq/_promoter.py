"""Enqueue the due jobs of queues that have no RQ scheduler, in throttlekit's workers and in `throttlekit wake`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from throttlekit_rq._waiting import announce, look, promote

__all__ = ["Promoter"]

_LOOK_EVERY = 0.25
_ANNOUNCE_EVERY = 1.0


class Promoter:
    """
    Enqueues due jobs, and announces in Redis that this process does so for the queue.

    Args:
        connection: The client of the Redis of the queues.
        idle: Whether each check also announces in Redis that this process has no job to run.

    Attributes:
        next_check_at: The time of the next check, by the monotonic clock.
    """

    def __init__(self, connection: Any, *, idle: bool) -> None:
        self._connection, self._idle = connection, idle
        self._announce_at = 0.0
        self.next_check_at = 0.0

    def promote_due(self, names: Sequence[str], now: float) -> None:
        """Enqueue the due jobs of the queues *names*, and set `next_check_at`. Call it at that time, not before."""
        if now >= self._announce_at:
            announce(self._connection, names)
            self._announce_at = now + _ANNOUNCE_EVERY
        next_in = _LOOK_EVERY
        for name, seen in zip(names, look(self._connection, names, idle=self._idle), strict=True):
            if seen.scheduler:
                continue
            if seen.due and (promote(self._connection, name, seen.due) < len(seen.due) or seen.has_more):
                next_in = 0.0
            if seen.next_in is not None:
                next_in = min(next_in, seen.next_in)
        self.next_check_at = now + next_in
