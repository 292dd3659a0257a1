"""Read rates: "100/minute", "100 per minute", "5/10s", (5, timedelta(seconds=10)), "1000/month"."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import TypeAlias

from throttlekit._core.limit.template import safe_repr
from throttlekit._core.number import is_whole
from throttlekit.errors import ConfigurationError

__all__ = ["LONGEST_PERIOD_US", "MONTH_US", "WEEK_US", "YEAR_US", "Rate", "parse_rate", "parse_window"]

Rate: TypeAlias = "str | tuple[int, timedelta | float]"

LONGEST_PERIOD_US = 366 * 86_400_000_000
"""A year. A longer period would leave too little room for bursts below `LARGEST_EXACT` µs."""

WEEK_US = 7 * 86_400_000_000
MONTH_US = 31 * 86_400_000_000
"""The period that represents calendar months: the length of the longest month. No other window has this length."""
YEAR_US = LONGEST_PERIOD_US
"""The period that represents calendar years: the length of the longest year. No other window has this length."""

_LARGEST_AMOUNT = 10**12 - 1

_UNITS = {
    word: period_us
    for words, period_us in (
        ("s sec second seconds", 1_000_000),
        ("m min minute minutes", 60_000_000),
        ("h hour hours", 3_600_000_000),
        ("d day days", 86_400_000_000),
        ("w week weeks", WEEK_US),
    )
    for word in words.split()
}
_OF_CALENDAR = {"month": MONTH_US, "year": YEAR_US}

_RATE = re.compile(r"\s*([0-9]{1,12})\s*(?:/|\bper\b)\s*([0-9]{1,9})?\s*([A-Za-z]+)\s*", re.ASCII)
_HOW_TO_WRITE = 'Write it as "100/minute", "10/s", "5/10s", or (5, timedelta(seconds=10)).'


def parse_rate(rate: Rate) -> tuple[int, int]:
    """
    Read *rate* as (amount, period in µs).

    Raises:
        ConfigurationError: *rate* is not a rate, its amount is not a positive whole number, or its
            period is not between 1 µs and a year. Months and years are not periods: they differ in length.

    Seconds are rounded up to whole microseconds, which is stricter.
    """
    if isinstance(rate, str):
        amount, period_us = _parse_text(rate)
    elif isinstance(rate, tuple) and len(rate) == 2:
        amount, period_us = rate[0], _period_us(rate[1], rate)
    else:
        raise ConfigurationError(f"{safe_repr(rate)} is not a rate. {_HOW_TO_WRITE}")
    if not is_whole(amount, 1, _LARGEST_AMOUNT):
        raise ConfigurationError(
            f"the amount of rate {safe_repr(rate)} must be a whole number of units, "
            f"at least 1 and at most {_LARGEST_AMOUNT}. {_HOW_TO_WRITE}"
        )
    if not 1 <= period_us <= LONGEST_PERIOD_US:
        raise _out_of_range(rate)
    return amount, period_us


def parse_window(rate: Rate) -> tuple[int, int]:
    """
    Read the *rate* of a calendar window like `parse_rate`. A month's period is `MONTH_US`, and a year's is `YEAR_US`.

    Raises:
        ConfigurationError: As for `parse_rate`; also for 31 and 366 days, because they are not calendar windows.
    """
    match = _RATE.fullmatch(rate) if isinstance(rate, str) else None
    if match is not None and (period_us := _OF_CALENDAR.get(_unit(match[3]))) is not None:
        amount, _ = parse_rate(f"{match[1]}/s")
        if match[2] is not None:
            raise ConfigurationError(f"the period of rate {safe_repr(rate)} must be one {_unit(match[3])}, not several")
        return amount, period_us
    amount, period_us = parse_rate(rate)
    for unit, of_calendar_us in _OF_CALENDAR.items():
        if period_us == of_calendar_us:
            raise ConfigurationError(
                f"the period of rate {safe_repr(rate)} is not a window of the calendar: write {f'{amount}/{unit}'!r}"
            )
    return amount, period_us


def _unit(written: str) -> str:
    """
    Return the unit as in `_UNITS`. "Minutes" becomes "minutes", but "M" does not become "m", because it might mean
    months.
    """
    unit = written if len(written) == 1 else written.lower()
    return unit.removesuffix("s") if unit in ("months", "years") else unit


def _parse_text(rate: str) -> tuple[int, int]:
    match = _RATE.fullmatch(rate)
    if match is None:
        several = [each for each in re.split(r"[;,]|\band\b", rate) if _RATE.fullmatch(each)]
        if len(several) > 1:
            raise ConfigurationError(
                f"{safe_repr(rate)} is {len(several)} rates: create a limit for each, with its own name. "
                "A job can have several limits"
            )
        raise ConfigurationError(f"{safe_repr(rate)} is not a rate. {_HOW_TO_WRITE}")
    amount, count, unit = match[1], match[2], _unit(match[3])
    if unit in _OF_CALENDAR:
        raise ConfigurationError(
            f"a {unit}, as in rate {safe_repr(rate)}, is a window of the calendar: use "
            f"FixedWindow(name, {safe_repr(rate)}). For other limits write days, like '{amount}/30d'"
        )
    if unit not in _UNITS:
        raise ConfigurationError(
            f"{match[3]!r} in rate {safe_repr(rate)} is not a unit of time: use s, m, h, d, w, or second … week; "
            "a FixedWindow also takes month and year."
        )
    return int(amount), int(count or 1) * _UNITS[unit]


def _period_us(period: timedelta | float, rate: object) -> int:
    if isinstance(period, timedelta):
        return period // timedelta(microseconds=1)
    if isinstance(period, bool) or not isinstance(period, (int, float)):
        raise ConfigurationError(
            f"the period of rate {safe_repr(rate)} must be a timedelta or a number of seconds. {_HOW_TO_WRITE}"
        )
    if not 1e-6 <= period <= LONGEST_PERIOD_US / 1_000_000:
        raise _out_of_range(rate)
    # Subtract the error of a float: otherwise 2.007 s would be 2 007 001 µs.
    return math.ceil(period * 1_000_000 * (1 - 2**-51))


def _out_of_range(rate: object) -> ConfigurationError:
    return ConfigurationError(
        f"the period of rate {safe_repr(rate)} must be between 1 µs and 366 days. {_HOW_TO_WRITE}"
    )
