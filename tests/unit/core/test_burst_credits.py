"""Burst credits as two buckets, one deep and slow, one shallow and fast: the claims of docs/choosing.md."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from support.faults import histories
from throttlekit import Job, Limiter, TokenBucket
from throttlekit.stores import MemoryStore
from throttlekit.testing import FakeClock

CREDITS = TokenBucket("credits", "100/minute", burst=50)
PEAK = TokenBucket("peak", "5/s", burst=5)
CREDIT_US, STEP_US = 600_000, 200_000
EMPTIES_US = (50 - 5) * 60_000_000 // (5 * 60 - 100)
"""How long a peak lasts from a full ceiling: until both bounds are equal."""


class Pair:
    """Both buckets, with a clock that the test moves."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.limiter = Limiter(MemoryStore(clock_us=self.clock))
        self.granted: list[tuple[int, int]] = []

    def decide(self, cost: int = 1, job: Job | None = None) -> bool:
        decision = self.limiter.acquire(CREDITS, PEAK, cost=cost, job=job)
        if decision.allowed:
            self.granted.append((self.clock(), cost))
        return decision.allowed

    def peak(self, for_us: int) -> int:
        """Take each unit as soon as it is free; return how many."""
        units, end_us = 0, self.clock() + for_us
        while True:
            while self.decide():
                units += 1
            wait_us = round(self.limiter.peek(CREDITS, PEAK).retry_after * 1_000_000)
            if self.clock() + wait_us > end_us:
                return units
            self.clock.advance(wait_us / 1_000_000)


def max_units(length_us: int) -> int:
    """Return the most units that a window of *length_us* may admit: `min` of both bounds."""
    return min(50 + length_us // CREDIT_US, 5 + length_us // STEP_US)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**64 - 1), length=st.integers(1, 200))
def test_no_window_admits_more_than_the_lesser_of_both_bounds(seed: int, length: int) -> None:
    """Whatever callers, jobs and costs there are, no window admits more than `min` of both bounds."""
    rnd, pair = random.Random(seed), Pair()
    for number in range(length):
        pair.clock.advance(rnd.choice([0, 0, 0.1, 0.2, 0.6, rnd.uniform(0, 1), rnd.uniform(0, 40)]))
        pair.decide(rnd.choice([1, 1, 1, rnd.randint(1, 5)]), Job(str(number), "work") if rnd.random() < 0.1 else None)
    for limit in (CREDITS, PEAK):
        rule = histories.bucket(limit.amount, limit.period_us, limit.burst)
        assert histories.check(rule, pair.granted) is None


@settings(max_examples=30, deadline=None)
@given(for_us=st.integers(0, 2 * EMPTIES_US))
def test_a_peak_after_an_idle_time_reaches_the_bound(for_us: int) -> None:
    """From a full ceiling, a peak gets the whole bound, however long it lasts: first at the fast rate, then slowly."""
    assert Pair().peak(for_us) == max_units(for_us)


@settings(max_examples=30, deadline=None)
@given(idle_us=st.integers(1_000_000, 60_000_000))
def test_saved_credits_are_available_at_a_peak(idle_us: int) -> None:
    """After all credits were spent, a peak gets what the slow rate has added since, but never more than the ceiling."""
    pair = Pair()
    pair.peak(2 * EMPTIES_US)
    (spent_us, _), peak_us = pair.granted[-1], 60_000_000
    pair.clock.advance((spent_us + idle_us - pair.clock()) / 1_000_000)
    saved = min(50 * CREDIT_US, idle_us)
    assert pair.peak(peak_us) == min((saved + peak_us) // CREDIT_US, max_units(peak_us))
