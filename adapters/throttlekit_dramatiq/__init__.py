"""throttlekit for Dramatiq: `broker.add_middleware(Throttle(limiter))`, `@dramatiq.actor(throttle=[limit])`."""

from throttlekit.adapter import installed_by as _installed_by
from throttlekit.errors import WaitedTooLong

with _installed_by("throttlekit-jobs[dramatiq]"):
    from throttlekit_dramatiq._errors import DeferFailed
    from throttlekit_dramatiq._middleware import Throttle

__all__ = ["DeferFailed", "Throttle", "WaitedTooLong"]
