"""One limit, held across a whole fleet of job workers and across frameworks."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
    from throttlekit.aio import AsyncLimiter
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

# A name is imported when it is asked for: nobody pays for a limiter, an event loop or an algorithm that is not used.
_WHERE = {
    "_core.concurrency": ("Concurrency",),
    "_core.decision": ("Decision",),
    "_core.fixed_window": ("FixedWindow",),
    "_core.job": ("Job",),
    "_core.limits": ("Limit",),
    "_core.sliding_log": ("SlidingLog",),
    "_core.sliding_window": ("SlidingWindow",),
    "_core.token_bucket": ("LeakyBucket", "TokenBucket"),
    "_current": ("current",),
    "_delivery": ("Delivery",),
    "_responses": ("RateLimited",),
    "aio": ("AsyncLimiter",),
    "control": ("Control",),
    "errors": ("ConfigurationError", "CostExceedsLimit", "LeaseLost", "StoreUnavailable", "ThrottleError"),
    "hookspecs": ("hookimpl",),
    "limiter": ("Limiter",),
}


def __getattr__(name: str) -> object:
    for module, names in _WHERE.items():
        if name in names:
            found: object = getattr(import_module(f"{__name__}.{module}"), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
