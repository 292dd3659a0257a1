"""throttlekit for taskiq: `broker.add_middlewares(Throttle(limiter))`, `@broker.task(throttle=[limit])`."""

from throttlekit.errors import WaitedTooLong
from throttlekit_taskiq._middleware import Throttle

__all__ = ["Throttle", "WaitedTooLong"]
