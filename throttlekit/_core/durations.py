"""Read options that take seconds or a timedelta."""

from __future__ import annotations

import math
from datetime import timedelta

from throttlekit._core.limit.template import safe_repr
from throttlekit._core.number import is_number
from throttlekit.errors import ConfigurationError

__all__ = ["seconds_in", "seconds_within"]

_DAY_S = 86_400
_LONGEST_S = 1e9  # about thirty years: a longer time counts as this one


def seconds_in(option: str, value: float | timedelta | None) -> float:
    """
    Read the *value* of an option that takes seconds or a timedelta. None means infinity.

    Raises:
        ConfigurationError: *value* is not a number of seconds of at least 0. The error names *option*.
    """
    if value is None:
        return math.inf
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not is_number(seconds, 0) or seconds == math.inf:
        raise ConfigurationError(
            f"{option} must be a number of seconds of at least 0, or a timedelta, not {safe_repr(value)}"
        )
    return float(min(seconds, _LONGEST_S))


def seconds_within(option: str, value: object, least: float, most: float) -> float:
    """
    Read the *value* of an option that takes seconds or a timedelta, within bounds.

    Raises:
        ConfigurationError: *value* is not a number of seconds from *least* to *most*. The error names *option*.
    """
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not is_number(seconds, least, most):
        end = "a day (86400)" if most == _DAY_S else f"{most:.0f}"
        raise ConfigurationError(
            f"{option} must be a number of seconds from {least:g} to {end}, or a timedelta, not {safe_repr(value)}"
        )
    return seconds
