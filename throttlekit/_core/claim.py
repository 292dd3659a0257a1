"""One limit's part of a request, as a store reads it."""

from __future__ import annotations

from dataclasses import dataclass

from throttlekit._core.algorithm import Algorithm

__all__ = ["StoreClaim"]


@dataclass(frozen=True, slots=True, eq=False)
class StoreClaim:
    """
    What one request takes of one limit, and the names under which the limit's state is stored.

    The limiter gives the same object again for the same question. So a claim is equal to itself only, and a store can
    remember by the object what it has worked out.
    """

    bucket: str
    line: str
    algorithm: Algorithm
    spacing_us: int
    """The distance between two instants of the waiting line."""
    max_queue_us: int | None = None
    """How far ahead the line's next instant may be for a new job to join it. None: any."""
