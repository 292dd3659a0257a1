"""What a decision was, for those who count them."""

from __future__ import annotations

import time
from collections.abc import Sequence

from throttlekit._asked import Asked
from throttlekit._core.acquire import Verdict
from throttlekit._core.decision import Decision
from throttlekit._core.job import Job
from throttlekit._waited import Waited
from throttlekit.errors import StoreUnavailable
from throttlekit.hookspecs import Decided

__all__ = ["decided_of"]


def decided_of(
    decision: Decision,
    answer: Verdict | StoreUnavailable,
    asked: Sequence[Asked],
    job: Job | None,
    waited: Waited,
    began: float,
) -> Decided:
    """
    The event that tells of *decision*.

    Args:
        answer: What came of the last question: of those that were waited out in place only the last is told.
        waited: The job's, this denial included.
        began: When it was asked, by `time.perf_counter`.
    """
    took: float | None = time.perf_counter() - began
    limits = tuple([each.limit for each in asked])
    if isinstance(answer, StoreUnavailable):
        return Decided(decision, limits, (), job, waited.deferrals, 0.0, 0.0, took if answer.asked else None)
    uses, now_us = answer.uses, answer.now_us
    for limit, use in zip(limits, uses, strict=True):
        if use is not None and limit.scope != "process":
            break
    else:
        took = None
    since = waited.seconds(now_us) if waited.since_us else 0.0
    return Decided(decision, limits, uses, job, waited.deferrals, since, (answer.slot_us - now_us) / 1_000_000, took)
