"""What the waitlist needs of every algorithm: how many units are there, and when a job passes behind others."""

from __future__ import annotations

import random
from typing import Any

import pytest

from throttlekit import Concurrency, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket
from throttlekit._core.algorithms.fixed_window import FixedWindowAlgorithm
from throttlekit._core.limit.base import Limit
from throttlekit._core.time_zone import Zone

NOW_US = 1_800_000_000_000_000
MS = 1000

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


def _bound(limit: Limit, cost: int, now_us: int, holder: object = "") -> Any:
    return limit.bind(cost, now_us, f"{holder}")


def _used(limit: Limit, seed: int) -> tuple[Any, int]:
    """A limit that was used at random, and the instant."""
    rnd, now_us, state = random.Random(seed), NOW_US + seed * 123_457, None
    for number in range(rnd.randrange(60)):
        now_us += rnd.randrange(3 * max(1, limit.period_us // limit.amount))
        unit = _bound(limit, 1, now_us, number)
        if rnd.random() < 0.05 and limit.period_us:
            state = unit.exhaust(state, now_us)
        if unit.ready_us(state, now_us) <= now_us:
            state = unit.admit(state, now_us)
    return state, now_us


@every_limit
@pytest.mark.parametrize("seed", range(20))
def test_units_that_are_there_pass_now_and_not_one_more(limit: Limit, seed: int) -> None:
    """`there` is the number of jobs of one unit that pass at once."""
    state, now_us = _used(limit, seed)
    there, passed = _bound(limit, 1, now_us).there(state, now_us), 0
    while (unit := _bound(limit, 1, now_us, f"more{passed}")).ready_us(state, now_us) <= now_us:
        state, passed = unit.admit(state, now_us), passed + 1
    assert there == passed


@every_rate
@pytest.mark.parametrize("seed", range(20))
def test_units_ahead_count_as_the_own(limit: Limit, seed: int) -> None:
    """Up to all that pass at once, a job behind *n* units passes when one job of all those units would, or sooner."""
    state, now_us = _used(limit, seed)
    for ahead in range(limit.capacity):
        together = _bound(limit, ahead + 1, now_us).ready_us(state, now_us)
        behind = _bound(limit, 1, now_us).ready_us(state, now_us, ahead)
        assert behind <= together + 1
        # The units of a sliding window that pass meanwhile fade later. A charge is rounded up.
        assert behind >= together - 1 or isinstance(limit, SlidingWindow)


@every_limit
@pytest.mark.parametrize("seed", range(5))
def test_more_ahead_is_never_sooner(limit: Limit, seed: int) -> None:
    """However many stand before a job, and at the limit's rate in the long run."""
    state, now_us = _used(limit, seed)
    unit = _bound(limit, 1, now_us)
    ready_us = [unit.ready_us(state, now_us, ahead) for ahead in range(10 * limit.capacity)]
    assert ready_us == sorted(ready_us)
    if limit.period_us:
        expected_us = 9 * limit.capacity * limit.period_us / limit.amount
        assert abs(ready_us[-1] - ready_us[0] - expected_us) <= 2 * max(
            limit.period_us if limit.capacity == limit.amount else 0, limit.capacity * limit.period_us / limit.amount
        )


@every_rate
def test_pace_is_that_of_the_rate(limit: Limit) -> None:
    """The retry times of callers without a job are spread by the time that the limit takes for their units."""
    for cost in (1, min(3, limit.capacity)):
        expected_us = cost * limit.period_us / limit.amount
        assert expected_us <= _bound(limit, cost, NOW_US).pace_us(None, NOW_US) <= expected_us * 1.01 + 1


@pytest.mark.parametrize("algorithm", [TokenBucket, LeakyBucket, FixedWindow, SlidingWindow, SlidingLog])
def test_mark_stands_for_the_rate(algorithm: Any) -> None:
    """It changes with the rate, and with nothing else."""
    marks = [_bound(algorithm("x", rate), 1, NOW_US).mark for rate in ("10/s", "600/m", "11/s", "100/s", "10/h")]
    assert marks[0] == marks[1]
    assert len(set(marks)) == 4
    assert _bound(Concurrency("x", 3), 1, NOW_US).mark != _bound(Concurrency("x", 4), 1, NOW_US).mark


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
        (Concurrency("x", 1), 1, 60_000, True),
    ],
    ids=str,
)
def test_units_that_do_not_wait(limit: Limit, cost: int, grace_us: int, tight: bool) -> None:
    """A unit is lost where the bucket is full before the grace time is over, and while a slot lies free."""
    assert (_bound(limit, cost, NOW_US).keeps_us < grace_us) is tight


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
def test_script_is_told_the_limit_by_its_numbers(charge: Any, code: str, params: tuple[Any, ...]) -> None:
    """A letter, and what the script needs besides the size."""
    assert (charge.code, charge.params) == (code, params)
