"""`RateLimited`: what a body raises when downstream answers 429; read from a response's headers if need be."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from throttlekit._core.limit.base import Limit
from throttlekit.errors import ConfigurationError, ThrottleError

__all__ = ["LONGEST_PAUSE", "RateLimited"]

LONGEST_PAUSE = 366 * 86_400.0
_DEFAULT_PAUSE = 30.0
_LONGEST_BY_RESPONSE = 3600.0
_SMALLEST_INSTANT = 1_000_000_000  # a reset that is so large is no number of seconds from now: seconds since 1970 …
_SMALLEST_IN_MILLISECONDS = 100_000_000_000  # … or milliseconds
_RESETS = ("RateLimit-Reset", "X-RateLimit-Reset", "X-Rate-Limit-Reset")


class RateLimited(ThrottleError):
    """
    For a throttled job's body to raise: downstream has answered 429, or 503 with Retry-After.

    The key that the job was counted under then admits no job, in the whole fleet, until *retry_after* is over;
    a pause that lasts longer already stays. The job is deferred to behind the pause, charged no retry, and runs
    again. How often that may happen is up to its `max_wait`. In a job that names no limit it is an error like
    any other.

    Args:
        retry_after: Seconds, or a timedelta, until downstream will answer again. Default: 30 seconds.
        limit: Which of the job's limits is paused, or its name. Default: the job's `on_429`, else all of its limits
            but those of concurrency.

    Raises:
        ConfigurationError: *retry_after* is no number of seconds from 0 to 366 days, or *limit* is neither a limit
            nor a name.
    """

    def __init__(self, retry_after: float | timedelta = _DEFAULT_PAUSE, *, limit: Limit | str | None = None) -> None:
        seconds = retry_after.total_seconds() if isinstance(retry_after, timedelta) else retry_after
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds <= LONGEST_PAUSE:
            raise ConfigurationError(
                f"retry_after must be a number of seconds from 0 to 366 days, or a timedelta, not {retry_after!r}; "
                "for a response, write RateLimited.from_response(response)"
            )
        if limit is not None and not isinstance(limit, (Limit, str)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"limit must be a limit of the job, or its name, not {limit!r}")
        super().__init__(seconds)  # what some frameworks make it anew from
        self.retry_after = float(seconds)
        self.limit = limit

    def __str__(self) -> str:
        return f"rate limited by downstream; retry in {self.retry_after:g} s"

    def __reduce__(self) -> tuple[object, ...]:
        return _rate_limited, (self.retry_after, self.limit), self.__dict__

    @classmethod
    def from_response(
        cls,
        response: Any,
        *,
        limit: Limit | str | None = None,
        default: float = _DEFAULT_PAUSE,
        longest: float = _LONGEST_BY_RESPONSE,
    ) -> RateLimited:
        """
        Read when to come back from a response of requests, httpx, aiohttp, urllib, or whatever has `.headers`.

        In this order: Retry-After, as seconds or as a date; RateLimit-Reset; X-RateLimit-Reset, which some mean as
        seconds from now and others as an instant since 1970, in seconds or milliseconds. Dates and instants are
        read against the response's own Date, so a clock that is off here does no harm. What cannot be read is as if
        it were not there.

        Args:
            limit: As for `RateLimited`.
            default: Seconds, if the response does not say.
            longest: At most so many seconds: a pause stops the whole fleet.
        """
        seconds = _seconds_in(getattr(response, "headers", None))
        return cls(min(longest, LONGEST_PAUSE, default if seconds is None else seconds), limit=limit)


def _seconds_in(headers: Any) -> float | None:
    if not isinstance(headers, Mapping) and not hasattr(headers, "get"):
        return None
    now = _date(_header(headers, "Date"))
    at = time.time() if now is None else now
    retry_after = _header(headers, "Retry-After")
    resets = (_reset(headers, name, at) for name in _RESETS)
    found = (_number(retry_after), _from_date(retry_after, at), *resets)
    return next((max(0.0, seconds) for seconds in found if seconds is not None), None)


def _header(headers: Any, name: str) -> str:
    try:
        found = headers.get(name)
        if found is None:
            found = headers.get(name.lower())
        return found.decode("latin-1") if isinstance(found, bytes) else "" if found is None else str(found)
    except Exception:
        return ""


def _number(text: str) -> float | None:
    try:
        number = float(text.strip())
    except ValueError:
        return None
    return number if math.isfinite(number) and "_" not in text else None


def _date(text: str) -> float | None:
    from email.utils import parsedate_to_datetime  # not for those who only import throttlekit

    try:
        date: datetime | None = parsedate_to_datetime(text)
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
    if date is None:  # pyright: ignore[reportUnnecessaryComparison]
        return None
    # A date without a zone is GMT in HTTP.
    return (date if date.tzinfo else date.replace(tzinfo=timezone.utc)).timestamp()


def _from_date(text: str, now: float) -> float | None:
    at = _date(text)
    return None if at is None else at - now


def _reset(headers: Any, name: str, now: float) -> float | None:
    number = _number(_header(headers, name))
    if number is None or number < _SMALLEST_INSTANT:
        return number
    return (number / 1000 if number >= _SMALLEST_IN_MILLISECONDS else number) - now


def _rate_limited(retry_after: float, limit: Limit | str | None) -> RateLimited:
    return RateLimited(retry_after, limit=limit)
