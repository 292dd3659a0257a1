"""One limit of each algorithm, with times that are calculated by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from conformance.bench import NAME, NOW_US, SECOND_US
from throttlekit._core.algorithms.fixed_window import FixedWindow
from throttlekit._core.algorithms.sliding_log import SlidingLog
from throttlekit._core.algorithms.sliding_window import SlidingWindow
from throttlekit._core.algorithms.token_bucket import LeakyBucket, TokenBucket
from throttlekit._core.limit.base import Limit

__all__ = ["BURST_CASES", "CASES", "FIVE_CASES", "Case"]

_HOUR_US = 3600 * SECOND_US


@dataclass(frozen=True, slots=True)
class Case:
    """
    A limit, and the times that follow if its whole capacity is taken at `start_us`. All other times are relative to
    `start_us`.

    Attributes:
        first_us: When the first unit is admitted.
        together: How many units are admitted at that time.
        next_us: The time between `first_us` and the next units.
        full_us: When the limit is unused again.
        owed_us: When the first unit is admitted, if two more units are charged after the capacity.
        fits_us: When the whole capacity is admitted in one request. None: at `full_us`.
    """

    label: str
    limit: Limit
    first_us: int
    next_us: int
    full_us: int
    owed_us: int
    together: int = 1
    fits_us: int | None = None
    start_us: int = NOW_US

    def admitted_us(self, ahead: int) -> int:
        """Return when a job with *ahead* units before it is admitted."""
        return self.start_us + self.first_us + ahead // self.together * self.next_us

    @property
    def whole_us(self) -> int:
        """When the whole capacity is admitted in one request."""
        return self.full_us if self.fits_us is None else self.fits_us


CASES: Sequence[Case] = (
    Case(
        label="token_bucket",
        limit=TokenBucket(NAME, "10/s", burst=5),
        first_us=100_000,
        next_us=100_000,
        full_us=500_000,
        owed_us=300_000,
    ),
    Case(
        label="leaky_bucket",
        limit=LeakyBucket(NAME, "10/s"),
        first_us=100_000,
        next_us=100_000,
        full_us=100_000,
        owed_us=300_000,
    ),
    # Starts at the twentieth second of a minute. The next minute begins with the whole amount, even after a debt.
    Case(
        label="fixed_window",
        limit=FixedWindow(NAME, "5/m"),
        start_us=NOW_US + 20 * SECOND_US,
        first_us=40 * SECOND_US,
        next_us=60 * SECOND_US,
        together=5,
        full_us=40 * SECOND_US,
        owed_us=40 * SECOND_US,
    ),
    # Starts at nine o'clock in the morning in Berlin.
    Case(
        label="fixed_window_of_a_zone",
        limit=FixedWindow(NAME, "5/d", tz="Europe/Berlin"),
        first_us=15 * _HOUR_US,
        next_us=24 * _HOUR_US,
        together=5,
        full_us=15 * _HOUR_US,
        owed_us=15 * _HOUR_US,
    ),
    # Starts at the twentieth second of a minute. In the next minute the units of the previous one fade, and are rounded
    # down. Of 5 units, 4 count as soon as the minute has begun, and none after 48 s, when less than 1 remains. Of 7
    # units, 4 count after 120/7 s, when less than 5 remain.
    Case(
        label="sliding_window",
        limit=SlidingWindow(NAME, "5/m"),
        start_us=NOW_US + 20 * SECOND_US,
        first_us=40 * SECOND_US + 1,
        next_us=12 * SECOND_US,
        fits_us=88 * SECOND_US + 1,
        full_us=100 * SECOND_US,
        owed_us=40 * SECOND_US + 17_142_858,
    ),
    # All units that are charged at the same time leave the window at the same time, including a debt.
    Case(
        label="sliding_log",
        limit=SlidingLog(NAME, "5/m"),
        first_us=60 * SECOND_US,
        next_us=60 * SECOND_US,
        together=5,
        full_us=60 * SECOND_US,
        owed_us=60 * SECOND_US,
    ),
)
"""Five algorithms, six limits."""

BURST_CASES: Sequence[Case] = tuple(case for case in CASES if case.label != "leaky_bucket")
"""The cases in which several units can be admitted at once."""

FIVE_CASES: Sequence[Case] = tuple(case for case in CASES if case.label != "fixed_window_of_a_zone")
"""One limit of each of five algorithms."""
