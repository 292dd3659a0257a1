"""The one place that reads rates: "100/minute", "10/s", "5/10s", (5, timedelta(seconds=10))."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import TypeAlias

from throttlekit._core.limit.template import safe_repr
from throttlekit.errors import ConfigurationError

__all__ = ["LONGEST_PERIOD_US", "Rate", "parse_rate"]

Rate: TypeAlias = "str | tuple[int, timedelta | float]"

LONGEST_PERIOD_US = 366 * 86_400_000_000
"""A year. A longer period would leave too little room for bursts below `LARGEST_EXACT` µs."""

_LARGEST_AMOUNT = 10**12 - 1

_UNIT_US = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_UNITS = dict(_UNIT_US)
for _short, _words in {
    "s": ("sec", "second", "seconds"),
    "m": ("min", "minute", "minutes"),
    "h": ("hour", "hours"),
    "d": ("day", "days"),
}.items():
    for _word in _words:
        _UNITS[_word] = _UNIT_US[_short]

_RATE = re.compile(r"\s*([0-9]{1,12})\s*/\s*([0-9]{1,9})?\s*([a-z]+)\s*", re.ASCII)
_HOW_TO_WRITE = 'Write it as "100/minute", "10/s", "5/10s", or (5, timedelta(seconds=10)).'


def parse_rate(rate: Rate) -> tuple[int, int]:
    """
    Read *rate* as (amount, period in µs).

    Raises:
        ConfigurationError: *rate* is not a rate, its amount is not a positive whole number, or its
            period is not between 1 µs and a year.

    A number of seconds between two microseconds is rounded up: stricter, never looser.
    """
    if isinstance(rate, str):
        amount, period_us = _parse_text(rate)
    elif isinstance(rate, tuple) and len(rate) == 2:
        amount, period_us = rate[0], _period_us(rate[1], rate)
    else:
        raise ConfigurationError(f"{safe_repr(rate)} is not a rate. {_HOW_TO_WRITE}")
    if isinstance(amount, bool) or not isinstance(amount, int) or not 1 <= amount <= _LARGEST_AMOUNT:
        raise ConfigurationError(
            f"the amount of rate {safe_repr(rate)} must be a whole number of units, "
            f"at least 1 and at most {_LARGEST_AMOUNT}. {_HOW_TO_WRITE}"
        )
    if not 1 <= period_us <= LONGEST_PERIOD_US:
        raise _out_of_range(rate)
    return amount, period_us


def _parse_text(rate: str) -> tuple[int, int]:
    match = _RATE.fullmatch(rate)
    if match is None:
        raise ConfigurationError(f"{safe_repr(rate)} is not a rate. {_HOW_TO_WRITE}")
    amount, count, unit = match.groups()
    if unit not in _UNITS:
        raise ConfigurationError(
            f"{unit!r} in rate {safe_repr(rate)} is not a unit of time: use s, m, h, d, or second … day."
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
    # Less the error of a float, else 2.007 s would be 2 007 001 µs.
    return math.ceil(period * 1_000_000 * (1 - 2**-51))


def _out_of_range(rate: object) -> ConfigurationError:
    return ConfigurationError(
        f"the period of rate {safe_repr(rate)} must be between 1 µs and 366 days. {_HOW_TO_WRITE}"
    )
