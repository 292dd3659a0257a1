"""What the `celery worker` of `support.throughput.run` runs."""

from __future__ import annotations

from celery import Celery, signals

from support.throughput.run import AN_INCR, LIMIT, WITHOUT_THROTTLEKIT, ask, mark, settings
from throttlekit import Limiter
from throttlekit_celery import install

_told = settings()
app = Celery("throughput", broker=_told["broker"])
app.conf.update(task_default_queue=_told["queue"], task_ignore_result=True, worker_hijack_root_logger=False)
if _told["variant"] not in WITHOUT_THROTTLEKIT:
    install(app, Limiter(_told["store"]))
elif _told["variant"] == AN_INCR:
    signals.task_received.connect(lambda **_: ask(), weak=False)  # in the main process, where limits are checked
_options = {"throttle": [LIMIT]} if _told["variant"] == "limit" else {}


@app.task(name="job", **_options)
def job(index: int) -> None:
    """Nothing."""
    mark(index, asks=False)
