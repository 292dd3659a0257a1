"""Rates: which forms are accepted, and which are refused."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from throttlekit import ConfigurationError, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket
from throttlekit._core.limit.rate import LONGEST_PERIOD_US, MONTH_US, YEAR_US, parse_rate, parse_window

MINUTE, HOUR, DAY = 60_000_000, 3_600_000_000, 86_400_000_000


@pytest.mark.parametrize(
    ("rate", "amount", "period_us"),
    [
        ("100/minute", 100, MINUTE),
        ("10/s", 10, 1_000_000),
        ("5/10s", 5, 10_000_000),
        ("1/day", 1, DAY),
        ("  3 / 2 hours ", 3, 2 * HOUR),
        ("3/h", 3, HOUR),
        ("3/hour", 3, HOUR),
        ("3/m", 3, MINUTE),
        ("3/min", 3, MINUTE),
        ("3/d", 3, DAY),
        ("3/days", 3, DAY),
        ("3/sec", 3, 1_000_000),
        ("3/second", 3, 1_000_000),
        ("3/seconds", 3, 1_000_000),
        ("3/30minutes", 3, 30 * MINUTE),
        ("3/30min", 3, 30 * MINUTE),
        ("007/s", 7, 1_000_000),
        ("999999999999/s", 10**12 - 1, 1_000_000),
        ("100 per minute", 100, MINUTE),
        ("100 per 2 hours", 100, 2 * HOUR),
        ("100/Minute", 100, MINUTE),
        ("5/w", 5, 7 * DAY),
        ("5/week", 5, 7 * DAY),
        ("5 per 2 weeks", 5, 14 * DAY),
        ("1/366d", 1, LONGEST_PERIOD_US),
        ((5, timedelta(seconds=10)), 5, 10_000_000),
        ((5, timedelta(microseconds=1)), 5, 1),
        ((5, 10), 5, 10_000_000),
        ((5, 0.1), 5, 100_000),
        ((5, 1.0000004), 5, 1_000_001),
        ((5, 1.4e-6), 5, 2),
        ((5, 1e-6), 5, 1),
        ((5, 2.007), 5, 2_007_000),
        ((5, timedelta(seconds=2.007)), 5, 2_007_000),
        ((1, timedelta(days=366)), 1, LONGEST_PERIOD_US),
    ],
)
def test_rate_is_read(rate: Any, amount: int, period_us: int) -> None:
    """A rate is an amount of units and a period in whole microseconds."""
    assert parse_rate(rate) == (amount, period_us)


@pytest.mark.parametrize(
    "rate",
    [
        "",
        "100",
        "100/",
        "/minute",
        "0/s",
        "-1/s",
        "1.5/s",
        "10/0s",
        "10/fortnight",
        "10/S",
        "10 pers",
        "10 a second",
        "10/M",
        "10/month",
        "10/s;100/h",
        "10/s/s",
        "10/1.5s",
        "١٠/s",
        "1" * 13 + "/s",
        "1/367d",
        "1/9999999999s",
        10,
        None,
        b"10/s",
        ["10", "s"],
        (10,),
        (10, 1, 1),
        (0, 1),
        (-1, 1),
        (1.5, 1),
        (True, 1),
        ("10", 1),
        (10**12, 1),
        (10, 0),
        (10, -1),
        (10, True),
        (10, "1s"),
        (10, None),
        (10, float("nan")),
        (10, float("inf")),
        (10, 0.0000001),
        (1, 1e308),
        (1, 10**400),
        (10**400, 1),
        (10, timedelta(0)),
        (10, timedelta(seconds=-1)),
        (10, timedelta(days=367)),
    ],
)
def test_invalid_rate_is_refused(rate: Any) -> None:
    """Anything but a rate is refused at once, and the message repeats it, or its beginning if it is very long."""
    with pytest.raises(ConfigurationError) as caught:
        parse_rate(rate)
    assert repr(rate)[:60] in str(caught.value)


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        ("1000/month", (1000, MONTH_US)),
        ("1000 per Months", (1000, MONTH_US)),
        ("7/year", (7, YEAR_US)),
        ("7/week", (7, 7 * DAY)),
        ("10/s", (10, 1_000_000)),
        ((5, timedelta(days=7)), (5, 7 * DAY)),
    ],
)
def test_window_is_read(rate: Any, expected: tuple[int, int]) -> None:
    """The windows of the calendar include months and years."""
    assert parse_window(rate) == expected


@pytest.mark.parametrize(
    ("rate", "remedy"),
    [
        ("10/2months", "must be one month, not several"),
        ("10/31d", "write '10/month'"),
        ((10, timedelta(days=366)), "write '10/year'"),
        ("0/month", "at least 1"),
        ("10/fortnight", "also takes month and year"),
    ],
)
def test_invalid_window_is_refused(rate: Any, remedy: str) -> None:
    """Several months, or as many days as a month may have, are not windows of the calendar."""
    with pytest.raises(ConfigurationError, match=remedy):
        parse_window(rate)


@pytest.mark.parametrize("limit", [TokenBucket, LeakyBucket, SlidingWindow, SlidingLog])
def test_month_of_another_limit_is_refused(limit: Any) -> None:
    """A month is an error for every other limit; the message names the limit that supports it, and an alternative."""
    with pytest.raises(ConfigurationError, match=r"FixedWindow\(name, '10/month'\).* '10/30d'"):
        limit("quota", "10/month")


@pytest.mark.parametrize("rate", ["10/s;100/h", "10/s, 100 per hour", "10/s and 100/h"])
def test_several_rates_in_one_text(rate: str) -> None:
    """Other libraries read several rates from one text: the error says what to write instead."""
    with pytest.raises(ConfigurationError, match="is 2 rates: create a limit for each"):
        parse_rate(rate)


@given(period_us=st.integers(1, LONGEST_PERIOD_US))
def test_seconds_that_are_whole_microseconds_are_exact(period_us: int) -> None:
    """A period in seconds is converted to exactly that number of microseconds."""
    assert parse_rate((1, period_us / 1_000_000)) == (1, period_us)
