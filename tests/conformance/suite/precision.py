"""A store's tests for exact numbers: long periods and large costs."""

from __future__ import annotations

from datetime import timedelta

from conformance.suite.bench import NAME, NOW_US, ConformanceSuite
from throttlekit._core.algorithms.fixed_window import FixedWindow
from throttlekit._core.algorithms.sliding_log import SlidingLog
from throttlekit._core.algorithms.sliding_window import SlidingWindow
from throttlekit._core.algorithms.token_bucket import LeakyBucket, TokenBucket

__all__ = ["PrecisionConformance"]


class PrecisionConformance(ConformanceSuite):
    def test_long_periods_are_exact_to_the_microsecond(self) -> None:
        """A period of days loses no microsecond in the store, for any algorithm."""
        period_us = 100_000_000_003
        rate = (3, timedelta(microseconds=period_us))
        window_us = NOW_US // period_us * period_us
        # When one unit passes, and two; the leaky bucket lets only one out at a time.
        promised = {
            TokenBucket(NAME, rate, burst=3): [NOW_US + 7 + 33_333_333_335, NOW_US + 7 + 66_666_666_670],
            LeakyBucket(NAME, rate): [NOW_US + 7 + 33_333_333_335],
            SlidingWindow(NAME, rate): [window_us + period_us + 1, window_us + period_us + 33_333_333_335],
            SlidingLog(NAME, rate): [NOW_US + 7 + period_us] * 2,
        }
        with self.bench() as bench:
            bench.now_us += 7
            for limit, retries_us in promised.items():
                bench.drain(limit)
                found = [bench.look(limit, cost=1 + more).retry_us for more in range(len(retries_us))]
                assert found == retries_us, limit
                assert [bench.ask(limit, job="waits").retry_us for _ in range(2)] == retries_us[:1] * 2, limit

    def test_large_costs_are_exact(self) -> None:
        """Amounts of millions lose no unit in the store."""
        with self.bench() as bench:
            for limit in (
                TokenBucket(NAME, "99999989/d", burst=99_999_989),
                FixedWindow(NAME, "99999989/d"),
                SlidingWindow(NAME, "99999989/d"),
            ):
                assert bench.ask(limit, cost=99_999_980).allowed
                assert bench.left(limit) == 9, limit
                assert bench.passing(limit) == 9, limit
