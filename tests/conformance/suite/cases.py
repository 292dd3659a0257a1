"""The cases of the store conformance suite: one limit of each algorithm, with instants that are worked out by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from conformance.suite.bench import NAME, NOW_US, SECOND_US, Bench
from throttlekit._core.algorithms.fixed_window import FixedWindow
from throttlekit._core.algorithms.sliding_log import SlidingLog
from throttlekit._core.algorithms.sliding_window import SlidingWindow
from throttlekit._core.algorithms.token_bucket import LeakyBucket, TokenBucket
from throttlekit._core.limit.base import Limit

__all__ = ["BURST_CASES", "CASES", "Case", "for_each"]

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
    make: Callable[[], Limit]
    first_us: int
    next_us: int
    full_us: int
    owed_us: int
    together: int = 1
    fits_us: int | None = None
    start_us: int = NOW_US

    @property
    def limit(self) -> Limit:
        return self.make()

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
        make=lambda: TokenBucket(NAME, "10/s", burst=5),
        first_us=100_000,
        next_us=100_000,
        full_us=500_000,
        owed_us=300_000,
    ),
    Case(
        label="leaky_bucket",
        make=lambda: LeakyBucket(NAME, "10/s"),
        first_us=100_000,
        next_us=100_000,
        full_us=100_000,
        owed_us=300_000,
    ),
    # From the twentieth second of its minute. The next minute begins with the whole amount, whatever the debt.
    Case(
        label="fixed_window",
        make=lambda: FixedWindow(NAME, "5/m"),
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
        make=lambda: FixedWindow(NAME, "5/d", tz="Europe/Berlin"),
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
        make=lambda: SlidingWindow(NAME, "5/m"),
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
        make=lambda: SlidingLog(NAME, "5/m"),
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

_Check: TypeAlias = "Callable[[Any, Bench, Case], None]"


class for_each:  # noqa: N801 - read as a word: @for_each(CASES)
    """
    Turn a method that takes a bench and a case into one test for each of *cases*: `test_x` becomes
    `test_x_token_bucket`, `test_x_leaky_bucket`, …, so that any runner finds them by name.
    """

    def __init__(self, cases: Sequence[Case]) -> None:
        self._cases = cases
        self._check: _Check | None = None

    def __call__(self, check: _Check) -> for_each:
        self._check = check
        return self

    def __set_name__(self, owner: type[Any], name: str) -> None:
        delattr(owner, name)
        for case in self._cases:
            test = self._test_of(case)
            test.__name__ = f"{name}_{case.label}"
            test.__qualname__ = f"{owner.__qualname__}.{test.__name__}"
            test.__doc__ = self._check.__doc__
            setattr(owner, test.__name__, test)

    def _test_of(self, case: Case) -> Callable[[Any], None]:
        check = self._check
        assert check is not None, "@for_each(CASES) stands above a method"

        def test(suite: Any) -> None:
            with suite.bench() as bench:
                bench.now_us = case.start_us
                check(suite, bench, case)

        return test
