"""throttlekit for Dramatiq: `broker.add_middleware(Throttle(limiter))`, `@dramatiq.actor(throttle=[limit])`."""

from throttlekit.errors import WaitedTooLong
from throttlekit_dramatiq._errors import DeferFailed
from throttlekit_dramatiq._middleware import Throttle

__all__ = ["DeferFailed", "Throttle", "WaitedTooLong"]
