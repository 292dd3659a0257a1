"""What an algorithm must do. gcra.py, concurrency.py and the windows are algorithms."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Protocol

__all__ = ["STALE_US", "Algorithm", "NoSlots", "Use", "stored_until_us", "window_mark"]

STALE_US = 60_000_000
"""A state that lies so much further ahead than it can was written by a clock that was wrong."""


class Use(NamedTuple):
    """How much of a limit is used under one key."""

    units: int
    """
    Units that count now. What is left of a bucket follows from `full_us`: there, after a grant to a job that waited,
    for how many µs the bucket had been full, and lost what came; else 0.
    """
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
    """Whether no clock shows when units come back: then a job may pass before it is due."""
    overflows: ClassVar[bool]
    """Whether it loses what comes while it is full, and `Use.units` says for how long."""
    remembered_us: ClassVar[int]
    """How long what is written is of use, also where nothing of it counts any more."""

    @property
    def holder(self) -> str:
        """The holder of the slot that the request takes; "" for a limit that gives no slots."""
        ...

    @property
    def lease_us(self) -> int:
        """How long a slot stays with a holder that does not renew it; 0 for a limit that gives no slots."""
        ...

    @property
    def size(self) -> int:
        """How much is charged, in the algorithm's own measure: µs for a bucket, else units. 0 only looks."""
        ...

    def of_one(self) -> Algorithm:
        """What a request of one unit means, for no holder."""
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

    def adopted(self, state: Any, now_us: int) -> Any:
        """
        What *state* means here, if a limit of another rate wrote it, which counts in the same place: the same object if
        it means the same. Every other method takes and returns such a state, but `sanitized` and `settled`: these two
        leave a state as it was written, so that it goes on at the rate that is in force.
        """
        ...

    def exhausted(self, state: Any, at_us: int) -> Any:
        """The state as if all that passes in one period had passed, evenly, up to *at_us*; *state* if it says more."""
        ...

    @property
    def mark(self) -> int:
        """Changes whenever the limit's rate does: the faster, the less."""
        ...

    def there(self, state: Any, now_us: int) -> int:
        """How many units there are now."""
        ...

    def ready_us(self, state: Any, now_us: int, ahead: int = 0) -> int:
        """
        The earliest instant at which the request passes once *ahead* units more have passed before it, and no other
        request comes; *now_us* if at once. Exact for as many units as ever pass at once, and an estimate beyond: it
        never falls as *ahead* grows.
        """
        ...

    def holds(self, state: Any, now_us: int) -> bool:
        """
        Whether the request takes nothing, since a job of its workflow holds the slot already: then it passes whatever
        waits.
        """
        ...

    def admit(self, state: Any, now_us: int) -> Any:
        """The state once the request has passed. The caller has checked that `ready_us` is *now_us*."""
        ...

    def admit_early(self, state: Any, now_us: int, at_us: int) -> Any:
        """
        As `admit`, of a limit that `overflows`, for a request that passes at *at_us*, a little later. A change of the
        rate until then forgives nothing of it.
        """
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

    def idle_us(self, state: Any, now_us: int) -> int:
        """For how long it has been full, and lost what came; 0 if that is not known."""
        ...

    def tight(self, grace_us: int) -> bool:
        """Whether a unit that is not taken within *grace_us* is lost: then no unit waits for the job in front."""
        ...

    def pace_us(self, state: Any, now_us: int) -> int:
        """How long the limit takes, at its rate, to let the units of this request pass."""
        ...


class NoSlots:
    """The part of an `Algorithm` whose limit gives no slots."""

    __slots__ = ()

    remembered_us: ClassVar[int] = 0
    overflows: ClassVar[bool] = False

    def idle_us(self, state: Any, now_us: int) -> int:
        return 0

    def holds(self, state: Any, now_us: int) -> bool:
        return False

    def admit_early(self, state: Any, now_us: int, at_us: int) -> Any:
        raise NotImplementedError("only a limit that overflows admits early")

    @property
    def holder(self) -> str:
        return ""

    @property
    def lease_us(self) -> int:
        return 0


def stored_until_us(algorithm: Algorithm, state: Any, now_us: int) -> int:
    """The instant from which nothing is of use any more of what is written now."""
    full_us = algorithm.use(state, now_us).full_us
    return max(full_us, now_us + algorithm.remembered_us) if algorithm.remembered_us else full_us


def window_mark(amount: int, period_us: int) -> int:
    """`Algorithm.mark` of so many units in each period: the nanoseconds of one unit."""
    return period_us * 1000 // amount
