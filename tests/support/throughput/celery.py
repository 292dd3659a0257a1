"""What the `celery worker` of `support.throughput.run` runs."""

from __future__ import annotations

from celery import Celery

from support.throughput.run import LIMIT, WITHOUT_THROTTLEKIT, mark, settings
from throttlekit import Limiter
from throttlekit_celery import install

_told = settings()
app = Celery("throughput", broker=_told["broker"])
app.conf.update(task_default_queue=_told["queue"], task_ignore_result=True, worker_hijack_root_logger=False)
if _told["variant"] not in WITHOUT_THROTTLEKIT:
    install(app, Limiter(_told["store"]))
_options = {"throttle": [LIMIT]} if _told["variant"] == "limit" else {}


@app.task(name="job", **_options)
def job(index: int) -> None:
    """Nothing."""
    mark(index)
