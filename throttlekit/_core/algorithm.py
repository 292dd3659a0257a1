"""What an algorithm must be able to say: gcra.py, concurrency.py and the windows do."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Protocol

__all__ = ["STALE_US", "Algorithm", "Use"]

STALE_US = 60_000_000
"""A state that lies so much further ahead than it can was left by a clock that was wrong."""


class Use(NamedTuple):
    """How much of a limit is used under one key."""

    units: int
    """Units that count now. A bucket leaves it at 0: what is left of it follows from `full_us`."""
    full_us: int
    """The instant from which nothing counts any more. In the past: nothing does."""


class Algorithm(Protocol):
    """
    What one request means to one key of one limit: the algorithm, its numbers, and what is asked.

    A state is the algorithm's own value, immutable; None means that the key is not known: nothing is used.
    Times are whole microseconds, and arguments. Every rounding makes the limit stricter.
    """

    code: ClassVar[str]
    """The algorithm, as the script knows it."""
    estimates: ClassVar[bool]
    """Whether the slots of its line are estimates: a job that comes before its slot then passes if there is room."""

    @property
    def size(self) -> int:
        """How much is charged, in the algorithm's own measure: µs for a bucket, else units. 0 only looks."""
        ...

    @property
    def params(self) -> tuple[int | str, int | str, int | str]:
        """The limit, as the script reads it."""
        ...

    def sanitized(self, state: Any, now_us: int) -> Any:
        """
        The stored state as far as it can be believed; else that of a limit that has just been used up.

        A little ahead of the clock it is honoured: a clock that steps back then only delays. More than
        `STALE_US` further than it can be, it would block for as long as the clock was off.
        """
        ...

    def exhausted(self, state: Any, at_us: int) -> Any:
        """The state as if all that passes in one period had passed, evenly, up to *at_us*; *state* if it says more."""
        ...

    def ready_us(self, state: Any, now_us: int) -> int:
        """The earliest instant at which the request passes if nobody else asks; *now_us* if at once."""
        ...

    def admit(self, state: Any, now_us: int) -> Any:
        """The state once the request has passed. The caller has made sure that `ready_us` is *now_us*."""
        ...

    def settled(self, state: Any, now_us: int, granted_us: int, by: int) -> Any:
        """
        The state once a request that passed at *granted_us* turns out *by* dearer; cheaper if negative.

        May go beyond what the limit allows: then nothing passes until that has been made up for. What is
        given back is what that request took, as far as it still counts.
        """
        ...

    def use(self, state: Any, now_us: int) -> Use:
        """What is used, and until when it counts."""
        ...

    def busy_until_us(self, state: Any, now_us: int) -> int:
        """The instant up to which a waiting line has kept the limit busy: for ever after, units lie idle."""
        ...

    def spacing_us(self, lateness_us: int) -> int:
        """The distance from this request's slot to the next, for a delivery that comes up to *lateness_us* late."""
        ...

    def distance_us(self, state: Any, now_us: int, spacing_us: int) -> int:
        """The same where it depends on the state; else *spacing_us*."""
        ...

    def needs_slack(self, lateness_us: int) -> bool:
        """Whether a job that comes *lateness_us* late costs the limit something that it cannot make up for."""
        ...
