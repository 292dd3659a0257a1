"""throttlekit for taskiq: `broker.add_middlewares(Throttle(limiter))`, `@broker.task(throttle=[limit])`."""

from throttlekit.adapter import installed_by as _installed_by
from throttlekit.errors import WaitedTooLong

with _installed_by("throttlekit-jobs[taskiq]"):
    from throttlekit_taskiq._middleware import Throttle

__all__ = ["Throttle", "WaitedTooLong"]
