"""Estimate, from the last minute, whether a limit's waitlist shrinks, and when it is empty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from throttlekit.fleet.definitions import share_of_minute
from throttlekit.fleet.snapshot import Key, Known

__all__ = ["Outlook", "outlook_of"]

_LEAST_CHANGE = 0.05
"""If arrivals and grants differ by less than this share of the larger one, the trend is steady."""
_HAS_ROOM = 0.8
_PATIENCE_S = 60.0
_ROOM = "the limit has room: the workers are the bottleneck, or another limit holds the jobs back"


@dataclass(frozen=True, slots=True)
class Outlook:
    """
    A forecast for the waiting jobs, if the next minutes are like the last one.

    Attributes:
        arrived_jobs, granted_jobs: The number of jobs that requested units for the first time in the last minute, and
            of jobs that were granted.
        trend: Whether fewer or more jobs wait than a minute ago.
        clears_in_seconds: The seconds until no job waits; None if that does not happen at this rate.
        limit_has_room: Whether the limit could admit more jobs. Then the workers are the bottleneck, or another limit
            denies the jobs.
        text: A warning, or "".
    """

    arrived_jobs: int
    granted_jobs: int
    trend: Literal["clears", "grows", "steady"]
    clears_in_seconds: float | None
    limit_has_room: bool
    text: str


def outlook_of(known: Known, keys: Sequence[Key]) -> Outlook | None:
    """
    Return the outlook of a limit with its most pressing *keys*, or None if no job waits, or the last minute is unknown.

    Example: 600 jobs wait; in the last minute, 100 arrived and 300 were granted. So 200 fewer wait each minute, and
    none waits in 180 seconds.
    """
    waiting, minute = sum(key.waiting for key in keys), known.minute
    if not waiting or not minute.is_known:
        return None
    arrived, granted = minute.arrived, minute.allowed or 0
    fewer = granted - arrived
    is_steady = abs(fewer) <= _LEAST_CHANGE * max(arrived, granted)
    trend: Literal["clears", "grows", "steady"] = "steady" if is_steady else "clears" if fewer > 0 else "grows"
    clears_in = waiting / fewer * 60 if trend == "clears" else None
    has_room = _has_room(known, [key for key in keys if key.waiting])
    grows = f"grows: {arrived} arrived in the last minute, {granted} were granted" if trend == "grows" else ""
    return Outlook(arrived, granted, trend, clears_in, has_room, _ROOM if has_room else grows)


def _has_room(known: Known, waiting: Sequence[Key]) -> bool:
    """Whether a job has waited for a minute although the limit had units left all the time."""
    held = any(key.paused is not None or key.slowed is not None for key in waiting)
    if held or max(key.oldest_wait or 0.0 for key in waiting) < _PATIENCE_S:
        return False
    if not known.limit.period_us:
        return all(key.used <= key.capacity / 2 for key in waiting)
    share = None if known.has_keys else share_of_minute(known.limit, known.minute)
    return share is not None and share < _HAS_ROOM and all(key.used < key.capacity for key in waiting)
