"""
Every error of throttlekit.

    ThrottleError
    ├── ConfigurationError       also a ValueError: a value that can never work; fix the code
    │   └── CostExceedsLimit     a cost that the limit can never admit; carries .cost, .limit, .most, .remedy
    ├── StoreUnavailable         no usable answer from the store; the original error is __cause__; carries .part,
    │                            .retry_after, .called
    ├── WaitedTooLong            a job was denied past its max_wait or max_deferrals; carries .limit, .reason
    ├── LeaseLost                a job still runs, without its slot of a concurrency limit
    └── RateLimited              for a job's body to raise after a 429 of the partner; carries .retry_after, .limit

`RateLimited` is in throttlekit/_engine/rate_limited.py, because it also reads HTTP responses.

A denial is a value (a `Decision`), never an error. Errors have fields, and their messages contain the remedy.
"""

from __future__ import annotations

__all__ = [
    "ConfigurationError",
    "CostExceedsLimit",
    "LeaseLost",
    "StoreUnavailable",
    "ThrottleError",
    "WaitedTooLong",
]

_LONGEST_SHOWN_BITS = 100  # some 30 digits; of a longer number, a text has the size alone


class ThrottleError(Exception):
    """The base of every error that throttlekit raises."""


class ConfigurationError(ThrottleError, ValueError):
    """A value can never work. The message names the value and a valid one."""


class CostExceedsLimit(ConfigurationError):
    """
    A cost that its limit can never admit, however long the job waits.

    Celery's result backend recreates the error from its text alone. Then the attributes are not known: 0 and "".

    Attributes:
        cost: The units requested.
        limit: The name of the limit.
        most: The greatest cost that the limit can admit.
        remedy: The change of the limit that would admit the cost; "" if only a lower cost helps.
    """

    def __init__(self, *text: str, cost: int = 0, limit: str = "", most: int = 0, remedy: str = "") -> None:
        shown, instead = f"{cost}", f", or {remedy or f'let {cost} pass at once'}"
        if cost.bit_length() > _LONGEST_SHOWN_BITS:
            shown, instead = f"about 10^{cost.bit_length() * 30_103 // 100_000}", ""
        made = (
            f"limit {limit!r} can never admit a cost of {shown}: at most {most} can pass at once. "
            f"Lower the cost{instead}."
        )
        super().__init__(*(text or (made,)))
        self.cost = cost
        self.limit = limit
        self.most = most
        self.remedy = remedy


class StoreUnavailable(ThrottleError):
    """
    The store gave no usable answer in time. It is unknown whether it charged anything. The call counts as not granted.

    The error's text shows no host, no user and no password. Its `__cause__`, the client's own error, and a traceback
    may show a host and a port.

    Attributes:
        part: The part of the store that failed, as the store names it; "" for the whole store; None when the store is
            up but rejected this command.
        retry_after: Seconds after which to call the store again.
        called: Whether the store was called. During an outage most calls fail at once, without a round trip.
        server: The server that was called, for logs and operators: host, port and database, without a user or a
            password; "" if not known.
    """

    server: str = ""

    def __init__(self, message: str, *, part: str | None = "", retry_after: float = 1.0, called: bool = True) -> None:
        super().__init__(message)
        self.part = part
        self.retry_after = retry_after
        self.called = called


class WaitedTooLong(ThrottleError):
    """
    A job was denied for longer than its max_wait, more often than its max_deferrals, or by a full queue; or a caller
    waited for longer than its *timeout*.

    Increase the limit or the longest wait, or enqueue the job again later.

    Attributes:
        limit: The name of the limit that denied the job last; None if not known.
        reason: The reason of that denial, as `Decision.reason` gives it; None if not known.
    """

    def __init__(self, *args: object, limit: str | None = None, reason: str | None = None) -> None:
        super().__init__(*args)
        self.limit = limit
        self.reason = reason


class LeaseLost(ThrottleError):
    """
    A job still runs, but another job has, or may have, its slot of a concurrency limit.

    End the body, or accept that one job too many runs. See `throttlekit.current()`. If this happens often, increase the
    limit's lease=.
    """
