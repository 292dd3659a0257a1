"""One limit for all job workers of a fleet, in any framework."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from throttlekit._unlimited import watch_workers as _watch_workers

if TYPE_CHECKING:
    from throttlekit._core.algorithms.concurrency import Concurrency
    from throttlekit._core.algorithms.fixed_window import FixedWindow
    from throttlekit._core.algorithms.sliding_log import SlidingLog
    from throttlekit._core.algorithms.sliding_window import SlidingWindow
    from throttlekit._core.algorithms.token_bucket import LeakyBucket, TokenBucket
    from throttlekit._core.decision import Decision
    from throttlekit._core.job import Job
    from throttlekit._core.limit.adapt import Adapt, ByLatency
    from throttlekit._core.limit.base import Limit
    from throttlekit._core.limit.share import Share
    from throttlekit._engine.call import Delivery
    from throttlekit._engine.rate_limited import RateLimited
    from throttlekit._engine.running import Running, current
    from throttlekit.aio import AsyncLimiter
    from throttlekit.control import Control
    from throttlekit.errors import (
        ConfigurationError,
        CostExceedsLimit,
        LeaseLost,
        StoreUnavailable,
        ThrottleError,
        WaitedTooLong,
    )
    from throttlekit.hookspecs import hookimpl
    from throttlekit.limiter import Limiter

__all__ = [
    "Adapt",
    "AsyncLimiter",
    "ByLatency",
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
    "Running",
    "Share",
    "SlidingLog",
    "SlidingWindow",
    "StoreUnavailable",
    "ThrottleError",
    "TokenBucket",
    "WaitedTooLong",
    "current",
    "hookimpl",
]

# A name is imported at its first use, so a program does not import a limiter, event loop or algorithm needlessly.
_WHERE = {
    "_core.algorithms.concurrency": ("Concurrency",),
    "_core.decision": ("Decision",),
    "_core.algorithms.fixed_window": ("FixedWindow",),
    "_core.job": ("Job",),
    "_core.limit.adapt": ("Adapt", "ByLatency"),
    "_core.limit.base": ("Limit",),
    "_core.limit.share": ("Share",),
    "_core.algorithms.sliding_log": ("SlidingLog",),
    "_core.algorithms.sliding_window": ("SlidingWindow",),
    "_core.algorithms.token_bucket": ("LeakyBucket", "TokenBucket"),
    "_engine.running": ("Running", "current"),
    "_engine.call": ("Delivery",),
    "_engine.rate_limited": ("RateLimited",),
    "aio": ("AsyncLimiter",),
    "control": ("Control",),
    "errors": (
        "ConfigurationError",
        "CostExceedsLimit",
        "LeaseLost",
        "StoreUnavailable",
        "ThrottleError",
        "WaitedTooLong",
    ),
    "hookspecs": ("hookimpl",),
    "limiter": ("Limiter",),
}


def __getattr__(name: str) -> object:
    for module, names in _WHERE.items():
        if name in names:
            found: object = getattr(import_module(f"{__name__}.{module}"), name)
            globals()[name] = found
            if module.startswith("_core.algorithms."):
                _watch_workers()
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
