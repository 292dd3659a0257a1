"""`RateLimited`: what a body raises when downstream answers 429; read from a response's headers if need be."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping
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
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION = re.compile(r"(?:[0-9]{1,9}(?:\.[0-9]{1,9})?(?:ms|[smhd]))+", re.ASCII)
_PART = re.compile(r"([0-9.]+)(ms|[smhd])", re.ASCII)
_PARAMETER = re.compile(r"(?:^|[;,\s])(limit|remaining|reset|r|t)\s*=\s*(-?[0-9]{1,12})\b", re.ASCII | re.IGNORECASE)
_QUOTED = re.compile(r'"[^"]*"')


class RateLimited(ThrottleError):
    """
    For a throttled job's body to raise: downstream has answered 429, or 503 with Retry-After.

    The key that the job was counted under then admits no job, in the whole fleet, until *retry_after* is over;
    a pause that lasts longer already stays. It counts as used evenly until then: no burst follows. The job is
    deferred to behind the pause, charged no retry, and runs again. How often that may happen is up to its `max_wait`.
    In a job that names no limit it is an error like any other.

    Args:
        retry_after: Seconds, or a timedelta, until downstream will answer again. Default: 30 seconds.
        limit: Which of the job's limits is paused, or its name. Default: the job's `throttle_on_429`, else all of its
            limits but those of concurrency.

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

        In this order: retry-after-ms; Retry-After, as seconds or as a date; RateLimit; RateLimit-Reset;
        X-RateLimit-Reset, which some mean as seconds from now and others as an instant since 1970, in seconds or
        milliseconds; x-ratelimit-reset-requests and -tokens. Dates and instants are read against the response's own
        Date, so a clock that is off here does no harm. What cannot be read, is negative or lies in the past is as if
        it were not there.

        Args:
            limit: As for `RateLimited`.
            default: Seconds, if the response does not say.
            longest: At most so many seconds: a pause stops the whole fleet.
        """
        seconds = _seconds_in(getattr(response, "headers", None))
        return cls(min(longest, LONGEST_PAUSE, default if seconds is None else seconds), limit=limit)


def _seconds_in(headers: Any) -> float | None:
    """What the first of `_DIALECTS` says that says anything: seconds of at least 0."""
    if not isinstance(headers, Mapping) and not hasattr(headers, "get"):
        return None
    sent = _date(_header(headers, "Date"))
    now = time.time() if sent is None else sent
    found = (dialect(headers, now) for dialect in _DIALECTS)
    return next((seconds for seconds in found if seconds is not None and seconds >= 0), None)


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


def _retry_after_ms(headers: Any, now: float) -> float | None:
    number = _number(_header(headers, "Retry-After-Ms"))
    return None if number is None else number / 1000


def _retry_after(headers: Any, now: float) -> float | None:
    text = _header(headers, "Retry-After")
    number = _number(text)
    if number is not None:
        return number
    at = _date(text)
    return None if at is None else at - now


def _rate_limit(headers: Any, now: float) -> float | None:
    """Both of the forms that drafts of the IETF have given this field. The newer one may have several policies."""
    text = _QUOTED.sub("", _header(headers, "RateLimit")).lower()
    whole = _parameters(text)
    if "reset" in whole:
        return whole["reset"]
    policies = [(found.get("r", 0), found["t"]) for found in map(_parameters, text.split(",")) if "t" in found]
    return _of_spent(policies)


def _parameters(text: str) -> dict[str, float]:
    return {name: float(value) for name, value in _PARAMETER.findall(text)}


def _of_spent(found: list[tuple[float, float]]) -> float | None:
    """
    From (what remains, seconds) of several limits: the longest of those that are spent.

    If none is, the shortest: the one that denied is not known, and a long pause would stop the whole fleet.
    """
    spent = [seconds for remaining, seconds in found if remaining <= 0]
    if spent:
        return max(spent)
    return min((seconds for _, seconds in found), default=None)


def _reset(name: str) -> Callable[[Any, float], float | None]:
    """Seconds from now; or the instant, in seconds or milliseconds since 1970."""

    def read(headers: Any, now: float) -> float | None:
        number = _number(_header(headers, name))
        if number is None or number < _SMALLEST_INSTANT:
            return number
        return (number / 1000 if number >= _SMALLEST_IN_MILLISECONDS else number) - now

    return read


def _of_requests_and_tokens(headers: Any, now: float) -> float | None:
    found: list[tuple[float, float]] = []
    for what in ("requests", "tokens"):
        seconds = _duration(_header(headers, f"X-RateLimit-Reset-{what.capitalize()}"))
        if seconds is not None:
            remaining = _number(_header(headers, f"X-RateLimit-Remaining-{what.capitalize()}"))
            found.append((0.0 if remaining is None else remaining, seconds))
    return _of_spent(found)


def _duration(text: str) -> float | None:
    """A duration like 7s, 6m0s, 1h2m3.5s or 20ms."""
    text = text.strip()
    if _DURATION.fullmatch(text) is None:
        return None
    return sum(float(number) * _UNIT_S[unit] for number, unit in _PART.findall(text))


_DIALECTS: tuple[Callable[[Any, float], float | None], ...] = (
    _retry_after_ms,  # Azure OpenAI, and the client of OpenAI, which reads it first: as Retry-After, but finer
    _retry_after,  # RFC 9110, section 10.2.3
    _rate_limit,  # draft-ietf-httpapi-ratelimit-headers: limit=, remaining=, reset= in -07; "name";r=;t= since -08
    _reset("RateLimit-Reset"),  # the same draft, up to -06
    _reset("X-RateLimit-Reset"),  # GitHub and many others: an instant; others: seconds
    _reset("X-Rate-Limit-Reset"),  # the same with another hyphen
    _of_requests_and_tokens,  # OpenAI: x-ratelimit-reset-requests, x-ratelimit-reset-tokens
)
"""Every way to say when to come back that is read, in their order. Each takes the headers, and what time it is."""


def _rate_limited(retry_after: float, limit: Limit | str | None) -> RateLimited:
    return RateLimited(retry_after, limit=limit)
