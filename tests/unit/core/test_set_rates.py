"""A rate that live control sets shares the count of the declared one: no change adds a unit, and none blocks."""

from __future__ import annotations

from fractions import Fraction
from heapq import heappop, heappush
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.faults import histories
from throttlekit import (
    ConfigurationError,
    FixedWindow,
    Job,
    LeakyBucket,
    Limit,
    Limiter,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
)
from throttlekit._core.algorithm import STALE_US
from throttlekit._core.algorithms.gcra import GcraAlgorithm, Tat
from throttlekit._core.limit.change import change_rate
from throttlekit._core.serialize import load, load_in_force, plain
from throttlekit.adapter import decision_from_receipt, receipt
from throttlekit.testing import FakeClock

START_US, S, DAY = 1_800_000_000_000_000, 1_000_000, 86_400_000_000
DECLARED = TokenBucket("api", "50/s", burst=10)
BUCKETS: list[Limit] = [
    DECLARED,
    *(
        change_rate(DECLARED, rate, burst)
        for rate, burst in [("500/s", 100), ("5/s", 1), ("50/s", 3), ("7/m", 10), ("1/d", 2), ("9000/s", 40)]
    ),
]
LEAKY = LeakyBucket("drip", "5/s")
WINDOWS: list[list[Limit]] = [
    [declared, *(change_rate(declared, f"{amount}/m") for amount in (60, 3, 1))]
    for declared in (FixedWindow("calendar", "12/m"), SlidingWindow("sliding", "12/m"))
]
RAISED: list[tuple[Any, str, str]] = [
    (TokenBucket, "2/s", "20/s"),
    (TokenBucket, "20/s", "2/s"),
    (LeakyBucket, "2/s", "20/s"),
    (FixedWindow, "20/s", "200/s"),
    (SlidingWindow, "200/s", "20/s"),
]


def drain(limiter: Limiter, limit: Limit) -> int:
    """Request until a denial; return the number of grants."""
    granted = 0
    while limiter.acquire(limit):
        granted += 1
    return granted


def request(limit: Limit, state: Any, now_us: int, cost: int) -> tuple[bool, Any]:
    """Decide in the same way as `acquire`."""
    charge = limit.bind(cost)
    state = charge.adopt_rate(charge.sanitize(state, now_us), now_us)
    if charge.ready_us(state, now_us) > now_us:
        return False, state
    return True, charge.admit(state, now_us)


steps = st.lists(
    st.tuples(st.integers(0, 6), st.integers(1, 12), st.sampled_from([0, 0, 1, 2_000, 20_000, S, 70 * S, 9000 * S])),
    max_size=80,
)


@given(steps=steps, declared=st.sampled_from(["bucket", "leaky"]))
def test_units_stay_when_the_rate_changes(steps: list[tuple[int, int, int]], declared: str) -> None:
    """
    Whatever the changes, and whichever rate each process requests with: the grants are those of a bucket that keeps its
    units, holds at most its new burst, and fills at the rate of the last request. There is never a unit more, and at
    most a microsecond's worth less for each change.
    """
    limits = BUCKETS
    if declared == "leaky":
        limits = [LEAKY, *(change_rate(LEAKY, rate) for rate in ("50/s", "1/s", "1/m", "1/d", "3/s", "7000/s"))]
    state: Any = None
    now_us, rate, left, burst, lost = START_US, Fraction(0), Fraction(10**6), 10**6, Fraction(0)
    for at, units, wait_us in steps:
        limit = limits[at]
        units = min(units, limit.capacity)
        now_us += wait_us
        charge: Any = limit.bind(units)
        left = min(left + wait_us * rate, Fraction(burst), Fraction(limit.capacity))
        rate, burst = Fraction(charge.measure.denominator, charge.measure.numerator), limit.capacity
        lost += 2 * rate + Fraction(1, 1000)
        allowed, state = request(limit, state, now_us, units)
        if allowed:
            left -= units
            assert left >= 0
        else:
            assert left < units + lost
        if state is None:  # the bucket is full at every rate
            left = Fraction(10**6)
            burst = 10**6


@given(steps=steps)
@pytest.mark.parametrize("limits", WINDOWS, ids=lambda limits: limits[0].name)
def test_windows_keep_counting_when_the_amount_changes(limits: list[Limit], steps: list[tuple[int, int, int]]) -> None:
    """No window admits more units than under the greatest of the amounts alone."""
    state: Any = None
    now_us, granted = START_US, list[tuple[int, int]]()
    for at, units, wait_us in steps:
        limit = limits[at % len(limits)]
        now_us += wait_us
        units = min(units, limit.capacity)
        allowed, state = request(limit, state, now_us, units)
        granted += [(now_us, units)] * allowed
    rule = histories.fixed_window if isinstance(limits[0], FixedWindow) else histories.sliding_window
    assert histories.check(rule(max(limit.amount for limit in limits), 60 * S), granted) is None


