"""Jobs that wait on waitlists, as those of an adapter do."""

from __future__ import annotations

from typing import Any

from throttlekit import Decision, Job, Limit, Limiter
from throttlekit._engine.call import Delivery, Waiting
from throttlekit._engine.waker import Waker

__all__ = ["ask", "held"]


def held(limiter: Limiter) -> Waker[str]:
    """What holds jobs that wait in this process. It has no free thread: a job that is woken stays where it is."""
    return limiter.make_waker(lambda: 0, lambda id, item: None)


def ask(limiter: Limiter, waker: Waker[str], *limits: Limit, job: Job, **delivery: Any) -> Decision:
    """Decide *job*. If it is denied, it waits on a waitlist, and *waker* holds it."""
    return limiter.acquire(*limits, job=job, delivery=Delivery(waits=Waiting(waker, job.id), **delivery))
