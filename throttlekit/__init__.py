"""One limit, held across a whole fleet of job workers and across frameworks."""

from throttlekit._core.decision import Decision
from throttlekit._core.job import Job
from throttlekit._core.limits import Limit, TokenBucket
from throttlekit._delivery import Delivery
from throttlekit.errors import (
    ConfigurationError,
    CostExceedsLimit,
    StoreUnavailable,
    ThrottleError,
)
from throttlekit.hookspecs import hookimpl
from throttlekit.limiter import Limiter

__all__ = [
    "ConfigurationError",
    "CostExceedsLimit",
    "Decision",
    "Delivery",
    "Job",
    "Limit",
    "Limiter",
    "StoreUnavailable",
    "ThrottleError",
    "TokenBucket",
    "hookimpl",
]
