"""Enqueue the due jobs of queues that have no RQ scheduler, in throttlekit's workers and in `throttlekit wake`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from throttlekit_rq._waiting import look, promote
from throttlekit_rq._wire import idle_key, promoter_key

__all__ = ["Promoter"]

_LOOK_EVERY = 0.25
_PROMOTER_LIVES_MS, _IDLE_MS = 5_000, 600


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
        self._connection = connection
        self._marks: dict[Callable[[str], str], int] = {promoter_key: _PROMOTER_LIVES_MS}
        if idle:
            self._marks[idle_key] = _IDLE_MS
        self.next_check_at = 0.0

    def promote_due(self, names: Sequence[str], now: float) -> None:
        """Enqueue the due jobs of the queues *names*, and set `next_check_at`. Call it at that time, not before."""
        next_in = _LOOK_EVERY
        for name, seen in zip(names, look(self._connection, names, self._marks), strict=True):
            if seen.scheduler:
                continue
            next_in = min(next_in, seen.next_in)
            if seen.due and promote(self._connection, name, seen.due) < len(seen.due):
                next_in = 0.0
        self.next_check_at = now + next_in
