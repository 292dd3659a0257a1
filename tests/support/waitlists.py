"""Jobs on waitlists, like the jobs of an adapter."""

from __future__ import annotations

from typing import Any

from throttlekit import Decision, Job, Limit, Limiter
from throttlekit._core.answer import Waited
from throttlekit._engine.call import Delivery, Waiting
from throttlekit._engine.waker import Waker

__all__ = ["ask", "held"]


def held(limiter: Limiter) -> Waker[str]:
    """Return a waker that holds waiting jobs in this process. It has no free thread, so woken jobs do not start."""
    return limiter.make_waker(lambda: 0, lambda id, item: None)


def ask(
    limiter: Limiter, waker: Waker[str], *limits: Limit, job: Job, waited_s: float = 0.0, **delivery: Any
) -> Decision:
    """
    Decide *job*. If it is denied, it waits on a waitlist, and *waker* holds it.

    Args:
        waited_s: For how many seconds the job has already waited, according to its process.
    """
    if waited_s:
        waker.hold(job.id, job.id, 3_600_000_000, Waited(round(waited_s * 1_000_000), 1, None))
    return limiter.acquire(*limits, job=job, delivery=Delivery(waits=Waiting(waker, job.id), **delivery))
