"""throttlekit for huey: `install(huey, limiter)`, and `@huey.task(throttle=[limit])`."""

from throttlekit.adapter import installed_by as _installed_by
from throttlekit.errors import WaitedTooLong

with _installed_by("throttlekit-jobs[huey]"):
    from throttlekit_huey._install import install

__all__ = ["WaitedTooLong", "install"]
