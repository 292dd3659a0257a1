"""The exact log: no window admits more than the amount, and no unit is denied without need."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from throttlekit._core.algorithm import STALE_US, Use
from throttlekit._core.algorithms.sliding_log import Log, SlidingLogAlgorithm

SECOND, MINUTE = 1_000_000, 60_000_000
NOW = 1_800_000_000_000_000


@st.composite
def logs(draw: st.DrawFn) -> tuple[SlidingLogAlgorithm, Log]:
    """Draw a charge, and a log that the algorithm can produce: in order, no longer than the amount."""
    amount = draw(st.integers(1, 12))
    ages = draw(st.lists(st.integers(-SECOND, 2 * MINUTE), max_size=amount))
    return SlidingLogAlgorithm(draw(st.integers(1, amount)), amount, MINUTE), Log(
        tuple(sorted(NOW - age for age in ages))
    )


# The bound


@given(
    amount=st.integers(1, 8),
    requests=st.lists(st.tuples(st.integers(0, 40) | st.integers(0, 40 * SECOND), st.integers(1, 8)), max_size=60),
)
def test_every_window_admits_exactly_its_amount(amount: int, requests: list[tuple[int, int]]) -> None:
    """Any window [t, t + period) admits the amount at most; a denied request would have exceeded it."""
    state: Log | None = None
    admitted: list[int] = []
    for (_, cost), off in zip(requests, accumulate(gap for gap, _ in requests), strict=True):
        now_us = NOW + off
        charge = SlidingLogAlgorithm(min(cost, amount), amount, MINUTE)
        in_window = sum(now_us - MINUTE < at_us for at_us in admitted)
        allowed = charge.ready_us(state, now_us) == now_us
        assert allowed == (in_window + charge.size <= amount)
        if allowed:
            state = charge.admit(state, now_us)
            admitted += [now_us] * charge.size
    for at_us in admitted:
        assert sum(at_us <= other < at_us + MINUTE for other in admitted) <= amount


@given(case=logs())
def test_log_stays_in_order_and_never_grows_beyond_the_amount(case: tuple[SlidingLogAlgorithm, Log]) -> None:
    """Only the newest units are kept, the oldest first."""
    charge, state = case
    after = charge.admit(state, NOW)
    assert after is not None
    assert after.units == tuple(sorted(after.units))
    assert len(after.units) == min(charge.amount, len(state.units) + charge.size)


# The log


@pytest.mark.parametrize(
    ("size", "state", "ready_us"),
    [
        (1, None, NOW),
        (1, Log(), NOW),
        (3, None, NOW),
        (1, Log((NOW - 5, NOW - 3)), NOW),
        (2, Log((NOW - 5, NOW - 3)), NOW - 5 + MINUTE),
        (3, Log((NOW - 5, NOW - 3)), NOW - 3 + MINUTE),
        (1, Log((NOW - 5, NOW - 3, NOW)), NOW - 5 + MINUTE),
        (3, Log((NOW - 5, NOW - 3, NOW)), NOW + MINUTE),
        (1, Log((NOW - MINUTE, NOW - 3, NOW)), NOW),
        (1, Log((NOW - MINUTE + 1, NOW - 3, NOW)), NOW + 1),
    ],
)
def test_request_is_ready_when_the_oldest_units_have_left(size: int, state: Log | None, ready_us: int) -> None:
    """A request for k units is ready when the k oldest of the last `amount` units have left the window."""
    assert SlidingLogAlgorithm(size, 3, MINUTE).ready_us(state, NOW) == ready_us


def test_times_are_kept_in_order_when_the_clock_falls_back() -> None:
    """If the clock steps back, the last time is used instead: nothing is admitted sooner."""
    charge, state = SlidingLogAlgorithm(1, 3, MINUTE), Log((NOW, NOW + 5))
    assert charge.admit(state, NOW - SECOND) == Log((NOW, NOW + 5, NOW + 5))
    assert charge.ready_us(Log((NOW, NOW, NOW)), NOW - 30 * SECOND) == NOW + MINUTE


@pytest.mark.parametrize(("ahead_us", "trusted"), [(STALE_US, True), (STALE_US + 1, False)])
def test_log_far_in_the_future_counts_as_used_up_now(ahead_us: int, trusted: bool) -> None:
    """Units more than a minute in the future were written by a wrong clock: the whole amount counts as used now."""
    charge, state = SlidingLogAlgorithm(1, 3, MINUTE), Log((NOW - 9, NOW), NOW + SECOND)
    assert charge.sanitize(state, NOW - ahead_us) == (state if trusted else Log((NOW - ahead_us,) * 3, 0))


@pytest.mark.parametrize(
    ("state", "use"),
    [
        (None, Use(0, NOW)),
        (Log(), Use(0, NOW)),
        (Log((NOW - 2, NOW - 1)), Use(2, NOW - 1 + MINUTE)),
        (Log((NOW - MINUTE - 1, NOW - MINUTE, NOW - MINUTE + 1)), Use(1, NOW + 1)),
        (Log((NOW - 2 * MINUTE,)), Use(0, NOW - MINUTE)),
        (Log((NOW + 9,)), Use(1, NOW + 9 + MINUTE)),
    ],
)
def test_use_is_what_is_in_the_window(state: Log | None, use: Use) -> None:
    """The used units are those of the last period, until the youngest has left."""
    assert SlidingLogAlgorithm(1, 3, MINUTE).use(state, NOW) == use


# Settling


@given(case=logs(), age_us=st.integers(0, 70 * SECOND), back=st.integers(1, 12))
def test_returning_units_removes_no_later_unit(case: tuple[SlidingLogAlgorithm, Log], age_us: int, back: int) -> None:
    """Only units up to the grant are returned, the youngest first: the others leave when they would have."""
    charge, state = case
    granted_us = NOW - age_us
    after = charge.settle(state, NOW, granted_us, -back)
    assert after is not None
    earlier = [at_us for at_us in state.units if at_us <= granted_us]
    later = [at_us for at_us in state.units if at_us > granted_us]
    if earlier and earlier[-1] > NOW - MINUTE:
        earlier = earlier[: max(0, len(earlier) - back)]
    assert after == Log((*earlier, *later))


def test_expired_units_are_not_returned() -> None:
    """Units that have left the window, of a later grant, or of an unknown key do not change."""
    charge, state = SlidingLogAlgorithm(1, 3, MINUTE), Log((NOW - MINUTE, NOW))
    assert charge.settle(state, NOW, NOW - 1, -1) is state
    assert charge.settle(state, NOW, NOW - 2 * MINUTE, -1) is state
    assert charge.settle(state, NOW, NOW, 0) is state
    assert charge.settle(None, NOW, NOW, -1) is None
    assert charge.settle(Log(), NOW, NOW, -1) == Log()


@pytest.mark.parametrize(
    ("by", "after"),
    [
        (1, Log((NOW - 9, NOW), 0)),
        (2, Log((NOW - 9, NOW, NOW), 0)),
        (3, Log((NOW, NOW, NOW), NOW - 9 + MINUTE)),
        (4, Log((NOW, NOW, NOW), NOW + MINUTE)),
        (10**9, Log((NOW, NOW, NOW), NOW + MINUTE)),
    ],
)
def test_units_settled_higher_count_from_now_on(by: int, after: Log) -> None:
    """The additional units of a settled cost count from now, up to the amount: then none is admitted for a period."""
    charge = SlidingLogAlgorithm(1, 3, MINUTE)
    assert charge.settle(Log((NOW - 9,)), NOW, NOW - 9, by) == after
    assert charge.settle(None, NOW, NOW, by) == Log((NOW,) * min(by, 3), NOW + MINUTE if by > 3 else 0)


@pytest.mark.parametrize(
    ("state", "by", "owed_until_us"),
    [
        (Log((NOW - 7, NOW - 5, NOW - 3)), 1, NOW - 7 + MINUTE),
        (Log((NOW - 7, NOW - 5, NOW - 3)), 3, NOW - 3 + MINUTE),
        (Log((NOW - 5, NOW - 3)), 1, 0),
        (Log((NOW - MINUTE, NOW - 5, NOW - 3)), 1, 0),
        (Log((NOW - MINUTE + 1, NOW - 5, NOW - 3)), 1, NOW + 1),
        (Log((NOW - 7, NOW - 5, NOW - 3), NOW - 2 + MINUTE), 1, NOW - 2 + MINUTE),
        (Log((NOW - 7, NOW - 5, NOW - 3), NOW + 9), 1, NOW - 7 + MINUTE),
    ],
)
def test_debt_is_owed_until_the_units_that_it_displaced_have_left(state: Log, by: int, owed_until_us: int) -> None:
    """Units that count but are no longer in the log are stored as the time when the last of them leaves."""
    after = SlidingLogAlgorithm(1, 3, MINUTE).settle(state, NOW, NOW, by)
    assert after is not None
    assert after.owed_until_us == owed_until_us


def test_nothing_is_returned_while_more_is_owed_than_the_log_holds() -> None:
    """Until the units that a debt displaced have left the window, a return would make room for what still counts."""
    charge, owed_us = SlidingLogAlgorithm(1, 3, MINUTE), NOW + 30 * SECOND
    state = Log((NOW - 5, NOW, NOW), owed_us)
    assert charge.settle(state, owed_us - 1, NOW, -2) is state
    assert charge.settle(state, owed_us, NOW, -2) == Log((NOW - 5,), owed_us)
    assert charge.admit(state, NOW + MINUTE) == Log((NOW, NOW, NOW + MINUTE), owed_us)


@given(
    amount=st.integers(1, 5),
    steps=st.lists(
        st.tuples(st.integers(0, 3) | st.integers(0, 40), st.integers(1, 5), st.integers(-8, 8), st.integers(0, 9)),
        max_size=40,
    ),
)
def test_log_is_never_looser_than_a_complete_one(amount: int, steps: list[tuple[int, int, int, int]]) -> None:
    """Whatever is settled up and down, nothing is admitted that would not be if every charged unit were stored."""
    state: Log | None = None
    everything: list[int] = []
    grants = [NOW]
    for (_, cost, by, of), off in zip(steps, accumulate(step[0] for step in steps), strict=True):
        now_us = NOW + off * SECOND
        charge = SlidingLogAlgorithm(min(cost, amount), amount, MINUTE)
        if charge.ready_us(state, now_us) == now_us:
            state = charge.admit(state, now_us)
            assert sum(at_us > now_us - MINUTE for at_us in everything) + charge.size <= amount
            everything += [now_us] * charge.size
            grants.append(now_us)
        granted_us = grants[-1 - of % len(grants)]
        state = charge.settle(state, now_us, granted_us, by)
        everything += [now_us] * by
        own = [at_us for at_us in everything if at_us <= granted_us]
        if by < 0 and own and own[-1] > now_us - MINUTE:
            everything = own[:by] + everything[len(own) :]
