"""The base class of algorithms. gcra.py, concurrency.py, the windows and the log implement it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Any, ClassVar, NamedTuple

__all__ = ["STALE_US", "Algorithm", "Use", "WindowAlgorithm"]

STALE_US = 60_000_000
"""A state that is this much further in the future than it can be was written by a wrong clock."""


class Use(NamedTuple):
    """The use of a limit under one key."""

    units: int
    """The units in use now; 0 for a bucket, whose units follow from `full_us`."""
    full_us: int
    """The time from which no unit is in use any more. If it is in the past, no unit is in use now."""


class Algorithm:
    """
    One request for units of one limit under one key: the algorithm with its parameters, and the size of the request.

    A state is an immutable value of the algorithm's own type, or None if nothing is stored, so no unit is in use.
    Times are whole microseconds, and are always arguments. Every rounding makes the limit stricter.
    """

    __slots__ = ()

    code: ClassVar[str]
    """One letter that names the algorithm in the scripts."""
    estimates: ClassVar[bool] = False
    """Whether the time at which units become free is unknown, as for slots. Then a job may be admitted early."""
    overflows: ClassVar[bool] = False
    """Whether units are lost while the limit is full, as for a bucket."""
    remembered_us: ClassVar[int] = 0
    """The shortest time for which a state is kept, even if none of its units is in use any more."""

    size: int
    """The size of the charge: µs for a bucket, units for the other algorithms. 0 only peeks."""
    holder: str = ""
    """The holder of the slots that the request takes; "" for a limit without slots."""
    lease_us: int
    """The time for which the holder keeps the slots without renewing them. A limit without slots has no such value."""

    def of_one(self) -> Any:
        """Return a request of one unit of the same limit, without a holder."""
        return replace(self, size=1)  # type: ignore[type-var]

    @property
    def params(self) -> tuple[int | str, int | str, int | str]:
        """The limit's parameters a, b and c, as the scripts read them."""
        raise NotImplementedError

    @property
    def mark(self) -> int:
        """A number that is lower for a faster rate, such as the nanoseconds of one unit."""
        raise NotImplementedError

    @property
    def keeps_us(self) -> float:
        """The time for which a free unit of a rate is kept before it is lost, if no request takes it."""
        return inf

    def sanitize(self, state: Any, now_us: int) -> Any:
        """
        Return the stored state if it is possible, otherwise the state of a limit whose units have all just been used.

        A state slightly in the future does not change, so a clock that steps back only delays jobs. A state that is
        more than `STALE_US` further in the future than possible would block the limit for as long as the clock was
        wrong.

        The result is not converted to this rate, because the rate that wrote it may be in force again: `settle` takes
        such a state. All other methods take and return states of this rate.
        """
        raise NotImplementedError

    def adopt_rate(self, state: Any, now_us: int) -> Any:
        """Convert a sanitized *state* that another rate wrote to this rate; otherwise return the same object."""
        return state

    def exhaust(self, state: Any, at_us: int) -> Any:
        """Return the state as if one period's units had been used evenly up to *at_us*; *state* if more are used."""
        return state

    def there(self, state: Any, now_us: int) -> int:
        """Return the number of units that are free now."""
        raise NotImplementedError

    def ready_us(self, state: Any, now_us: int, ahead: int = 0) -> int:
        """
        Return the earliest time at which the request passes if *ahead* other units pass before it; *now_us* if it
        passes now. The time is exact for as many units as can pass at once, and an estimate for more. It is never
        earlier for a greater *ahead*.
        """
        raise NotImplementedError

    def holds(self, state: Any, now_us: int) -> bool:
        """
        Whether the job's workflow already holds the slot. Then the request takes no unit, and passes ahead of waiting
        jobs.
        """
        return False

    def admit(self, state: Any, now_us: int, begins_us: int | None = None) -> Any:
        """
        Return the state after the request has passed. The caller has checked that `ready_us` is *now_us*.

        Args:
            begins_us: The time at which the body begins, if it is a little later than the grant, for a limit that
                `overflows`. If the rate changes before that time, the whole charge remains.
        """
        raise NotImplementedError

    def settle(self, state: Any, now_us: int, granted_us: int, by: int) -> Any:
        """
        Return the state after the cost of a request that was admitted at *granted_us* is corrected by *by* units.

        A correction may exceed the limit. Then no request is admitted until the excess has expired. A negative *by*
        returns units, but only those that the request took and that still count.
        """
        raise NotImplementedError

    def use(self, state: Any, now_us: int) -> Use:
        """Return the units in use, and the time until which they count."""
        raise NotImplementedError

    def pace_us(self, state: Any, now_us: int) -> int:
        """Return the time that the units of this request take at the rate of the limit."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class WindowAlgorithm(Algorithm):
    """The common part of algorithms with *amount* units per period. The request takes *size* of them."""

    size: int
    amount: int
    period_us: int

    @property
    def params(self) -> tuple[int | str, int | str, int | str]:
        return self.amount, self.period_us, 0

    @property
    def mark(self) -> int:
        """The nanoseconds of one unit."""
        return self.period_us * 1000 // self.amount

    def there(self, state: Any, now_us: int) -> int:
        return max(0, self.amount - self.use(state, now_us).units)

    def pace_us(self, state: Any, now_us: int) -> int:
        return -(-self.size * self.period_us // self.amount)
