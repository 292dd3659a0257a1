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
    from throttlekit._engine.response_headers import Said

__all__ = ["LONGEST_BY_RESPONSE", "LONGEST_PAUSE", "RateLimited", "read_response"]

LONGEST_PAUSE = 366 * 86_400.0
_DEFAULT_PAUSE = 30.0
LONGEST_BY_RESPONSE = 3600.0

_log = logging.getLogger("throttlekit")
_unreadable = Every()


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
            limits but those of concurrency; those of them with `adapt=ByLatency(…)` have fewer slots all the same.

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
        super().__init__(seconds)  # some frameworks build it again from these
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
        Read when to come back from a response of requests, httpx, aiohttp, urllib, or whatever has `.headers`.

        Retry-After counts first, then the resets of the other dialects that docs/limit-429.md lists, in their order.
        Dates and instants are read against the response's own Date, so a clock that is off here does no harm. What
        cannot be read, is negative or lies in the past is as if it were not there.

        Args:
            limit: As for `RateLimited`.
            default: Seconds, if the response does not say.
            longest: At most so many seconds: a pause stops the whole fleet.
        """
        seconds = read_response(response).wait
        return cls(min(longest, LONGEST_PAUSE, default if seconds is None else seconds), limit=limit)


def read_response(response: Any) -> Said:
    """What *response* says now. Headers that cannot be read are logged, once in 30 seconds."""
    from throttlekit._engine.response_headers import said_by  # not for those who never read a response

    said = said_by(response, time.time())
    if said.unreadable and _unreadable.due():
        _log.info("A response has headers about rate limits that cannot be read: %s.", ", ".join(said.unreadable))
    return said


def _rate_limited(retry_after: float, limit: Limit | str | None) -> RateLimited:
    return RateLimited(retry_after, limit=limit)
