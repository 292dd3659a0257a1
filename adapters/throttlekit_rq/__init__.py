"""throttlekit for RQ: `queue.enqueue(f, throttle=[limit])`, `@throttled(limit)`, and throttled workers."""

from throttlekit.adapter import installed_by as _installed_by
from throttlekit.errors import WaitedTooLong

with _installed_by("throttlekit-jobs[rq]"):
    from throttlekit_rq._decorator import throttled
    from throttlekit_rq._in_worker_process import run
    from throttlekit_rq._queue import ThrottledQueue
    from throttlekit_rq._settings import configure
    from throttlekit_rq._worker import ThrottledSimpleWorker, ThrottledSpawnWorker, ThrottledWorker, throttled_worker

__all__ = [
    "ThrottledQueue",
    "ThrottledSimpleWorker",
    "ThrottledSpawnWorker",
    "ThrottledWorker",
    "WaitedTooLong",
    "configure",
    "run",
    "throttled",
    "throttled_worker",
]
