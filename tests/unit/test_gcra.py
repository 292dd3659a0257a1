"""The bucket's promises, in exact arithmetic, over random rates, bursts, costs and times."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from throttlekit._core.gcra import STALE_US, Bucket, admit, believed_us, held_us, ready_us
from throttlekit._core.rate import parse_rate

START_US = 1_800_000_000_000_000
ORDINARY = ["1/s", "7/s", "10/s", "30/s", "999/s", "100/minute", "90000/minute", "11/minute", "1/day", "7/366d", "3/7s"]
RATES = [*ORDINARY, "7000/s", "300000/s", "333333/s", "999999/s", "5000000/s"]


def _bucket(rate: str, burst: int) -> Bucket:
    return Bucket.of(*parse_rate(rate), burst)


rates = st.sampled_from(RATES).map(parse_rate) | st.tuples(st.integers(1, 10**6), st.integers(1, 86_400_000_000))


@st.composite
def _runs(draw: st.DrawFn, back: bool = False) -> tuple[int, int, Bucket, list[tuple[int, int]]]:
    """A rate, a bucket, and what passed when: (true time, cost). With *back*, the clock falls back at times."""
    amount, period_us = draw(rates)
    bucket = Bucket.of(amount, period_us, draw(st.integers(1, 40)))
    interval_us = max(1, round(bucket.interval_us))
    true_us, behind_us, tat_us = START_US, 0, None
    passed: list[tuple[int, int]] = []
    for _ in range(draw(st.integers(1, 30))):
        charge = bucket.charge(cost := draw(st.integers(1, bucket.burst) | st.just(1)))
        now_us = true_us - behind_us
        step = draw(st.sampled_from(["now", "retry", "some", "jump", *(["back"] if back else [])]))
        if step == "retry":
            true_us += ready_us(believed_us(tat_us, now_us, charge), now_us, charge) - now_us
        elif step == "some":
            true_us += draw(st.integers(0, 3 * interval_us))
        elif step == "jump":
            true_us += draw(st.integers(0, 100 * bucket.burst * interval_us))
        elif step == "back":
            behind_us += draw(st.integers(0, 3 * bucket.burst * interval_us + 2 * STALE_US))
        now_us = true_us - behind_us
        tat_us = believed_us(tat_us, now_us, charge)
        if ready_us(tat_us, now_us, charge) == now_us:
            tat_us = admit(tat_us, now_us, charge)
            passed.append((true_us, cost))
    return amount, period_us, bucket, passed


def _assert_bound(amount: int, period_us: int, burst: int, passed: list[tuple[int, int]]) -> None:
    """In every window: units <= burst + length / interval, exactly."""
    for i, (first_us, _) in enumerate(passed):
        units = 0
        for last_us, cost in passed[i:]:
            units += cost
            assert units <= burst + Fraction(last_us - first_us) * amount / period_us


@given(run=_runs())
def test_no_window_passes_more_than_its_bound(run: tuple[int, int, Bucket, list[tuple[int, int]]]) -> None:
    """In any window of length w, at most burst + w / interval units pass, at every rate and however they are asked."""
    amount, period_us, bucket, passed = run
    _assert_bound(amount, period_us, bucket.burst, passed)


@given(run=_runs(back=True))
def test_clock_that_falls_back_admits_nothing_extra(run: tuple[int, int, Bucket, list[tuple[int, int]]]) -> None:
    """The bound holds in true time while the clock falls back, a little or by days."""
    amount, period_us, bucket, passed = run
    _assert_bound(amount, period_us, bucket.burst, passed)


@pytest.mark.parametrize("rate", ORDINARY)
@pytest.mark.parametrize("burst", [1, 2, 7, 100])
def test_bound_is_reached(rate: str, burst: int) -> None:
    """A caller that always asks gets the burst, then a unit each interval: the bound, within half a percent."""
    amount, period_us = parse_rate(rate)
    bucket = _bucket(rate, burst)
    charge, now_us, tat_us = bucket.charge(1), START_US, None
    for _ in range(burst + 500):
        now_us = ready_us(tat_us, now_us, charge)
        tat_us = admit(tat_us, now_us, charge)
    ideal_us = Fraction(500 * period_us, amount)
    assert ideal_us <= now_us - START_US <= ideal_us * Fraction(201, 200)


@pytest.mark.parametrize("rate", RATES)
def test_bound_is_reached_in_large_costs(rate: str) -> None:
    """At any rate, units asked for by the thousand use the limit to within half a percent."""
    amount, period_us = parse_rate(rate)
    bucket = _bucket(rate, 5000)
    charge, now_us, tat_us = bucket.charge(1000), START_US, None
    for _ in range(5 + 50):
        now_us = ready_us(tat_us, now_us, charge)
        tat_us = admit(tat_us, now_us, charge)
    assert now_us - START_US <= Fraction(50_000 * period_us, amount) * Fraction(201, 200) + 1


@given(rate=st.sampled_from(ORDINARY), burst=st.integers(1, 200))
def test_full_bucket_passes_its_burst_at_once(rate: str, burst: int) -> None:
    """From full, exactly the burst passes in single units at one instant."""
    charge, tat_us = _bucket(rate, burst).charge(1), None
    for _ in range(burst):
        assert ready_us(tat_us, START_US, charge) == START_US
        tat_us = admit(tat_us, START_US, charge)
    assert ready_us(tat_us, START_US, charge) > START_US


@given(rate=rates, burst=st.integers(1, 100_000))
def test_full_bucket_passes_its_burst_in_one(rate: tuple[int, int], burst: int) -> None:
    """At any rate, a request for the whole burst passes from full, and leaves nothing."""
    bucket = Bucket.of(*rate, burst)
    charge = bucket.charge(burst)
    assert ready_us(None, START_US, charge) == START_US
    tat_us = admit(None, START_US, charge)
    assert bucket.remaining(tat_us, START_US) == 0
    assert ready_us(tat_us, START_US, bucket.charge(1)) > START_US


@given(rate=rates, burst=st.integers(1, 1000), cost=st.integers(1, 1000))
def test_bucket_that_is_full_again_passes_as_one_never_used(rate: tuple[int, int], burst: int, cost: int) -> None:
    """At the very instant at which a bucket is full again, whatever it can ever admit passes."""
    charge = Bucket.of(*rate, burst).charge(min(cost, burst))
    assert ready_us(START_US, START_US, charge) == START_US


@given(rate=rates, burst=st.integers(1, 50), cost=st.integers(1, 50), held=st.floats(0, 1))
def test_denied_until_the_promised_instant_and_admitted_at_it(
    rate: tuple[int, int], burst: int, cost: int, held: float
) -> None:
    """One microsecond before the promised instant the request is denied, at it the request passes."""
    bucket = Bucket.of(*rate, burst)
    charge = bucket.charge(min(cost, burst))
    tat_us = START_US + round(held * charge.capacity_us)
    ready = ready_us(tat_us, START_US, charge)
    assert ready_us(tat_us, ready, charge) == ready
    if ready > START_US:
        assert ready_us(tat_us, ready - 1, charge) == ready


@given(rate=rates, burst=st.integers(1, 100), held=st.floats(0, 1.2))
def test_remaining_is_what_would_pass(rate: tuple[int, int], burst: int, held: float) -> None:
    """What remains would pass (to the 2 µs of rounding at thousands a second), and one unit more would not."""
    bucket = Bucket.of(*rate, burst)
    tat_us = START_US + round(held * bucket.charge(1).capacity_us)
    left = bucket.remaining(tat_us, START_US)
    assert 0 <= left <= burst
    tolerance_us = 0 if bucket.denominator == 1 else 2
    assert ready_us(tat_us, START_US, bucket.charge(left)) - START_US <= tolerance_us
    if left < burst:
        assert ready_us(tat_us, START_US, bucket.charge(left + 1)) > START_US


@given(rate=rates, burst=st.integers(1, 1000), cost=st.integers(0, 1000))
def test_charges_are_never_below_their_share(rate: tuple[int, int], burst: int, cost: int) -> None:
    """A charge is at least its exact share of the period, and less than 1 µs or half a percent above it."""
    cost = min(cost, burst)
    amount, period_us = rate
    charge = Bucket.of(amount, period_us, burst).charge(cost)
    exact = Fraction(cost * period_us, amount)
    assert exact <= charge.charge_us
    assert charge.charge_us < exact + 1 or charge.charge_us <= exact * Fraction(201, 200)


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
    assert bucket.interval_us == numerator / denominator


@given(rate=rates)
def test_interval_gives_up_half_a_percent_at_most(rate: tuple[int, int]) -> None:
    """The interval is never shorter than the rate says, and at most half a percent longer."""
    bucket, exact = Bucket.of(*rate, 1), Fraction(rate[1], rate[0])
    assert exact <= Fraction(bucket.numerator, bucket.denominator) <= exact * Fraction(201, 200)


def test_charge_of_an_ordinary_request() -> None:
    """Of 5 units at 10/s, a request for 2 takes 200 ms, and passes with at most 300 ms outstanding."""
    charge = _bucket("10/s", 5).charge(2)
    assert (charge.charge_us, charge.headroom_us, charge.capacity_us) == (200_000, 300_000, 500_000)


def test_charge_of_a_fractional_request() -> None:
    """Where the interval is no whole number, charge and capacity are rounded up and the room down."""
    charge = _bucket("300000/s", 4).charge(1)
    assert (charge.charge_us, charge.headroom_us, charge.capacity_us) == (4, 9, 14)


def test_cost_zero_is_always_ready() -> None:
    """A look passes an empty bucket, and leaves its state as it is."""
    charge = _bucket("10/s", 5).charge(0)
    assert charge.charge_us == 0
    assert ready_us(START_US + 10**9, START_US, charge) == START_US
    assert admit(START_US + 7, START_US, charge) == START_US + 7
    assert admit(None, START_US, charge) is None


def test_bucket_never_used_is_full() -> None:
    """No state means that nothing is outstanding, and everything remains."""
    assert held_us(None, START_US) == 0
    assert _bucket("10/s", 5).remaining(None, START_US) == 5


def test_bucket_does_not_fill_above_its_burst() -> None:
    """However long a bucket stands full, it holds its burst and no more."""
    assert held_us(START_US - 10**12, START_US) == 0
    assert _bucket("10/s", 5).remaining(START_US - 10**12, START_US) == 5


def test_stale_debt_is_forgotten() -> None:
    """A debt larger than the bucket by more than a minute counts as an empty bucket."""
    charge = _bucket("10/s", 5).charge(1)
    assert believed_us(START_US + 500_000 + STALE_US + 1, START_US, charge) == START_US + 500_000


@pytest.mark.parametrize("ahead_us", [0, -1, 500_000, 500_001, 500_000 + STALE_US])
def test_debt_up_to_stale_is_honoured(ahead_us: int) -> None:
    """A debt of another definition is honoured while it could be of one that is still in use."""
    charge = _bucket("10/s", 5).charge(1)
    assert believed_us(START_US + ahead_us, START_US, charge) == START_US + ahead_us


@given(rate=rates, burst=st.integers(1, 50), ahead=st.floats(0, 3))
def test_forgetting_never_fills_the_bucket(rate: tuple[int, int], burst: int, ahead: float) -> None:
    """What is believed is at least an empty bucket wherever something is forgotten."""
    charge = Bucket.of(*rate, burst).charge(1)
    tat_us = START_US + round(ahead * (charge.capacity_us + STALE_US))
    believed = believed_us(tat_us, START_US, charge)
    assume(believed != tat_us)
    assert believed == START_US + charge.capacity_us
    assert ready_us(believed, START_US, charge) > START_US


def test_nothing_stored_is_nothing_to_believe() -> None:
    """A bucket that has never been used stays one."""
    assert believed_us(None, START_US, _bucket("10/s", 5).charge(1)) is None
