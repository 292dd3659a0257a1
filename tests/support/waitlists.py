"""Jobs on waitlists, like the jobs of an adapter."""

from __future__ import annotations

import threading
from typing import Any

from support.waiting import wait_until
from throttlekit import Decision, Job, Limit, Limiter, TokenBucket
from throttlekit._core.answer import Caller, Requester, Waited
from throttlekit._core.storage_keys import bucket_name
from throttlekit._engine.call import Delivery, Waiting
from throttlekit._engine.waker import Waker
from throttlekit.stores import Correction, StoreClaim

__all__ = ["ask", "check_wake", "held"]


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


def check_wake(store: Any) -> None:
    """Check that a listener of *store* receives the wake of a waiting job when a unit is returned."""
    limit, received, listening = TokenBucket("woken", "1/h", burst=1), list[str](), threading.Event()
    claim = StoreClaim(bucket_name(limit.name, "", limit.fingerprint), limit.bind(1))
    end = store.listen("p", lambda _, wakes: received.extend(each.id for each in wakes), listening.set)
    assert listening.wait(20), "the store does not listen"
    for id in ("runs", "waits"):
        store.decide([claim], Requester(Caller.JOB, id, "p"))
    store.settle([Correction(claim.bucket, claim.algorithm, 0, -claim.algorithm.size)])
    wait_until(lambda: received == ["waits"], description="the job is woken")
    end()
    store.reset([claim.bucket])
