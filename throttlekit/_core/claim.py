"""One limit's part of a request, as a store reads it."""

from __future__ import annotations

from dataclasses import dataclass

from throttlekit._core.algorithm import Algorithm

__all__ = ["CLASS", "CLASSES", "UNIT", "StoreClaim"]

UNIT = 1_000_000
"""The amount that one unit adds to the start tag of a tenant's next job, at weight 1."""

CLASS, CLASSES = 2**40, 16
"""The amount that a priority class adds to `StoreClaim.lead`, and the most classes that a limit may have."""


@dataclass(slots=True, eq=False)
class StoreClaim:
    """
    The units of one limit that a request takes, and the names under which the limit's state is stored.

    The limiter uses the same object again for the same request. So a claim is equal only to itself, and a store can
    cache the results that it computes for the object. Nothing changes a claim. It is not frozen only because the
    constructor would then take several times as long, and a claim is created for each job of a new key.

    Attributes:
        max_queue: The longest queue: a new job is refused if this many jobs wait. None if there is no limit.
        tenant: The tenant whose share of the limit the job takes; "" if the limit is not shared.
        step: The amount that the job adds to its tenant's start tag: cost / weight, in `UNIT`, rounded up; 0 if the
            limit is not shared.
        lead: The job's priority class, times `CLASS`: a job with a greater lead is ahead of one with a smaller lead.
    """

    bucket: str
    algorithm: Algorithm
    cost: int = 1
    max_queue: int | None = None
    tenant: str = ""
    step: int = 0
    lead: int = 0
