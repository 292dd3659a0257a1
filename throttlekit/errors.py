"""
Every error of throttlekit.

    ThrottleError
    ├── ConfigurationError       what was asked for can never work: fix the code
    │   └── CostExceedsLimit     also a ValueError: this cost can never be admitted
    └── StoreUnavailable         the store did not answer; the original error is __cause__

"No" is a value (a `Decision`), never an error. Errors carry fields and say what to do.
"""

from __future__ import annotations

__all__ = [
    "ConfigurationError",
    "CostExceedsLimit",
    "StoreUnavailable",
    "ThrottleError",
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
    """

    def __init__(self, *, cost: int, limit: str, most: int) -> None:
        super().__init__(
            f"limit {limit!r} can never admit a cost of {cost}: its burst is {most}. "
            f"Lower the cost, or raise the burst to at least {cost}."
        )
        self.cost = cost
        self.limit = limit
        self.most = most

    def __reduce__(self) -> tuple[object, ...]:
        # Exception would be made again from its text alone.
        return _cost_exceeds_limit, (self.cost, self.limit, self.most), self.__dict__


class StoreUnavailable(ThrottleError):
    """The store gave no usable answer in time. The answer is unknown: it is never taken for a grant."""


def _cost_exceeds_limit(cost: int, limit: str, most: int) -> CostExceedsLimit:
    return CostExceedsLimit(cost=cost, limit=limit, most=most)
