"""`RateLimited`: the error that a body raises after a 429."""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from throttlekit._core.limit.base import Limit
from throttlekit._util.log_limiter import Every
from throttlekit.errors import ConfigurationError, ThrottleError

if TYPE_CHECKING:
    from throttlekit._engine.response_headers import ReportedLimits

__all__ = ["LONGEST_BY_RESPONSE", "LONGEST_PAUSE", "RateLimited", "read_response"]

LONGEST_PAUSE = 366 * 86_400.0
_DEFAULT_PAUSE = 30.0
LONGEST_BY_RESPONSE = 3600.0

_log = logging.getLogger("throttlekit")
_unreadable = Every()


class RateLimited(ThrottleError):
    """
    The body of a throttled job raises this after the partner has answered 429, or 503 with Retry-After.

    Then the key that the job was counted under is paused for *retry_after* in the whole fleet. A longer pause that is
    in force remains. No burst follows the pause, because units count as used evenly until its end. The job is deferred
    until the end of the pause and runs again, which does not count as a retry. The job's `max_wait` limits how often
    that may happen. In a job without limits, this is an error like any other.

    Args:
        retry_after: Seconds, or a timedelta, until the partner accepts requests again. Default: 30 seconds.
        limit: The limit of the job that is paused, or its name. Default: the job's `throttle_on_429`, or all of its
            limits except concurrency limits. If the job has no such limit, the default applies. By default,
            `adapt=ByLatency(…)` also reduces the slots of concurrency limits.

    Raises:
        ConfigurationError: *retry_after* is not a number of seconds from 0 to 366 days, or *limit* is neither a limit
            nor a name.
    """

    def __init__(self, retry_after: float | timedelta = _DEFAULT_PAUSE, *, limit: Limit | str | None = None) -> None:
        seconds = retry_after.total_seconds() if isinstance(retry_after, timedelta) else retry_after
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds <= LONGEST_PAUSE:
            raise ConfigurationError(
                f"retry_after must be a number of seconds from 0 to 366 days, or a timedelta, not {retry_after!r}; "
                "for a response, write RateLimited.from_response(response)"
            )
        if limit is not None and not isinstance(limit, (Limit, str)):
            raise ConfigurationError(f"limit must be a limit of the job, or its name, not {limit!r}")
        super().__init__(seconds)  # some frameworks rebuild the error from these arguments
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
        longest: float = LONGEST_BY_RESPONSE,
    ) -> RateLimited:
        """
        Make the error from a response of requests, httpx, aiohttp or urllib, or any object with `.headers`.

        The retry time is that of Retry-After, or of a header with the same meaning. Otherwise it is the longest reset
        of the limits that have no units left, or the shortest reset if all have units left. Dates are read relative to
        the response's own Date, so a wrong local clock does no harm. A value that is unreadable, negative or in the
        past is ignored. If *response* is no response, *default* is used.

        Args:
            limit: As for `RateLimited`.
            default: Seconds to wait if the response does not report a time.
            longest: The most seconds to wait. It has a bound because a pause stops the whole fleet.
        """
        seconds = read_response(response).wait
        return cls(min(longest, LONGEST_PAUSE, default if seconds is None else seconds), limit=limit)


def read_response(response: Any) -> ReportedLimits:
    """Read the limits that *response* reports. Unreadable headers are logged, at most once in 30 seconds."""
    from throttlekit._engine.response_headers import parse_response  # only programs that read responses need it

    reported = parse_response(response, time.time())
    if reported.unreadable and _unreadable.due():
        _log.info("A response has headers about rate limits that cannot be read: %s.", ", ".join(reported.unreadable))
    return reported


def _rate_limited(retry_after: float, limit: Limit | str | None) -> RateLimited:
    return RateLimited(retry_after, limit=limit)