@pytest.mark.parametrize(("kind", "before", "after"), RAISED)
def test_rate_applies_at_once(limiter: Limiter, clock: FakeClock, kind: Any, before: str, after: str) -> None:
    """Within a second of a tenfold change the new rate applies, on a limit that had just been used up."""
    declared = kind("api", before)
    changed = change_rate(declared, after)
    drain(limiter, declared)
    assert drain(limiter, changed) <= max(0, changed.amount - declared.amount)
    clock.advance(1)
    drain(limiter, changed)
    units, seconds = 0, 4
    for _ in range(seconds * 100):
        clock.advance(0.01)
        units += drain(limiter, changed)
    assert 0.95 * seconds * changed.amount <= units <= (seconds + 1) * changed.amount


@pytest.mark.parametrize("rates", [("1/d", "100/s"), ("1/m", "100/s"), ("1/30s", "100/s")])
def test_raised_rate_does_not_wait_for_the_old_one(limiter: Limiter, clock: FakeClock, rates: tuple[str, str]) -> None:
    """After a raise, a unit takes 10 ms that would have taken a day, or the minute for which a clock is trusted."""
    declared = TokenBucket("api", rates[0], burst=1)
    changed = change_rate(declared, rates[1])
    assert drain(limiter, declared) == 1
    assert limiter.acquire(changed).retry_after == 0.01
    clock.advance(0.01)
    assert limiter.acquire(changed)


def test_lowered_rate_admits_what_was_left_and_not_more(limiter: Limiter, clock: FakeClock) -> None:
    """Of 60 remaining units a lowered rate admits its new burst; of 3, three; then one a day."""
    for taken, admitted in ((40, 5), (97, 3)):
        declared = TokenBucket(f"api {taken}", "100/s", burst=100)
        changed = change_rate(declared, "1/d", 5)
        assert limiter.acquire(declared, cost=taken)
        assert drain(limiter, changed) == admitted
        clock.advance(86_399)
        assert drain(limiter, changed) == 0
        clock.advance(2)
        assert drain(limiter, changed) == 1


def test_changes_give_no_bursts(limiter: Limiter) -> None:
    """Ten changes at one moment grant nothing; a full bucket stays full."""
    changed = [change_rate(DECLARED, "500/s", 100), change_rate(DECLARED, "5/s", 1)]
    assert limiter.peek(changed[0]).remaining == 100
    assert drain(limiter, DECLARED) == 10
    assert sum(drain(limiter, limit) for limit in (*changed, DECLARED) * 10) == 0


def test_debt_is_kept_when_the_rate_changes(limiter: Limiter, clock: FakeClock) -> None:
    """A debt below empty is owed in units, at every rate."""
    changed = change_rate(DECLARED, "5/s")
    taken = limiter.acquire(DECLARED, cost=10)
    limiter.settle(taken, actual=30)
    assert limiter.acquire(changed, cost=5).retry_after == pytest.approx(25 / 5)
    assert limiter.acquire(DECLARED, cost=5).retry_after == pytest.approx(25 / 50, abs=1e-5)


def test_debt_is_capped_at_another_rate() -> None:
    """
    After a change of the rate, a debt is at most an hour, 60 bursts or ten years, as for a settlement; every number is
    exact.
    """
    slow, fast = change_rate(DECLARED, "1/d", 1).bind(1), change_rate(DECLARED, "9000/s", 40).bind(1)
    owed = fast.settle(fast.admit(None, START_US), START_US, START_US, 10**30)
    assert owed.debt_us == 3600 * S
    assert slow.adopt_rate(owed, START_US).debt_us == 60 * DAY
    assert slow.adopt_rate(owed, START_US).at_us == START_US + 61 * DAY


def test_settling_a_charge_of_another_rate_keeps_the_current_rate(limiter: Limiter, clock: FakeClock) -> None:
    """A job that began at 100/s and ends at 1/day returns, or owes, units; they refill at one a day."""
    declared = TokenBucket("api", "100/s", burst=100)
    changed = change_rate(declared, "1/d", 3)
    first, second = limiter.acquire(declared, cost=50), limiter.acquire(declared, cost=50)
    assert drain(limiter, changed) == 0
    limiter.settle(first, actual=48)
    clock.advance(3600)
    assert drain(limiter, changed) == 2
    limiter.settle(second, actual=52)
    clock.advance(86_400 * 2)
    assert drain(limiter, changed) == 0
    clock.advance(86_400)
    assert drain(limiter, changed) == 1


def test_settled_debt_is_stored_as_long_as_it_counts(limiter: Limiter, clock: FakeClock) -> None:
    """The store keeps a settled bucket according to the current rate, not the rate at which the job was charged."""
    declared = TokenBucket("api", "100/s", burst=2)
    changed = change_rate(declared, "1/d")
    taken = limiter.acquire(declared)
    assert drain(limiter, changed) == 1
    limiter.settle(taken, actual=2)
    clock.advance(86_400)
    assert drain(limiter, changed) == 0


def test_peek_changes_no_rate(limiter: Limiter, clock: FakeClock) -> None:
    """
    A peek of a process that still has the declared rate shows the units, and the bucket continues to fill at the
    current rate.
    """
    changed = change_rate(DECLARED, "1/d")
    assert drain(limiter, changed) == 10
    for _ in range(20):
        assert limiter.peek(DECLARED).remaining == 0
        clock.advance(1)
    assert drain(limiter, changed) == 0


