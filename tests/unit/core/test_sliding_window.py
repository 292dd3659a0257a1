"""The two counters against exact fractions: the load, its decrease, and the bound with its worst case."""

from __future__ import annotations

from fractions import Fraction
from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from throttlekit import SlidingWindow
from throttlekit._core.algorithm import STALE_US, Use
from throttlekit._core.algorithms.sliding_window import Counts, SlidingWindowAlgorithm, step_us
from throttlekit._core.limit.rate import LONGEST_PERIOD_US

SECOND, MINUTE = 1_000_000, 60_000_000
NOW = 1_800_000_000_000_000  # the start of a minute
WINDOW = NOW // MINUTE

limits = st.tuples(
    st.integers(1, 30) | st.sampled_from([1000, 10**6, 10**12 - 1]),
    st.sampled_from([1, 7, 1000, SECOND, MINUTE, 3_600_000_000, LONGEST_PERIOD_US]),
)


def charge_of(amount: int, period_us: int, size: int = 1) -> SlidingWindowAlgorithm:
    return SlidingWindowAlgorithm(size, amount, period_us, step_us(amount, period_us))


def exact_load(charge: SlidingWindowAlgorithm, state: Counts | None, now_us: int) -> Fraction:
    """Return the exact load, without steps: before × the remaining part of the window + used."""
    window = now_us // charge.period_us
    if state is None or state.window < window - 1:
        return Fraction(0)
    before, used = (state.used, 0) if state.window < window else (state.before, state.used)
    begin_us = max(window, state.window) * charge.period_us
    left = 1 - Fraction(max(0, now_us - begin_us), charge.period_us)
    return before * left + used


@st.composite
def states(draw: st.DrawFn) -> tuple[SlidingWindowAlgorithm, Counts, int]:
    """Draw a charge, a state, and a time within three windows of it."""
    amount, period_us = draw(limits)
    charge = charge_of(amount, period_us, draw(st.integers(1, amount)))
    window = NOW // period_us
    state = Counts(window, draw(st.integers(0, amount)), draw(st.integers(0, amount)))
    return charge, state, NOW + draw(st.integers(0, 3 * period_us))


# The load


@given(case=states())
def test_load_is_never_below_the_exact_one(case: tuple[SlidingWindowAlgorithm, Counts, int]) -> None:
    """An admitted request also fits the whole units of the exact load: a step never fades before it is over."""
    charge, state, now_us = case
    if charge.ready_us(state, now_us) == now_us:
        assert floor(exact_load(charge, state, now_us)) + charge.size <= charge.amount
    assert charge.use(state, now_us).units >= floor(exact_load(charge, state, now_us))


@given(case=states())
def test_load_of_an_ordinary_limit_is_exact(case: tuple[SlidingWindowAlgorithm, Counts, int]) -> None:
    """If a step is one microsecond, a request is denied only if the exact load has no room for it."""
    charge, state, now_us = case
    if charge.step_us == 1:
        units = floor(exact_load(charge, state, now_us))
        assert charge.use(state, now_us).units == units
        assert (charge.ready_us(state, now_us) == now_us) == (units + charge.size <= charge.amount)


@given(
    amount=st.integers(1, 6),
    period_us=st.integers(1, 40),
    before=st.integers(0, 12),
    used=st.integers(0, 12),
    now=st.integers(-20, 90),
    data=st.data(),
)
def test_ready_time_is_the_first_at_which_the_exact_load_has_room(
    amount: int, period_us: int, before: int, used: int, now: int, data: st.DataObject
) -> None:
    """The ready time is the first moment when the whole units of the load leave room, also after a debt."""
    charge = charge_of(amount, period_us, data.draw(st.integers(1, amount)))
    window = NOW // period_us
    state, now_us = Counts(window, before, used), window * period_us + now
    later = (t for t in range(now_us, now_us + 200) if floor(exact_load(charge, state, t)) + charge.size <= amount)
    assert charge.ready_us(state, now_us) == next(later)


