"""The bucket's guarantees, in exact arithmetic, over random rates, bursts, costs and times."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.faults import histories
from throttlekit._core.algorithm import STALE_US, Use
from throttlekit._core.algorithms.gcra import Bucket, Tat
from throttlekit._core.limit.rate import parse_rate

START_US = 1_800_000_000_000_000
HOUR_US = 3_600_000_000
TEN_YEARS_US = 3660 * 86_400_000_000
ORDINARY = ["1/s", "7/s", "10/s", "30/s", "999/s", "100/minute", "90000/minute", "11/minute", "1/day", "7/366d", "3/7s"]
RATES = [*ORDINARY, "7000/s", "300000/s", "333333/s", "999999/s", "5000000/s"]


def _bucket(rate: str, burst: int) -> Bucket:
    return Bucket.of(*parse_rate(rate), burst)


rates = st.sampled_from(RATES).map(parse_rate) | st.tuples(st.integers(1, 10**6), st.integers(1, 86_400_000_000))


@given(rate=rates, burst=st.integers(1, 40), data=st.data())
def test_clock_that_falls_back_admits_nothing_extra(rate: tuple[int, int], burst: int, data: st.DataObject) -> None:
    """The exact bound holds in true time while the clock falls back, a little or by days."""
    bucket = Bucket.of(*rate, burst)
    interval_us = max(1, bucket.numerator // bucket.denominator)
    longest_us = {"some": 3 * interval_us, "jump": 100 * burst * interval_us}
    true_us, behind_us = START_US, 0
    state: Tat | None = None
    admitted: list[tuple[int, int]] = []
    for _ in range(data.draw(st.integers(1, 30))):
        charge = bucket.bind(cost := data.draw(st.integers(1, burst) | st.just(1)))
        now_us = true_us - behind_us
        step = data.draw(st.sampled_from(["now", "retry", "some", "jump", "back"]))
        if step == "retry":
            true_us += charge.ready_us(charge.sanitize(state, now_us), now_us) - now_us
        elif step == "back":
            behind_us += data.draw(st.integers(0, 3 * burst * interval_us + 2 * STALE_US))
        elif step != "now":
            true_us += data.draw(st.integers(0, longest_us[step]))
        now_us = true_us - behind_us
        state = charge.sanitize(state, now_us)
        if charge.ready_us(state, now_us) == now_us:
            state = charge.admit(state, now_us)
            admitted.append((true_us, cost))
    assert histories.check(histories.bucket(*rate, burst), admitted) is None


@given(rate=rates, burst=st.integers(1, 100_000))
def test_full_bucket_admits_its_burst_at_once(rate: tuple[int, int], burst: int) -> None:
    """At any rate, a full bucket admits a request for the whole burst, and then has nothing left."""
    bucket = Bucket.of(*rate, burst)
    charge = bucket.bind(burst)
    assert charge.ready_us(None, START_US) == START_US
    state = charge.admit(None, START_US)
    assert state is not None
    assert bucket.remaining(state.at_us, START_US) == 0
    assert bucket.bind(1).ready_us(state, START_US) > START_US


@given(rate=rates, burst=st.integers(1, 100), held=st.floats(0, 1.2))
def test_remaining_is_what_would_be_admitted(rate: tuple[int, int], burst: int, held: float) -> None:
    """The remaining units would be admitted (within 2 µs of rounding at thousands a second), and one more would not."""
    bucket = Bucket.of(*rate, burst)
    tat_us = START_US + round(held * bucket.bind(1).measure.capacity_us)
    left = bucket.remaining(tat_us, START_US)
    assert 0 <= left <= burst
    tolerance_us = 0 if bucket.denominator == 1 else 2
    assert bucket.bind(left).ready_us(Tat(tat_us), START_US) - START_US <= tolerance_us
    if left < burst:
        assert bucket.bind(left + 1).ready_us(Tat(tat_us), START_US) > START_US


@given(rate=rates, burst=st.integers(1, 1000), cost=st.integers(0, 1000))
def test_charges_are_never_below_their_share(rate: tuple[int, int], burst: int, cost: int) -> None:
    """A charge is at least its exact share of the period, and less than 1 µs or half a percent above it."""
    cost = min(cost, burst)
    amount, period_us = rate
    charge = Bucket.of(amount, period_us, burst).bind(cost)
    exact = Fraction(cost * period_us, amount)
    assert exact <= charge.size
    assert charge.size < exact + 1 or charge.size <= exact * Fraction(201, 200)


@pytest.mark.parametrize(
    ("rate", "numerator", "denominator"),
    [
        ("10/s", 100_000, 1),
        ("7/s", 142_858, 1),
        ("30/s", 33_334, 1),
        ("90000/minute", 667, 1),
        ("4984/s", 201, 1),
        ("5025/s", 200, 1),
        ("41875/s", 24, 1),
        ("41876/s", 1_000_000, 41_876),
        ("300000/s", 1_000_000, 300_000),
        ("7000/s", 143, 1),
        ("60000/s", 1_000_000, 60_000),
        ("1/day", 86_400_000_000, 1),
    ],
)
def test_interval_is_whole_where_that_costs_little(rate: str, numerator: int, denominator: int) -> None:
    """The interval is rounded up to a whole microsecond unless that would cost more than half a percent."""
    bucket = _bucket(rate, 5)
    assert (bucket.numerator, bucket.denominator) == (numerator, denominator)


@given(rate=rates)
def test_interval_is_at_most_half_a_percent_longer(rate: tuple[int, int]) -> None:
    """The interval is never shorter than the rate says, and at most half a percent longer."""
    bucket, exact = Bucket.of(*rate, 1), Fraction(rate[1], rate[0])
    assert exact <= Fraction(bucket.numerator, bucket.denominator) <= exact * Fraction(201, 200)


def test_charge_of_an_ordinary_request() -> None:
    """At 5 units and 10/s, a request for 2 takes 200 ms, and is admitted with at most 300 ms outstanding."""
    charge = _bucket("10/s", 5).bind(2)
    assert (charge.size, charge.headroom_us, charge.measure.capacity_us) == (200_000, 300_000, 500_000)


def test_charge_of_a_fractional_request() -> None:
    """If the interval is not a whole number, charge and capacity are rounded up and the headroom down."""
    charge = _bucket("300000/s", 4).bind(1)
    assert (charge.size, charge.headroom_us, charge.measure.capacity_us) == (4, 9, 14)


def test_bucket_never_used_is_full() -> None:
    """Without a state nothing is outstanding, and everything remains."""
    assert _bucket("10/s", 5).bind(1).use(None, START_US) == Use(0, START_US)
    assert _bucket("10/s", 5).remaining(START_US, START_US) == 5


def test_bucket_does_not_fill_above_its_burst() -> None:
    """However long a bucket is full, it never holds more than its burst."""
    bucket, long_ago = _bucket("10/s", 5), Tat(START_US - 10**12)
    assert bucket.bind(1).admit(long_ago, START_US) == Tat(START_US + 100_000)
    assert bucket.remaining(long_ago.at_us, START_US) == 5


def test_stale_debt_is_forgotten() -> None:
    """A debt larger than the bucket by more than a minute counts as an empty bucket."""
    charge = _bucket("10/s", 5).bind(1)
    assert charge.sanitize(Tat(START_US + 500_000 + STALE_US + 1), START_US) == Tat(START_US + 500_000)


@pytest.mark.parametrize("ahead_us", [0, -1, 500_000, 500_001, 500_000 + STALE_US])
def test_debt_up_to_stale_is_honoured(ahead_us: int) -> None:
    """A debt a little larger than the bucket was left by a clock that stepped back: it is honoured."""
    charge, state = _bucket("10/s", 5).bind(1), Tat(START_US + ahead_us)
    assert charge.sanitize(state, START_US) is state


# Settling


@pytest.mark.parametrize(
    ("rate", "burst", "most_us"),
    [
        ("10/s", 5, HOUR_US),
        ("60/m", 60, HOUR_US),
        ("10/h", 1, 6 * HOUR_US),
        ("2/d", 2, 60 * 24 * HOUR_US),
        ("1/d", 3660, TEN_YEARS_US),
    ],
)
@pytest.mark.parametrize("beyond", [0, 1, 10**30])
def test_debt_is_sixty_capacities_at_most(rate: str, burst: int, most_us: int, beyond: int) -> None:
    """
    A debt beyond 60 times the burst is forgiven if it is more than an hour: a wrong cost blocks no key for years.
    No stored time exceeds what a double holds exactly.
    """
    charge = _bucket(rate, burst).bind(1)
    empty_us = START_US + charge.measure.capacity_us
    after = charge.settle(Tat(empty_us), START_US, START_US, most_us + beyond)
    assert after == Tat(empty_us + most_us, most_us)
    assert after.at_us < 2**53
    assert charge.sanitize(after, START_US) is after
    assert charge.settle(Tat(empty_us), START_US, START_US, most_us - 1) == Tat(empty_us + most_us - 1, most_us - 1)


@given(rate=rates, burst=st.integers(1, 50), back=st.integers(0, 10**9), held=st.floats(-1, 3))
def test_returning_units_never_fills_above_the_burst(rate: tuple[int, int], burst: int, back: int, held: float) -> None:
    """However much is returned, the bucket is full at most: it never admits more than its burst."""
    bucket = Bucket.of(*rate, burst)
    charge = bucket.bind(1)
    state = charge.settle(Tat(START_US + round(held * charge.measure.capacity_us)), START_US, START_US, -back)
    assert state is not None
    assert state.at_us >= START_US
    assert bucket.remaining(state.at_us, START_US) <= burst


@pytest.mark.parametrize(("by", "after"), [(-100_000, None), (0, None), (200_000, Tat(START_US + 200_000))])
def test_unused_bucket_is_full(by: int, after: Tat | None) -> None:
    """An unknown key has no units to return, and stays unknown; an additional charge counts from full, from now on."""
    assert _bucket("10/s", 5).bind(1).settle(None, START_US, START_US, by) == after


@given(debt_us=st.integers(1, HOUR_US), elapsed=st.floats(0, 1))
def test_settled_debt_is_not_mistaken_for_a_wrong_clock(debt_us: int, elapsed: float) -> None:
    """A bucket that was settled below empty is trusted until it has made up for the debt, however deep."""
    charge = _bucket("10/s", 5).bind(1)
    state = charge.settle(Tat(START_US + 500_000), START_US, START_US, debt_us)
    assert state == Tat(START_US + 500_000 + debt_us, debt_us)
    later_us = START_US + int(elapsed * debt_us)
    assert charge.sanitize(state, later_us) is state
    assert charge.ready_us(state, later_us) == START_US + debt_us + 100_000


def test_debt_beyond_a_settled_one_is_stale() -> None:
    """A TAT more than a minute further ahead than its debt explains was left by a wrong clock."""
    charge = _bucket("10/s", 5).bind(1)
    on_the_edge = Tat(START_US + 500_000 + 7_000_000 + STALE_US, 7_000_000)
    assert charge.sanitize(on_the_edge, START_US) is on_the_edge
    assert charge.sanitize(Tat(on_the_edge.at_us + 1, 7_000_000), START_US) == Tat(START_US + 500_000)


def test_debt_ends_with_the_next_admission() -> None:
    """A request that is admitted leaves a plain bucket: the debt has been made up for."""
    charge = _bucket("10/s", 5).bind(1)
    state = Tat(START_US + 400_000, 10**9)
    assert charge.ready_us(state, START_US) == START_US
    assert charge.admit(state, START_US) == Tat(START_US + 500_000, 0)


def test_debt_shrinks_as_units_are_returned() -> None:
    """Settled back, the bucket owes the rest of the debt, and nothing once it is no longer below empty."""
    charge = _bucket("10/s", 5).bind(1)
    deep = Tat(START_US + 100_500_000, 100_000_000)
    assert charge.settle(deep, START_US, START_US, -60_000_000) == Tat(START_US + 40_500_000, 40_000_000)
    assert charge.settle(deep, START_US, START_US, -100_000_000) == Tat(START_US + 500_000, 0)
    assert charge.settle(deep, START_US, START_US, -(10**12)) == Tat(START_US, 0)
