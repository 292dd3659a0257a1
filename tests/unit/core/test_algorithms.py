"""What the waitlist needs from every algorithm: how many units are free, and when a job behind others is granted."""

from __future__ import annotations

import random
from typing import Any

import pytest

from throttlekit import Concurrency, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket
from throttlekit._core.algorithms.fixed_window import FixedWindowAlgorithm
from throttlekit._core.limit.base import Limit
from throttlekit._core.time_zone import Zone

NOW_US = 1_800_000_000_000_000

RATES: list[Limit] = [
    TokenBucket("token", "10/s", burst=5),
    TokenBucket("quick", "7000/s", burst=700),
    LeakyBucket("leaky", "10/s"),
    FixedWindow("fixed", "20/s"),
    FixedWindow("daily", "12/d", tz="Europe/Berlin"),
    SlidingWindow("sliding", "20/s"),
    SlidingLog("log", "20/s"),
]
every_rate = pytest.mark.parametrize("limit", RATES, ids=lambda limit: limit.name)
every_limit = pytest.mark.parametrize("limit", [*RATES, Concurrency("slots", 20)], ids=lambda limit: limit.name)


def _used(limit: Limit, seed: int) -> tuple[Any, int]:
    """Return the state of a limit after random use, and the time."""
    rnd, now_us, state = random.Random(seed), NOW_US + seed * 123_457, None
    for number in range(rnd.randrange(60)):
        now_us += rnd.randrange(3 * max(1, limit.period_us // limit.amount))
        unit = limit.bind(1, now_us, f"{number}")
        if rnd.random() < 0.05 and limit.period_us:
            state = unit.exhaust(state, now_us)
        if unit.ready_us(state, now_us) <= now_us:
            state = unit.admit(state, now_us)
    return state, now_us


@every_limit
@pytest.mark.parametrize("seed", range(20))
def test_there_counts_the_units_that_are_admitted_now(limit: Limit, seed: int) -> None:
    """`there` is exactly the number of one-unit jobs that are admitted at once."""
    state, now_us = _used(limit, seed)
    there, admitted = limit.bind(1, now_us).there(state, now_us), 0
    while (unit := limit.bind(1, now_us, f"more{admitted}")).ready_us(state, now_us) <= now_us:
        state, admitted = unit.admit(state, now_us), admitted + 1
    assert there == admitted


@every_rate
@pytest.mark.parametrize("seed", range(20))
def test_units_ahead_count_like_own_units(limit: Limit, seed: int) -> None:
    """Up to the capacity, a job behind *n* units is granted no later than one job that costs *n* units more."""
    state, now_us = _used(limit, seed)
    for ahead in range(limit.capacity):
        together = limit.bind(ahead + 1, now_us).ready_us(state, now_us)
        behind = limit.bind(1, now_us).ready_us(state, now_us, ahead)
        assert behind <= together + 1
        # In a sliding window, units that are admitted in the meantime fade later. A charge is rounded up.
        assert behind >= together - 1 or isinstance(limit, SlidingWindow)


@every_limit
@pytest.mark.parametrize("seed", range(5))
def test_more_units_ahead_never_mean_an_earlier_grant(limit: Limit, seed: int) -> None:
    """The more units are ahead of a job, the later it is granted: in the long run, at the limit's rate."""
    state, now_us = _used(limit, seed)
    unit = limit.bind(1, now_us)
    ready_us = [unit.ready_us(state, now_us, ahead) for ahead in range(10 * limit.capacity)]
    assert ready_us == sorted(ready_us)
    if limit.period_us:
        expected_us = 9 * limit.capacity * limit.period_us / limit.amount
        assert abs(ready_us[-1] - ready_us[0] - expected_us) <= 2 * max(
            limit.period_us if limit.capacity == limit.amount else 0, limit.capacity * limit.period_us / limit.amount
        )


@every_rate
def test_pace_equals_the_rate(limit: Limit) -> None:
    """The retry times of callers without a job are spread by the time that the limit needs for their units."""
    for cost in (1, min(3, limit.capacity)):
        expected_us = cost * limit.period_us / limit.amount
        assert expected_us <= limit.bind(cost, NOW_US).pace_us(None, NOW_US) <= expected_us * 1.01 + 1


@pytest.mark.parametrize("algorithm", [TokenBucket, LeakyBucket, FixedWindow, SlidingWindow, SlidingLog])
def test_mark_identifies_the_rate(algorithm: Any) -> None:
    """The mark changes with the rate, and with nothing else."""
    marks = [algorithm("x", rate).bind(1, NOW_US).mark for rate in ("10/s", "600/m", "11/s", "100/s", "10/h")]
    assert marks[0] == marks[1]
    assert len(set(marks)) == 4
    assert Concurrency("x", 3).bind(1, NOW_US).mark != Concurrency("x", 4).bind(1, NOW_US).mark


@pytest.mark.parametrize(
    ("limit", "cost", "grace_us", "tight"),
    [
        (TokenBucket("x", "10/s", burst=1), 1, 60_000, True),
        (TokenBucket("x", "10/s", burst=2), 1, 100_000, False),
        (TokenBucket("x", "10/s", burst=2), 1, 100_001, True),
        (TokenBucket("x", "10/s", burst=2), 2, 60_000, True),
        (LeakyBucket("x", "1/d"), 1, 60_000, True),
        (FixedWindow("x", "1/s"), 1, 60_000, False),
        (SlidingWindow("x", "1/s"), 1, 60_000, False),
        (SlidingLog("x", "1/s"), 1, 60_000, False),
    ],
    ids=str,
)
def test_units_that_are_lost_within_the_grace_time(limit: Limit, cost: int, grace_us: int, tight: bool) -> None:
    """A unit is lost if the bucket is full before the grace time is over. The units of a window are not lost."""
    assert (limit.bind(cost, NOW_US).keeps_us < grace_us) is tight


@pytest.mark.parametrize(
    ("charge", "code", "params"),
    [
        (TokenBucket("x", "10/s", burst=5).bind(2), "t", (300_000, 500_000, "100000")),
        (TokenBucket("x", "7000000/s", burst=5).bind(1), "t", (0, 1, "1000000/7000000")),
        (FixedWindowAlgorithm(1, 3, 60, Zone(7200, ((9, 3600), (18, -5)))), "f", (3, 60, "7200 9 3600 18 -5")),
        (FixedWindowAlgorithm(1, 3, 60), "f", (3, 60, "0")),
        (SlidingWindow("x", (10**9, 86_400.0)).bind(2), "s", (10**9, 86_400_000_000, 1_227_818)),
        (SlidingLog("x", "100/minute").bind(2), "l", (100, 60_000_000, 0)),
        (Concurrency("x", 2).bind(1, 0, "a"), "c", (2, 30_000_000, "a")),
    ],
    ids=str,
)
def test_script_receives_the_limit_as_numbers(charge: Any, code: str, params: tuple[Any, ...]) -> None:
    """The script receives a letter, and the parameters that it needs besides the size."""
    assert (charge.code, charge.params) == (code, params)