@pytest.mark.parametrize(("amount", "period_us"), [(100, MINUTE), (10**6, 60 * SECOND), (1000, 86_400 * SECOND)])
def test_ordinary_limits_slide_by_the_microsecond(amount: int, period_us: int) -> None:
    """A step is 1 µs unless amount × period is huge."""
    assert step_us(amount, period_us) == -(-amount * period_us // 2**46)
    assert step_us(100, MINUTE) == 1


# The bound


@pytest.mark.parametrize("amount", [1, 3, 60])
def test_traffic_on_the_edge_of_windows_is_late_by_a_microsecond(amount: int) -> None:
    """If the load is exactly the amount, a unit must have begun to fade: this costs 1 µs, which does not add up."""
    charge, state = charge_of(amount, MINUTE), None
    for number in range(5 * amount):
        now_us = NOW + number * MINUTE // amount
        ready_us = charge.ready_us(state, now_us)
        assert ready_us == now_us + (number >= amount)
        state = charge.admit(state, ready_us)


def test_whole_amount_is_admitted_at_once() -> None:
    """If nothing is used, exactly the amount is admitted at once, in single units or in one request."""
    charge, state = charge_of(3, MINUTE), None
    for _ in range(3):
        assert charge.ready_us(state, NOW) == NOW
        state = charge.admit(state, NOW)
    assert state == charge_of(3, MINUTE, 3).admit(None, NOW) == Counts(WINDOW, 0, 3)
    assert charge.ready_us(state, NOW) == NOW + MINUTE + 1
    assert charge_of(3, MINUTE, 2).ready_us(state, NOW) == NOW + MINUTE + 20 * SECOND + 1
    assert charge_of(3, MINUTE, 3).ready_us(state, NOW) == NOW + MINUTE + 40 * SECOND + 1


# Consecutive windows


@pytest.mark.parametrize(
    ("now_us", "after"),
    [
        (NOW + MINUTE - 1, Counts(WINDOW, 1, 3)),
        (NOW + MINUTE, Counts(WINDOW + 1, 2, 1)),
        (NOW + 2 * MINUTE - 1, Counts(WINDOW + 1, 2, 1)),
        (NOW + 2 * MINUTE, Counts(WINDOW + 2, 0, 1)),
        (NOW + 9 * MINUTE, Counts(WINDOW + 9, 0, 1)),
        (NOW - MINUTE, Counts(WINDOW, 1, 3)),
    ],
)
def test_windows_advance(now_us: int, after: Counts) -> None:
    """The used units become those of the previous window, and then none; a window never goes back."""
    assert charge_of(9, MINUTE).admit(Counts(WINDOW, 1, 2), now_us) == after


@pytest.mark.parametrize(("ahead_us", "trusted"), [(STALE_US, True), (STALE_US + 1, False)])
def test_window_far_in_the_future_counts_as_used_up_now(ahead_us: int, trusted: bool) -> None:
    """A window more than a minute ahead was begun by a wrong clock: only the current one counts as used up."""
    charge, state, now_us = charge_of(3, MINUTE), Counts(WINDOW, 1, 1), NOW - ahead_us
    assert charge.sanitize(state, now_us) == (state if trusted else Counts(now_us // MINUTE, 0, 3))


@pytest.mark.parametrize(
    ("state", "now_us", "use"),
    [
        (None, NOW, Use(0, NOW)),
        (Counts(WINDOW, 0, 2), NOW, Use(2, NOW + 2 * MINUTE)),
        (Counts(WINDOW, 4, 0), NOW, Use(4, NOW + MINUTE)),
        (Counts(WINDOW, 4, 0), NOW + 15 * SECOND, Use(3, NOW + MINUTE)),
        (Counts(WINDOW, 4, 0), NOW + 1, Use(3, NOW + MINUTE)),
        (Counts(WINDOW, 4, 0), NOW + 15 * SECOND + 1, Use(2, NOW + MINUTE)),
        (Counts(WINDOW, 4, 0), NOW + MINUTE - 1, Use(0, NOW + MINUTE)),
        (Counts(WINDOW, 4, 1), NOW + 16 * SECOND, Use(3, NOW + 2 * MINUTE)),
        (Counts(WINDOW, 0, 0), NOW, Use(0, NOW)),
        (Counts(WINDOW, 4, 2), NOW + MINUTE, Use(2, NOW + 2 * MINUTE)),
        (Counts(WINDOW, 4, 2), NOW + 2 * MINUTE, Use(0, NOW + 2 * MINUTE)),
        (Counts(WINDOW, 0, 9), NOW, Use(9, NOW + 2 * MINUTE)),
    ],
)
def test_use_is_the_load_in_whole_units(state: Counts | None, now_us: int, use: Use) -> None:
    """Use is the load in whole units, rounded down, and the time until which any of it counts; the rest remains."""
    assert charge_of(5, MINUTE).use(state, now_us) == use
    assert SlidingWindow("partner", "5/m").remaining(use, now_us) == max(0, 5 - use.units)


# Settling


@given(used=st.integers(0, 5), cost=st.integers(0, 5), back=st.integers(0, 5))
def test_units_of_the_last_window_are_returned_there(used: int, cost: int, back: int) -> None:
    """A request of the last window gets back the part that still fades."""
    charge = charge_of(5, MINUTE, cost)
    after = charge.settle(Counts(WINDOW, 0, used + cost), NOW + MINUTE, NOW, -min(back, cost))
    assert after == Counts(WINDOW + 1, used + cost - min(back, cost), 0)


def test_expired_units_are_not_returned() -> None:
    """Units from two windows ago, or of an unknown key, are not returned."""
    charge, state = charge_of(5, MINUTE), Counts(WINDOW, 2, 2)
    assert charge.settle(state, NOW, NOW - 2 * MINUTE, -1) is state
    assert charge.settle(state, NOW + 2 * MINUTE, NOW, -1) is state
    assert charge.settle(None, NOW, NOW, -1) is None


def test_windows_never_go_below_zero_use() -> None:
    """No more is returned than was taken, in either window."""
    charge, state = charge_of(5, MINUTE), Counts(WINDOW, 2, 2)
    assert charge.settle(state, NOW, NOW, -9) == Counts(WINDOW, 2, 0)
    assert charge.settle(state, NOW, NOW - 1, -9) == Counts(WINDOW, 0, 2)


@given(by=st.integers(1, 10**9), granted=st.integers(-10, 0))
def test_units_settled_higher_count_from_now_on(by: int, granted: int) -> None:
    """The additional units of a settled cost count in the current window, up to 60 amounts, which block it."""
    charge = charge_of(5, MINUTE)
    after = charge.settle(Counts(WINDOW - 1, 0, 5), NOW, NOW + granted * MINUTE, by)
    assert after == Counts(WINDOW, 5, min(by, 300))
    ready = charge.ready_us(after, NOW)
    assert ready > NOW
    assert charge.ready_us(after, ready) == ready
    assert charge.ready_us(after, ready - 1) == ready
