"""throttlekit for huey: `install(huey, limiter)`, and `@huey.task(throttle=[limit])`."""

from throttlekit.errors import WaitedTooLong
from throttlekit_huey._install import install

__all__ = ["WaitedTooLong", "install"]
