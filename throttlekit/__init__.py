"""One limit, held across a whole fleet of job workers and across frameworks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from throttlekit._core.concurrency import Concurrency
from throttlekit._core.decision import Decision
from throttlekit._core.fixed_window import FixedWindow
from throttlekit._core.job import Job
from throttlekit._core.limits import Limit
from throttlekit._core.sliding_log import SlidingLog
from throttlekit._core.sliding_window import SlidingWindow
from throttlekit._core.token_bucket import LeakyBucket, TokenBucket
from throttlekit._current import current
from throttlekit._delivery import Delivery
from throttlekit._responses import RateLimited
from throttlekit.control import Control
from throttlekit.errors import (
    ConfigurationError,
    CostExceedsLimit,
    LeaseLost,
    StoreUnavailable,
    ThrottleError,
)
from throttlekit.hookspecs import hookimpl
from throttlekit.limiter import Limiter

if TYPE_CHECKING:
    from throttlekit.aio import AsyncLimiter

__all__ = [
    "AsyncLimiter",
    "Concurrency",
    "ConfigurationError",
    "Control",
    "CostExceedsLimit",
    "Decision",
    "Delivery",
    "FixedWindow",
    "Job",
    "LeakyBucket",
    "LeaseLost",
    "Limit",
    "Limiter",
    "RateLimited",
    "SlidingLog",
    "SlidingWindow",
    "StoreUnavailable",
    "ThrottleError",
    "TokenBucket",
    "current",
    "hookimpl",
]


def __getattr__(name: str) -> object:
    if name == "AsyncLimiter":
        from throttlekit.aio import AsyncLimiter  # only those who have an event loop pay for asyncio

        return AsyncLimiter
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
