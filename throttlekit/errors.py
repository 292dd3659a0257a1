"""
Every error of throttlekit.

    ThrottleError
    ├── ConfigurationError       what was asked for can never work: fix the code
    │   └── CostExceedsLimit     also a ValueError: this cost can never be admitted
    ├── StoreUnavailable         the store did not answer; the original error is __cause__
    ├── WaitedTooLong            a job was denied past its max_wait or max_deferrals
    ├── LeaseLost                a job runs on without its slot of a concurrency limit
    └── RateLimited              for bodies to raise: downstream said 429

`RateLimited` is in throttlekit/_engine/rate_limited.py, which reads the responses that it is made from.

"No" is a value (a `Decision`), never an error. Errors carry fields and say what to do.
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


class ThrottleError(Exception):
    """The base of every error that throttlekit raises."""


class ConfigurationError(ThrottleError, ValueError):
    """Something was declared that can never work. The message names the value and what would be right."""


class CostExceedsLimit(ConfigurationError):
    """
    A cost that its limit can never admit, however long the job waits.

    Attributes:
        cost: The units that were asked for.
        limit: The name of the limit.
        most: The greatest cost that the limit can admit.
        remedy: What would make room for it.
    """

    def __init__(self, *, cost: int, limit: str, most: int, remedy: str = "") -> None:
        super().__init__(
            f"limit {limit!r} can never admit a cost of {cost}: at most {most} can pass at once. "
            f"Lower the cost, or {remedy or f'let {cost} pass at once'}."
        )
        self.cost = cost
        self.limit = limit
        self.most = most
        self.remedy = remedy

    def __reduce__(self) -> tuple[object, ...]:
        # Exception would be made again from its text alone.
        return _cost_exceeds_limit, (self.cost, self.limit, self.most, self.remedy), self.__dict__


class StoreUnavailable(ThrottleError):
    """
    The store gave no usable answer in time. The answer is unknown: it is never taken for a grant.

    Attributes:
        part: What of the store does not answer: "" all of it, else a part, as the store names them. None: it answers,
            but not this question.
        rest: Seconds after which to ask again.
        asked: Whether it was asked. While it gives no answer most calls are not made.
    """

    def __init__(self, message: str, *, part: str | None = "", rest: float = 1.0, asked: bool = True) -> None:
        super().__init__(message)
        self.part = part
        self.rest = rest
        self.asked = asked


class WaitedTooLong(ThrottleError):
    """A job was denied for longer than its max_wait, more often than its max_deferrals, or by a queue that is full."""


class LeaseLost(ThrottleError):
    """A job runs on whose slot of a concurrency limit another has by now, or may have: see `throttlekit.current()`."""


def _cost_exceeds_limit(cost: int, limit: str, most: int, remedy: str) -> CostExceedsLimit:
    return CostExceedsLimit(cost=cost, limit=limit, most=most, remedy=remedy)
