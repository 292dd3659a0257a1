"""throttlekit for Celery: `install(app, limiter)`, `@app.task(throttle=[limit])`, `@throttled(limit)`."""

from throttlekit.errors import WaitedTooLong
from throttlekit_celery._decorator import throttled
from throttlekit_celery._install import install

__all__ = ["WaitedTooLong", "install", "throttled"]
