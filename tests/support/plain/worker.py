"""
The module of workers of any framework that run plain jobs with limits, configured by $TK_PLAIN: see
`support.plain.plan`.

`worker_jobs` of the plan's module returns a limiter, or None for workers without throttlekit, and the name, the body
and the limits of each job.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from support.plain.plan import Plan
from throttlekit import Limit

__all__ = ["app", "broker"]

_plan = Plan.read()
_limiter, _jobs = importlib.import_module(_plan.jobs).worker_jobs()


def _throttle(limits: Sequence[Limit]) -> dict[str, Any]:
    return {"throttle": limits} if _limiter is not None and limits else {}


def _dramatiq() -> Any:
    import dramatiq

    from support.dramatiq.workers import make_broker

    created = make_broker(_plan.broker_url)
    if _limiter is not None:
        from throttlekit_dramatiq import Throttle

        created.add_middleware(Throttle(_limiter))
    dramatiq.set_broker(created)
    for name, body, limits in _jobs:
        dramatiq.actor(body, actor_name=name, queue_name=_plan.queue, **_throttle(limits))
    return created


def _celery() -> Any:
    from celery import Celery, signals

    created = Celery("plain", broker=_plan.broker_url)
    created.conf.update(_plan.celery_conf())
    if _limiter is not None:
        from throttlekit_celery import install

        install(created, _limiter)
    for name, body, limits in _jobs:
        created.task(body, name=name, **_throttle(limits))
    signals.worker_ready.connect(lambda **_: print("ready for action", flush=True), weak=False)
    return created


def _huey() -> Any:
    from huey import RedisHuey

    created = RedisHuey(_plan.queue, url=_plan.broker_url, results=False)
    if _limiter is not None:
        from throttlekit_huey import install

        install(created, _limiter)
    for name, body, limits in _jobs:
        body.__module__ = __name__  # messages have this name
        created.task(name=name, **_throttle(limits))(body)
    return created


def _taskiq() -> Any:
    from support.taskiq.brokers import make_broker

    created = make_broker(_plan.form, _plan.broker_url, None, _plan.queue)  # type: ignore[arg-type]
    if _limiter is not None:
        from throttlekit_taskiq import Throttle

        created.add_middlewares(Throttle(_limiter))
    for name, body, limits in _jobs:
        created.task(name, **_throttle(limits))(body)
    return created


def _rq() -> None:
    """Make this module RQ's settings module, whose functions are the jobs. The jobs carry their limits."""
    if _limiter is not None:
        from throttlekit_rq import configure

        configure(_limiter)
    globals().update({name: body for name, body, _ in _jobs})


_FRAMEWORKS = {"celery": _celery, "dramatiq": _dramatiq, "huey": _huey, "rq": _rq, "taskiq": _taskiq}
app = broker = _FRAMEWORKS[_plan.framework]()
