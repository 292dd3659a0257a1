"""What an algorithm must do. gcra.py, concurrency.py and the windows are algorithms."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Protocol

__all__ = ["STALE_US", "Algorithm", "Use"]

STALE_US = 60_000_000
"""A state that lies so much further ahead than it can was written by a clock that was wrong."""


class Use(NamedTuple):
    """How much of a limit is used under one key."""

    units: int
    """Units that count now. For a bucket it is 0: what is left of a bucket follows from `full_us`."""
    full_us: int
    """The instant from which nothing counts any more. An instant in the past: nothing counts now."""


class Algorithm(Protocol):
    """
    What one request means to one key of one limit: the algorithm, its numbers, and the units that the request takes.

    A state is the algorithm's own value, immutable; None means that nothing is stored: nothing is used.
    Times are whole microseconds, and arguments. Every rounding makes the limit stricter.
    """

    code: ClassVar[str]
    """One letter, by which the script finds the algorithm."""
    estimates: ClassVar[bool]
    """Whether the instants of its line are estimates: a job that comes early then passes if there is room."""

    @property
    def size(self) -> int:
        """How much is charged, in the algorithm's own measure: µs for a bucket, else units. 0 only looks."""
        ...

    @property
    def params(self) -> tuple[int | str, int | str, int | str]:
        """The limit's numbers, in the order in which the script reads them."""
        ...

    def sanitized(self, state: Any, now_us: int) -> Any:
        """
        The stored state if it can be true; else the state of a limit that has just been used up.

        A state a little ahead of the clock stays as it is: a clock that steps back then only delays jobs. A state more
        than `STALE_US` further ahead than it can be would block the limit for as long as the clock was wrong.
        """
        ...

    def exhausted(self, state: Any, at_us: int) -> Any:
        """The state as if all that passes in one period had passed, evenly, up to *at_us*; *state* if it says more."""
        ...

    def ready_us(self, state: Any, now_us: int) -> int:
        """The earliest instant at which the request passes if no other comes; *now_us* if at once."""
        ...

    def admit(self, state: Any, now_us: int) -> Any:
        """The state once the request has passed. The caller has checked that `ready_us` is *now_us*."""
        ...

    def settled(self, state: Any, now_us: int, granted_us: int, by: int) -> Any:
        """
        The state once the cost of a request that passed at *granted_us* turns out greater by *by*; less if negative.

        The state may go beyond what the limit allows: then nothing passes until that is made up for. Only units that
        the request took, and that still count, are given back.
        """
        ...

    def use(self, state: Any, now_us: int) -> Use:
        """What is used, and until when it counts."""
        ...

    def busy_until_us(self, state: Any, now_us: int) -> int:
        """The instant up to which a waiting line has kept the limit busy. After it, units lie idle."""
        ...

    def spacing_us(self, lateness_us: int) -> int:
        """The distance from this request's instant in the line to the next, for deliveries up to *lateness_us* late."""
        ...

    def distance_us(self, state: Any, now_us: int, spacing_us: int) -> int:
        """The same distance where it depends on the state; else *spacing_us*."""
        ...

    def needs_slack(self, lateness_us: int) -> bool:
        """Whether a job that comes *lateness_us* late costs the limit something that it cannot make up for."""
        ...