@pytest.mark.parametrize("known", [DECLARED, BUCKETS[1]])
def test_state_of_a_wrong_clock_counts_as_used_up(known: Limit) -> None:
    """The state counts as used up at every rate that wrote it, also for a peek, and the rate does not change."""
    charge, other = known.bind(1), BUCKETS[2].bind(1)
    assert isinstance(other, GcraAlgorithm)
    written = other.admit(Tat(START_US + 10**9, 0, other.admit(None, START_US).measure), START_US)  # type: ignore[union-attr]
    trusted = charge.sanitize(written, START_US)
    assert trusted == Tat(START_US + other.measure.capacity_us, 0, written.measure)  # type: ignore[union-attr]
    assert charge.there(charge.adopt_rate(trusted, START_US), START_US) == 0
    edge = written._replace(at_us=START_US + other.measure.capacity_us + STALE_US)  # type: ignore[union-attr]
    assert charge.sanitize(edge, START_US) is edge
    assert charge.adopt_rate(edge, START_US).at_us == START_US + charge.params[1]


def test_a_small_step_of_the_clock_admits_nothing_extra(limiter: Limiter, clock: FakeClock) -> None:
    """A clock that steps back while the rate changes leaves an empty bucket empty."""
    changed = change_rate(DECLARED, "500/s")
    assert drain(limiter, DECLARED) == 10
    clock.advance(-30)
    assert drain(limiter, changed) == 0
    clock.advance(0.1)
    assert drain(limiter, changed) == 10


def test_waiting_jobs_keep_their_order(limiter: Limiter, clock: FakeClock) -> None:
    """Jobs that waited at one rate are granted in order at the other, ahead of new ones."""
    changed = change_rate(DECLARED, "500/s")
    drain(limiter, DECLARED)
    jobs = [Job(id=f"{n:02}") for n in range(40)]
    assert not any(limiter.acquire(DECLARED, job=job) for job in jobs)
    granted, waiting = list[str](), [(0.0, job.id) for job in jobs]
    while waiting:
        at, id = heappop(waiting)
        clock.advance(max(0, at - clock() / 1e6 + START_US / 1e6))
        decision = limiter.acquire(changed, job=Job(id=id))
        if decision:
            granted.append(id)
        else:
            heappush(waiting, (clock() / 1e6 - START_US / 1e6 + decision.delay, id))
        assert not waiting or not limiter.acquire(changed, job=Job(id="new"))
    assert granted == [job.id for job in jobs]
    assert clock() <= START_US + 80_000


@pytest.mark.parametrize(
    ("limit", "rate"),
    [
        (SlidingLog("api", "5/m"), "10/m"),
        (FixedWindow("api", "5/m"), "5/h"),
        (SlidingWindow("api", "5/m"), "5/h"),
    ],
)
def test_incompatible_rates_are_counted_separately(limiter: Limiter, limit: Limit, rate: str) -> None:
    """A log stores as many times as its amount; windows of another length begin at other times."""
    changed = change_rate(limit, rate)
    assert changed.declared is None
    assert drain(limiter, limit) == 5
    assert drain(limiter, changed) == changed.capacity


def test_share_of_a_process_keeps_its_count(limiter: Limiter) -> None:
    """While the store is unavailable, the share of a limit is one bucket at both rates."""
    declared = TokenBucket("api", "100/s", burst=40, on_store_failure="local", processes=4)
    changed = change_rate(declared, "200/s")
    assert declared.local_part is not None
    assert changed.local_part is not None
    assert changed.local_part.fingerprint == declared.local_part.fingerprint
    assert limiter.acquire(declared.local_part, cost=10)
    assert not limiter.acquire(changed.local_part)


@pytest.mark.parametrize(
    "changed", [BUCKETS[1], change_rate(LEAKY, "9/s"), *(limits[1] for limits in WINDOWS)], ids=lambda limit: limit.name
)
def test_declared_limit_is_in_reports_and_receipts_but_not_in_messages(limiter: Limiter, changed: Limit) -> None:
    """A report and a receipt contain the declared limit. A limit in a message does not: it counts by itself."""
    data = plain(changed, "", 0)
    assert changed.declared is not None
    assert load_in_force(data).fingerprint == changed.fingerprint == changed.declared.fingerprint
    assert load(data).fingerprint != changed.fingerprint
    taken = limiter.acquire(changed)
    again = decision_from_receipt(receipt(taken))
    limiter.settle(again, actual=0)
    assert limiter.peek(changed).remaining == changed.capacity


@pytest.mark.parametrize("declared", [1, "x", {}, {"rate": [0, 1]}, {"rate": "1/s", "burst": 1}])
def test_forged_declaration_is_refused(declared: Any) -> None:
    """A receipt with an invalid declared rate is refused."""
    with pytest.raises(ConfigurationError, match="not one that throttlekit wrote"):
        load_in_force({**plain(BUCKETS[1], "", 0), "declared": declared})
