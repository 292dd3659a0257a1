"""What an algorithm must provide. token_bucket.py, concurrency.py, the windows and the log are algorithms."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Any, ClassVar, NamedTuple, Protocol

__all__ = ["STALE_US", "Algorithm", "AlgorithmBase", "NoSlots", "Use", "WindowAlgorithm", "stored_until_us"]

STALE_US = 60_000_000
"""A state that is this much further in the future than it can be was written by a wrong clock."""


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
    """Whether the time at which units become free is unknown, as for slots. Then a job may be admitted early."""
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

    @property
    def mark(self) -> int:
        """Changes whenever the limit's rate does: the faster, the less."""
        ...

    @property
    def keeps_us(self) -> float:
        """For how long a unit that is there is kept, if it is not taken; then it is lost. Below 0: not at all."""
        ...

    def read(self, state: Any, now_us: int, emptied_us: int = 0) -> tuple[Any, Any, Any]:
        """
        Read the stored state.

        Args:
            emptied_us: After a 429: up to then the limit counts as used. 0: there was none.

        Returns:
            (1) *state*, or that of a limit that has just been used up, if *state* cannot be true. `settled` takes that:
            a state stays as it was written, so that it goes on at the rate that is in force. (2) What it means here, if
            a limit of another rate wrote it, which counts in the same place: the same object if it means the same. All
            other methods take and return that. (3) The same as it counts after the 429.
        """
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

    def admit(self, state: Any, now_us: int, begins_us: int | None = None) -> Any:
        """
        The state once the request has passed. The caller has checked that `ready_us` is *now_us*.

        Args:
            begins_us: When it passes, if that is a little later, of a limit that `overflows`. A change of the rate
                until then forgives nothing of it.
        """
        ...

    def settle(self, state: Any, now_us: int, granted_us: int, by: int) -> Any:
        """
        Return the state after the cost of a request that was admitted at *granted_us* is corrected by *by* units.

        A correction may exceed the limit. Then no request is admitted until the excess has expired. A negative *by*
        returns units, but only those that the request took and that still count.
        """
        ...

    def use(self, state: Any, now_us: int) -> Use:
        """The units in use, and how long they count."""
        ...

    def pace_us(self, state: Any, now_us: int) -> int:
        """The time that the units of this request take at the rate of the limit."""
        ...


class AlgorithmBase:
    """The common part of all algorithms."""

    __slots__ = ()

    remembered_us: ClassVar[int] = 0
    overflows: ClassVar[bool] = False

    def of_one(self) -> Any:
        return replace(self, size=1)  # type: ignore[type-var]

    def read(self, state: Any, now_us: int, emptied_us: int = 0) -> tuple[Any, Any, Any]:
        kept = self.sanitize(state, now_us)
        known = self.adopt_rate(kept, now_us)
        return kept, known, self.exhaust(known, emptied_us) if emptied_us else known

    def sanitize(self, state: Any, now_us: int) -> Any:
        """
        Return the stored state if it is possible, otherwise the state of a limit whose units have all just been used.

        A state slightly in the future does not change, so a clock that steps back only delays jobs. A state that is
        more than `STALE_US` further in the future than possible would block the limit for as long as the clock was
        wrong.
        """
        raise NotImplementedError

    def adopt_rate(self, state: Any, now_us: int) -> Any:
        """Convert a sanitized *state* that another rate wrote to this rate."""
        return state

    def exhaust(self, state: Any, at_us: int) -> Any:
        """Return the state as if one period's units had been used evenly up to *at_us*; *state* if more are used."""
        return state

    def holds(self, state: Any, now_us: int) -> bool:
        return False


class NoSlots(AlgorithmBase):
    """The part of an `Algorithm` whose limit gives no slots."""

    __slots__ = ()

    @property
    def holder(self) -> str:
        return ""

    @property
    def lease_us(self) -> int:
        return 0

    @property
    def keeps_us(self) -> float:
        return inf


@dataclass(frozen=True, slots=True)
class WindowAlgorithm(NoSlots):
    """What one request means to *amount* units in each period: *size* of them."""

    size: int
    amount: int
    period_us: int

    estimates: ClassVar[bool] = False

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

    def use(self, state: Any, now_us: int) -> Use:
        raise NotImplementedError


def stored_until_us(algorithm: Algorithm, state: Any, now_us: int) -> int:
    """Return the time at which the state that is written now expires."""
    full_us = algorithm.use(state, now_us).full_us
    return max(full_us, now_us + algorithm.remembered_us) if algorithm.remembered_us else full_us
