"""Tasks that run where they are called, without a worker (`task_always_eager`): they wait for their limits in place."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from throttlekit import Decision, Delivery, Job, Limit, Limiter
from throttlekit._engine.rate_limited import RateLimited
from throttlekit._engine.running import begin, end
from throttlekit.adapter.rate_limited import limited
from throttlekit_celery._options import TaskLimits
from throttlekit_celery._rate_limited import ON_429, job_of

__all__ = ["waits_in_place"]

_LEAST = 0.01
_DELIVERY = Delivery(lateness=0.01)


def waits_in_place(app: Any, limiter: Limiter, limits: TaskLimits) -> Callable[..., None]:
    """A receiver for Celery's signal `task_prerun` that returns when an eager task of *app* may run."""

    def receive(task: Any = None, **_: Any) -> None:
        if task.request.is_eager and task.app is app and (of_task := limits.of(task)):
            task.request.__dict__[ON_429] = _waits(limiter, of_task, job_of(task), limits.on_429_of(task))

    return receive


def _waits(limiter: Limiter, limits: tuple[Limit, ...], job: Job, on_429: Any) -> Callable[[RateLimited], None]:
    """Wait until *job* may begin; and what waits until it may begin once more, as it has heard "429"."""

    def wait(job: Job, denied: Decision | None) -> Job:
        while True:
            if denied is not None:
                job = replace(job, ticket=denied.ticket)
                # A full queue gives no delay: it is asked again when one more may wait.
                time.sleep(max(denied.retry_after, _LEAST) if denied.final else denied.delay)
            decision = limiter.acquire(*limits, job=job, delivery=_DELIVERY)
            if decision.allowed:
                begin(limiter, decision)
                return job
            denied = decision

    def once_more(error: RateLimited) -> None:
        nonlocal job
        denied = limited(limiter, error, limits, job=job, delivery=_DELIVERY, release=end, on_429=on_429)
        job = wait(job, denied)

    job = wait(job, None)
    return once_more
