"""throttlekit for Celery: `install(app, limiter)`, `@app.task(throttle=[limit])`, `@throttled(limit)`."""

from throttlekit.adapter import installed_by as _installed_by
from throttlekit.errors import WaitedTooLong

with _installed_by("throttlekit-jobs[celery]"):
    from throttlekit_celery._decorator import throttled
    from throttlekit_celery._install import install

__all__ = ["WaitedTooLong", "install", "throttled"]
