"""One limit of each algorithm, and what follows from it: the numbers are worked out by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from throttlekit._core.algorithms.fixed_window import FixedWindow
from throttlekit._core.algorithms.leaky_bucket import LeakyBucket
from throttlekit._core.algorithms.sliding_log import SlidingLog
from throttlekit._core.algorithms.sliding_window import SlidingWindow
from throttlekit._core.algorithms.token_bucket import TokenBucket
from throttlekit._core.limit.base import Limit
from throttlekit.testing.bench import NAME, NOW_US, SECOND_US, Bench

__all__ = ["RULES", "SEVERAL", "Rule", "each"]

_HOUR_US = 3600 * SECOND_US


@dataclass(frozen=True, slots=True)
class Rule:
    """
    A limit, and what follows from it if all of it is taken at once at `start_us`. Times count from there.

    Attributes:
        interval_us: From one waiter's slot to the next.
        first_us: When one unit passes.
        full_us: When nothing counts any more.
        owed_us: When one unit passes, if two more were charged afterwards.
        idle_us: Until when a waiting line of which nobody comes keeps the limit busy.
        fits_us: When everything passes at once; None: at `full_us`.
    """

    label: str
    make: Callable[[], Limit]
    interval_us: int
    first_us: int
    full_us: int
    owed_us: int
    idle_us: int
    fits_us: int | None = None
    start_us: int = NOW_US

    @property
    def limit(self) -> Limit:
        return self.make()

    @property
    def whole_us(self) -> int:
        """When everything passes at once."""
        return self.full_us if self.fits_us is None else self.fits_us


RULES: Sequence[Rule] = (
    Rule(
        label="token_bucket",
        make=lambda: TokenBucket(NAME, "10/s", burst=5),
        interval_us=100_000,
        first_us=100_000,
        full_us=500_000,
        owed_us=300_000,
        idle_us=500_000,
    ),
    Rule(
        label="leaky_bucket",
        make=lambda: LeakyBucket(NAME, "10/s"),
        interval_us=100_000,
        first_us=100_000,
        full_us=100_000,
        owed_us=300_000,
        idle_us=100_000,
    ),
    # From the twentieth second of its minute; the next minute begins anew, whatever is owed.
    Rule(
        label="fixed_window",
        make=lambda: FixedWindow(NAME, "5/m"),
        start_us=NOW_US + 20 * SECOND_US,
        interval_us=12 * SECOND_US,
        first_us=40 * SECOND_US,
        full_us=40 * SECOND_US,
        owed_us=40 * SECOND_US,
        idle_us=40 * SECOND_US,
    ),
    # From nine o'clock in the morning in Berlin.
    Rule(
        label="fixed_window_of_a_zone",
        make=lambda: FixedWindow(NAME, "5/d", tz="Europe/Berlin"),
        interval_us=17_280 * SECOND_US,
        first_us=15 * _HOUR_US,
        full_us=15 * _HOUR_US,
        owed_us=15 * _HOUR_US,
        idle_us=15 * _HOUR_US,
    ),
    # From the twentieth second of its minute. Whole units count of those that fade: 4 of 5 as soon as the next minute
    # has begun, none once less than 1 is left, after 48 s. Of 7, 4 count once less than 5 are left, after 120/7 s. Laid
    # end to end, 5 units last for a minute from its begin, and one interval of grace.
    Rule(
        label="sliding_window",
        make=lambda: SlidingWindow(NAME, "5/m"),
        start_us=NOW_US + 20 * SECOND_US,
        interval_us=12 * SECOND_US,
        first_us=40 * SECOND_US + 1,
        fits_us=88 * SECOND_US + 1,
        full_us=100 * SECOND_US,
        owed_us=40 * SECOND_US + 17_142_858,
        idle_us=52 * SECOND_US,
    ),
    # Whatever was charged at one instant leaves the window at one instant, what is owed with the rest.
    Rule(
        label="sliding_log",
        make=lambda: SlidingLog(NAME, "5/m"),
        interval_us=12 * SECOND_US,
        first_us=60 * SECOND_US,
        full_us=60 * SECOND_US,
        owed_us=60 * SECOND_US,
        idle_us=60 * SECOND_US,
    ),
)
"""Five algorithms, six limits."""

SEVERAL: Sequence[Rule] = tuple(rule for rule in RULES if rule.label != "leaky_bucket")
"""Those under which several units may pass at once."""

_Check: TypeAlias = "Callable[[Any, Bench, Rule], None]"


class each:  # noqa: N801 - read as a word: @each(RULES)
    """
    Make a test for each of *rules* of a method that takes a bench and a rule: `test_x` becomes
    `test_x_token_bucket`, `test_x_leaky_bucket`, …, whatever runner finds them.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self._check: _Check | None = None

    def __call__(self, check: _Check) -> each:
        self._check = check
        return self

    def __set_name__(self, owner: type[Any], name: str) -> None:
        delattr(owner, name)
        for rule in self._rules:
            test = self._test_of(rule)
            test.__name__ = f"{name}_{rule.label}"
            test.__qualname__ = f"{owner.__qualname__}.{test.__name__}"
            test.__doc__ = self._check.__doc__
            setattr(owner, test.__name__, test)

    def _test_of(self, rule: Rule) -> Callable[[Any], None]:
        check = self._check
        assert check is not None, "@each(RULES) stands above a method"  # noqa: S101

        def test(suite: Any) -> None:
            with suite.bench() as bench:
                bench.now_us = rule.start_us
                check(suite, bench, rule)

        return test
