"""Move scheduled jobs to their queues: jobs that are due, and jobs that the store has woken."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rq.job import Job as RqJob

import throttlekit_lua
from throttlekit_rq._host import lock_key, now_text, queue_key, scheduled_key
from throttlekit_rq._wire import idle_key, promoter_key

__all__ = ["Promoter", "look", "wake"]

_LOOK_EVERY = 0.25
_MARKS: dict[Callable[[str], str], int] = {promoter_key: 5_000, idle_key: 600}
"""The keys that a check of due jobs may set for a queue, with their times to live in ms."""
_MOST_PROMOTED = 32
_PROMOTE = throttlekit_lua.script("rq_promote")


class Promoter:
    """
    Enqueues the due jobs of queues that have no RQ scheduler.

    Args:
        connection: The client of the Redis of the queues.
        marks: What each check announces in Redis: `promoter_key`, that this process enqueues due jobs, and `idle_key`.

    Attributes:
        next_check_at: The time of the next check, by the monotonic clock.
    """

    def __init__(self, connection: Any, *marks: Callable[[str], str]) -> None:
        self._connection, self._marks = connection, marks
        self.next_check_at = 0.0

    def promote_due(self, names: Sequence[str], now: float) -> None:
        """
        Enqueue the due jobs of the queues *names*, but of the denied jobs only the first. Set `next_check_at`, and call
        this at that time, not before.
        """
        next_in = _LOOK_EVERY
        for name, seen in zip(names, look(self._connection, names, self._marks), strict=True):
            if seen.scheduler:
                continue
            next_in = min(next_in, seen.next_in)
            if seen.due and _promote(self._connection, name, seen.due, "")[0] < len(seen.due):
                next_in = 0.0
        self.next_check_at = now + next_in


class _Look(NamedTuple):
    """
    The scheduled jobs of one queue.

    Attributes:
        due: The ids of the due jobs, in order.
        next_in: The seconds until the next job is due: 0 if more jobs may be due, infinite if no other job was found.
        scheduler: Whether one of RQ's schedulers serves the queue.
    """

    due: list[str]
    next_in: float
    scheduler: bool


def look(connection: Any, queues: Sequence[str], marks: Sequence[Callable[[str], str]] = ()) -> list[_Look]:
    """Read the first scheduled jobs of *queues*, by the server's clock, and set their *marks*, in one round trip."""
    with connection.pipeline(transaction=False) as pipeline:
        pipeline.time()
        for queue in queues:
            pipeline.exists(lock_key(queue))
            pipeline.zrange(scheduled_key(queue), 0, _MOST_PROMOTED - 1, withscores=True)
            for mark in marks:
                pipeline.set(mark(queue), 1, px=_MARKS[mark])
        (seconds, micros), *found = pipeline.execute()
    now, looks, step = seconds + micros / 1_000_000, list[_Look](), 2 + len(marks)
    for locked, jobs in zip(found[::step], found[1::step], strict=True):
        due = [job_id.decode() for job_id, score in jobs if score <= now]
        later = [score - now for _, score in jobs if score > now]
        more_in = 0.0 if len(due) == _MOST_PROMOTED else math.inf
        looks.append(_Look(due, min([*later, more_in]), bool(locked)))
    return looks


def wake(connection: Any, queue: str, ids: Sequence[str], before: str = "-") -> int:
    """
    Move scheduled jobs to the front of *queue*, due or not, in the order of *ids*, but behind the job *before*.

    Returns:
        The number of jobs that were not moved, because they no longer exist, were cancelled, or have begun.
    """
    return _promote(connection, queue, ids, before)[1]


def _promote(connection: Any, queue: str, ids: Sequence[str], before: str) -> list[int]:
    script = connection.register_script(_PROMOTE)
    keys = [lock_key(queue), scheduled_key(queue), queue_key(queue)]
    keys += [RqJob.key_for(job_id) for job_id in ids]
    found: list[int] = script(keys=keys, args=[now_text(), before, *ids])
    return found
