"""One limit of each algorithm, with instants that are worked out by hand."""

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
    A limit, and what follows if its whole capacity is taken at `start_us`. All other times count from there.

    Attributes:
        first_us: When one unit passes.
        together: How many units pass at that instant.
        next_us: From there to the instant of the next units.
        full_us: When nothing counts any more.
        owed_us: When one unit passes, if two more were charged afterwards.
        fits_us: When the whole capacity passes at once; None: at `full_us`.
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

    def passes_us(self, ahead: int) -> int:
        """When a job passes that waits behind so many units."""
        return self.start_us + self.first_us + ahead // self.together * self.next_us

    @property
    def whole_us(self) -> int:
        """When the whole capacity passes at once."""
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
    # From the twentieth second of its minute. The next minute begins with the whole amount, whatever the debt.
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
    # From nine o'clock in the morning in Berlin.
    Case(
        label="fixed_window_of_a_zone",
        limit=FixedWindow(NAME, "5/d", tz="Europe/Berlin"),
        first_us=15 * _HOUR_US,
        next_us=24 * _HOUR_US,
        together=5,
        full_us=15 * _HOUR_US,
        owed_us=15 * _HOUR_US,
    ),
    # From the twentieth second of its minute. In the next minute the last one's units fade, and count rounded down:
    # 4 of 5 as soon as it has begun, none once less than 1 is left, after 48 s. Of 7, 4 count once less than 5 are
    # left, after 120/7 s.
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
    # All units charged at one instant leave the window at one instant, a debt included.
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
"""The cases in which several units may pass at once."""

FIVE_CASES: Sequence[Case] = tuple(case for case in CASES if case.label != "fixed_window_of_a_zone")
"""One limit of each of five algorithms."""
