"""The bound of each algorithm: no window of any length admits more, over random traffic, and it can be reached."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from throttlekit import FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket
from throttlekit._core.algorithm import STALE_US, Algorithm
from throttlekit._core.algorithms import fixed_window
from throttlekit._core.algorithms.sliding_window import SlidingWindowAlgorithm
from throttlekit._core.limit.base import Limit
from throttlekit._core.time_zone import UTC, Zone

MS = 1_000
HOUR_US = 3_600_000 * MS
DAY_US = 24 * HOUR_US
START_US = 1_800_000_000_000_000 // DAY_US * DAY_US

# A day when clocks go forward, one when they go back, half-hour offsets, midnights that are skipped or repeated.
ZONES = [
    Zone(HOUR_US, ((START_US + HOUR_US, 2 * HOUR_US),)),
    Zone(2 * HOUR_US, ((START_US + HOUR_US, HOUR_US),)),
    Zone(HOUR_US, ((START_US + HOUR_US // 2, HOUR_US // 2), (START_US + 2 * DAY_US, HOUR_US))),
    Zone(0, ((START_US, HOUR_US),)),
    Zone(0, ((START_US + DAY_US + HOUR_US // 2, -HOUR_US),)),
]
BUCKETS = (TokenBucket, LeakyBucket)
QUICK: list[Limit] = [
    TokenBucket("token", (5, 0.05), burst=3),
    TokenBucket("token-large", (7, 0.1), burst=40),
    TokenBucket("token-uneven", (30_000, 1), burst=9),
    LeakyBucket("leaky", (5, 0.05)),
    FixedWindow("fixed", (5, 0.05)),
    FixedWindow("fixed-one", (1, 0.02)),
    SlidingWindow("sliding", (5, 0.05)),
    SlidingWindow("sliding-one", (1, 0.02)),
    SlidingWindow("sliding-uneven", (7, 0.033_333)),
    SlidingWindow("sliding-in-steps", (10**11, 3000)),
    SlidingLog("log", (5, 0.05)),
    SlidingLog("log-one", (1, 0.02)),
    SlidingLog("log-uneven", (7, 0.033_333)),
]
quick = pytest.mark.parametrize("limit", QUICK, ids=lambda limit: limit.name)
seeds = st.integers(0, 2**64 - 1)
lengths = st.integers(1, 150)
random_runs = settings(max_examples=40, deadline=None)


@dataclass
class Key:
    """One key of *limit*, and what was admitted under it."""

    limit: Limit
    zone: Zone = UTC
    state: Any = None
    admitted: list[tuple[int, int]] = field(default_factory=list)
    """(true time, units) of each admission."""
    resets_us: list[int] = field(default_factory=list)
    """When a stored state was rejected as implausible."""

    def bind(self, cost: int) -> Algorithm:
        charge = self.limit.bind(cost)
        return replace(charge, zone=self.zone) if isinstance(charge, fixed_window.FixedWindowAlgorithm) else charge

    def ready_us(self, now_us: int, cost: int) -> int:
        charge = self.bind(cost)
        return charge.ready_us(charge.sanitize(self.state, now_us), now_us)

    def decide(self, now_us: int, cost: int = 1, true_us: int | None = None) -> bool:
        charge = self.bind(cost)
        state = charge.sanitize(self.state, now_us)
        if state is not self.state:
            self.resets_us.append(now_us if true_us is None else true_us)
        if charge.ready_us(state, now_us) > now_us:
            self.state = state
            return False
        self.state = charge.admit(state, now_us)
        if cost:
            self.admitted.append((now_us if true_us is None else true_us, cost))
        return True

    def settle(self, now_us: int, granted_us: int, cost: int, actual: int) -> None:
        charge = self.bind(cost)
        by = self.bind(actual).size - charge.size
        self.state = charge.settle(charge.sanitize(self.state, now_us), now_us, granted_us, by)

    def drain(self, now_us: int) -> int:
        """Request single units until a request is denied."""
        count = 0
        while self.decide(now_us):
            count += 1
        return count

    def draw_cost(self, rnd: random.Random) -> int:
        most = self.limit.capacity
        return rnd.choice([1, 1, 1, most, rnd.randint(1, most), 0])

    def next_us(self, rnd: random.Random, now_us: int, cost: int) -> int:
        """Return a later time at which something may have changed."""
        period_us = self.limit.period_us
        edge_us = (now_us // period_us + 1) * period_us
        few_us = rnd.randint(0, min(10 * MS, period_us))
        ready_us = self.ready_us(now_us, cost)
        candidates = [
            now_us,
            now_us,
            now_us + few_us,
            ready_us,
            ready_us,
            ready_us - 1,
            edge_us - 1,
            edge_us,
            edge_us + 1,
        ]
        candidates += [now_us + rnd.randint(0, 3 * period_us), *(at_us for at_us, _ in self.zone.changes)]
        return max(now_us, rnd.choice(candidates))


def max_units(limit: Limit, first_us: int, last_us: int) -> int:
    """Return the bound in the limit's docstring, for a window that begins and ends with an admission."""
    amount, period_us, length_us = limit.amount, limit.period_us, last_us - first_us
    if isinstance(limit, BUCKETS):
        return limit.capacity + length_us * amount // period_us
    if isinstance(limit, SlidingWindow):
        # Less than amount + 1 + w × amount / period.
        return amount - (-length_us * amount // period_us)
    if isinstance(limit, SlidingLog):
        return amount * (length_us // period_us + 1)
    return amount * (length_us // period_us + 2)


def assert_bound(limit: Limit, admitted: Sequence[tuple[int, int]], extra: Any = lambda first_us, last_us: 0) -> None:
    """Between any two admissions, no more than the bound and *extra* was admitted."""
    by_time = sorted(admitted)
    for i, (first_us, _) in enumerate(by_time):
        units = 0
        for last_us, cost in by_time[i:]:
            units += cost
            assert units <= max_units(limit, first_us, last_us) + extra(first_us, last_us), (first_us, last_us, by_time)


@quick
@random_runs
@given(seed=seeds, length=lengths)
def test_no_window_admits_more_than_its_bound(limit: Limit, seed: int, length: int) -> None:
    """Whatever the arrival times and costs, no window of any length admits more than its bound."""
    rnd, key, now_us = random.Random(seed), Key(limit), START_US
    for _ in range(length):
        cost = key.draw_cost(rnd)
        now_us = key.next_us(rnd, now_us, cost)
        key.decide(now_us, cost)
    assert_bound(limit, key.admitted)


@quick
@random_runs
@given(seed=seeds, length=lengths)
def test_ready_time_is_the_earliest_admission(limit: Limit, seed: int, length: int) -> None:
    """A request is admitted at the ready time that was returned, and not one microsecond earlier."""
    rnd, key, now_us = random.Random(seed), Key(limit), START_US
    for _ in range(length):
        cost = key.draw_cost(rnd)
        ready_us = key.ready_us(now_us, cost)
        assert ready_us >= now_us
        assert key.ready_us(ready_us, cost) == ready_us
        if ready_us > now_us:
            assert key.ready_us(ready_us - 1, cost) > ready_us - 1
        now_us = key.next_us(rnd, now_us, cost)
        key.decide(now_us, cost)


@quick
def test_cost_of_zero_only_peeks(limit: Limit) -> None:
    """A cost of 0 is admitted at any time, and leaves the state unchanged, also if candidates is none."""
    charge = Key(limit).bind(0)
    assert charge.sanitize(None, START_US) is None
    exhausted = Key(limit)
    assert exhausted.decide(START_US, limit.capacity)
    for state in (None, exhausted.state):
        assert charge.ready_us(state, START_US) == START_US
        assert charge.admit(state, START_US) is state


@quick
@random_runs
@given(seed=seeds, length=lengths)
def test_clock_that_steps_back_admits_nothing_extra(limit: Limit, seed: int, length: int) -> None:
    """
    The bound holds in true time if the clock steps back, by a little or by days.

    If the state of a fixed window is rejected, one more amount may be admitted: the window counts as used up, and the
    next one may begin at once. For a sliding window it is one more unit: the new state lacks the fraction of a unit
    that was admitted beyond the amount.
    """
    rnd, key, true_us, behind_us = random.Random(seed), Key(limit), START_US, 0
    back_us = [1, MS, limit.period_us, 10 * limit.period_us, STALE_US // 3, 2 * STALE_US, DAY_US]
    for _ in range(length):
        cost = key.draw_cost(rnd)
        true_us = key.next_us(rnd, true_us - behind_us, cost) + behind_us
        if rnd.random() < 0.1:
            behind_us += rnd.randint(0, rnd.choice(back_us))
        key.decide(true_us - behind_us, cost, true_us)

    def extra(first_us: int, last_us: int) -> int:
        more = limit.amount if isinstance(limit, FixedWindow) else int(isinstance(limit, SlidingWindow))
        return more * sum(first_us < reset_us <= last_us for reset_us in key.resets_us)

    assert_bound(limit, key.admitted, extra)


@dataclass
class Job:
    granted_us: int
    cost: int
    actual: int
    ends_us: int


def _simulate_jobs(limit: Limit, seed: int, length: int) -> tuple[list[Job], list[tuple[int, Job]]]:
    """Jobs that cost less than they were charged: the admitted ones, and the settled ones with the time."""
    rnd, key, now_us = random.Random(seed), Key(limit), START_US
    jobs: list[Job] = []
    returned: list[tuple[int, Job]] = []
    running: list[Job] = []
    for _ in range(length):
        cost = key.draw_cost(rnd)
        now_us = key.next_us(rnd, now_us, cost)
        for job in [job for job in running if job.ends_us <= now_us]:
            running.remove(job)
            key.settle(now_us, job.granted_us, job.cost, job.actual)
            returned.append((now_us, job))
        if key.decide(now_us, cost) and cost:
            ends_us = now_us + rnd.choice([0, 1, rnd.randint(0, limit.period_us), rnd.randint(0, 3 * limit.period_us)])
            jobs.append(job := Job(now_us, cost, rnd.choice([0, cost, rnd.randint(0, cost)]), ends_us))
            running.append(job)
    return jobs, returned


@quick
@random_runs
@given(seed=seeds, length=lengths)
def test_returned_units_do_not_break_the_bound(limit: Limit, seed: int, length: int) -> None:
    """
    The actual costs stay within the bound of every window, however late they are settled. A bucket also admits what
    earlier jobs returned within the window.
    """
    jobs, returned = _simulate_jobs(limit, seed, length)
    into_bucket = returned if isinstance(limit, BUCKETS) else []

    def extra(first_us: int, last_us: int) -> int:
        return sum(job.cost - job.actual for at_us, job in into_bucket if job.granted_us < first_us <= at_us <= last_us)

    assert_bound(limit, [(job.granted_us, job.actual) for job in jobs], extra)


@quick
@given(seed=seeds)
def test_settling_at_once_equals_charging_the_actual_cost(limit: Limit, seed: int) -> None:
    """A cost that is settled at once, up or down, leaves the limit as if the actual cost had been charged."""
    rnd, key = random.Random(seed), Key(limit)
    cost, actual = rnd.randint(0, limit.capacity), rnd.randint(1, 3 * limit.capacity)
    key.decide(START_US - limit.period_us // 2, rnd.randint(0, limit.capacity - cost))
    expected = key.bind(actual).admit(key.state, START_US, START_US)
    key.state = key.bind(cost).admit(key.state, START_US)
    key.settle(START_US, START_US, cost, actual)
    assert key.state == expected


@quick
@given(seed=seeds)
def test_returned_units_can_be_charged_again(limit: Limit, seed: int) -> None:
    """A cost that is returned while all of it counts leaves the limit as if it had not been charged."""
    rnd, key = random.Random(seed), Key(limit)
    before = rnd.randint(0, limit.capacity - 1)
    key.decide(START_US, before)
    cost = rnd.randint(1, limit.capacity - before)
    if not key.decide(START_US, cost):
        assert limit.name == "token-uneven"  # charges are rounded up one by one: the last unit may be 1 µs off
        return
    key.settle(START_US, START_US, cost, 0)
    # Except for 2 µs of rounding at thousands of units a second.
    assert key.ready_us(START_US, limit.capacity - before) <= START_US + 2 * (limit.name == "token-uneven")
    if before:
        assert key.ready_us(START_US, limit.capacity - before + 1) > START_US


@quick
@given(units=st.integers(1, 50))
def test_debt_delays_the_next_admission(limit: Limit, units: int) -> None:
    """A cost that is settled higher blocks others for as long as the limit needs to make up for it at its rate."""
    key, capacity = Key(limit), limit.capacity
    assert key.decide(START_US, capacity)
    key.settle(START_US, START_US, capacity, capacity + units)
    ready_us = key.ready_us(START_US, 1)
    if isinstance(limit, BUCKETS):
        assert ready_us - START_US >= (units + 1) * limit.period_us // limit.amount
    elif isinstance(limit, SlidingWindow):
        # The next window begins with more than its amount, and waits for the excess to fade.
        next_us = (START_US // limit.period_us + 1) * limit.period_us
        assert ready_us - next_us >= units * limit.period_us // (capacity + units)
    else:
        assert ready_us - START_US >= limit.period_us
    assert not Key(limit, state=key.state).decide(ready_us - 1)
    assert key.ready_us(START_US, 0) == START_US, "a cost of 0 only peeks"


# The bound is reached


@pytest.mark.parametrize("limit", [QUICK[0], QUICK[1], QUICK[3]], ids=lambda limit: limit.name)
def test_bucket_reaches_its_bound(limit: Limit) -> None:
    """A bucket admits its burst at once and one unit per interval afterwards: the bound, for every length."""
    key, interval_us = Key(limit), -(-limit.period_us // limit.amount)
    assert key.drain(START_US) == limit.capacity
    for number in range(1, 200):
        assert not key.decide(START_US + number * interval_us - 1)
        assert key.decide(START_US + number * interval_us)
        assert len(key.admitted) == limit.capacity + number


@pytest.mark.parametrize("amount", [1, 5, 100])
def test_fixed_window_reaches_its_bound(amount: int) -> None:
    """A window admits its amount in its last microsecond, and the next window in its first."""
    key = Key(FixedWindow("fixed", (amount, 0.05)))
    assert key.drain(START_US - 1) == amount
    assert key.drain(START_US) == amount
    assert key.admitted[-1][0] - key.admitted[0][0] == 1
    for number in range(1, 20):
        assert key.drain(START_US + number * 50 * MS - 1) == 0
        assert key.drain(START_US + number * 50 * MS) == amount


@pytest.mark.parametrize("amount", [1, 2, 5, 100])
def test_sliding_window_reaches_its_bound(amount: int) -> None:
    """One period admits 2 × amount units: the amount at the very end of a window, and as much while it fades."""
    limit = SlidingWindow("sliding", (amount, 0.05))
    key, now_us = Key(limit), START_US - 1
    assert key.drain(now_us) == amount
    while now_us < START_US - 1 + 2 * limit.period_us:
        now_us = key.ready_us(now_us, 1)
        assert key.decide(now_us)
    within = [at_us for at_us, _ in key.admitted if at_us < START_US - 1 + limit.period_us]
    assert len(within) == 2 * amount
    # And that number is the bound for this length.
    last_us = within[-1]
    assert len(within) == max_units(limit, START_US - 1, last_us)


@pytest.mark.parametrize("phase", [0, 0.3, 0.9])
@pytest.mark.parametrize("amount", [1, 2, 5, 100])
def test_sliding_window_gives_a_steady_backlog_its_amount(amount: int, phase: float) -> None:
    """A backlog that never ends gets the whole amount in every period."""
    key, now_us, periods = Key(SlidingWindow("sliding", (amount, 0.05))), START_US + round(50 * MS * phase), 200
    while now_us < START_US + periods * 50 * MS:
        now_us = key.ready_us(now_us, 1)
        assert key.decide(now_us)
    assert (periods - 1) * amount <= len(key.admitted) <= (periods + 1) * amount


@pytest.mark.parametrize("amount", [1, 5, 100])
def test_sliding_log_reaches_its_bound(amount: int) -> None:
    """The amount is admitted at one moment, no unit until the period is over, and then the amount again."""
    key = Key(SlidingLog("log", (amount, 0.05)))
    for number in range(5):
        now_us = START_US + 7 * MS + number * 50 * MS
        assert key.drain(now_us - 1) == 0 if number else True
        assert key.drain(now_us) == amount
        assert not key.decide(now_us + 50 * MS - 1)


# Zones


@pytest.mark.parametrize("zone", ZONES, ids=["forward", "back", "half-hours", "no midnight", "midnight twice"])
@pytest.mark.parametrize("period_us", [HOUR_US, DAY_US], ids=["hour", "day"])
@random_runs
@given(seed=seeds, length=lengths)
def test_windows_of_a_zone_admit_their_amount(zone: Zone, period_us: int, seed: int, length: int) -> None:
    """Across clock changes each window admits at most its amount, and ready times are exact."""
    limit = FixedWindow("fixed", (3, period_us / 1_000_000))
    rnd, key, now_us = random.Random(seed), Key(limit, zone), START_US - 2 * DAY_US
    for _ in range(length):
        cost = key.draw_cost(rnd)
        ready_us = key.ready_us(now_us, cost)
        assert key.ready_us(ready_us, cost) == ready_us
        if ready_us > now_us:
            assert key.ready_us(ready_us - 1, cost) > ready_us - 1
        now_us = key.next_us(rnd, now_us, cost)
        key.decide(now_us, cost)
    # If clocks go back to before the beginning of a window, that window begins twice.
    again = zone is ZONES[-1] and period_us == DAY_US
    used: dict[tuple[int, bool], int] = {}
    latest = 0
    for at_us, cost in key.admitted:
        latest = max(latest, (at_us + zone.at(at_us)) // period_us)
        part = latest, again and at_us >= zone.changes[0][0]
        used[part] = used.get(part, 0) + cost
    assert all(units <= 3 for units in used.values()), used
    # If clocks go forward, a window is shorter than its period: no shorter window admits more than two amounts.
    shortest_us = period_us - min(period_us // 2, HOUR_US)
    for i, (first_us, _) in enumerate(key.admitted):
        assert sum(cost for at_us, cost in key.admitted[i:] if at_us - first_us < shortest_us) <= (2 + again) * 3


# Numbers


@given(amount=st.integers(1, 10**12 - 1), period_us=st.integers(1, 366 * DAY_US))
def test_no_load_exceeds_a_double(amount: int, period_us: int) -> None:
    """For every limit, and two windows in a row in deepest debt, each load is below 2**53."""
    charge = SlidingWindow("sliding", (amount, period_us / 1_000_000)).bind(amount)
    assert isinstance(charge, SlidingWindowAlgorithm)
    state = None
    for now_us in (0, charge.period_us):
        state = charge.settle(state, now_us, now_us, 10**30)
    assert state is not None
    assert state.before == state.used > 50 * amount
    steps = -(-charge.period_us // charge.step_us)
    assert (state.before + state.used + charge.size) * steps < 2**53


@pytest.mark.parametrize(
    "limit",
    [
        TokenBucket("token", "1/366d", burst=9),
        TokenBucket("token", f"{10**12 - 1}/day", burst=10**12),
        LeakyBucket("leaky", "1/366d"),
        FixedWindow("fixed", f"{10**12 - 1}/day"),
        SlidingWindow("sliding", f"{10**12 - 1}/366d"),
        SlidingLog("log", "5/366d"),
    ],
    ids=lambda limit: f"{limit.algorithm} {limit.amount}",
)
def test_no_debt_exceeds_a_double(limit: Limit) -> None:
    """An absurdly high settled cost is owed, but no stored number exceeds 2**53."""
    key = Key(limit)
    key.decide(START_US)
    for _ in range(3):
        key.settle(START_US, START_US, 1, 10**30)
    use = key.bind(1).use(key.state, START_US)
    assert START_US + limit.period_us // 2 < use.full_us < 2**53 or isinstance(limit, FixedWindow)
    assert START_US < key.ready_us(START_US, 1) < 2**53
    numbers = [number for part in key.state for number in (part if isinstance(part, tuple) else (part or 0,))]
    assert all(abs(number) < 2**53 for number in (use.units, *numbers))
