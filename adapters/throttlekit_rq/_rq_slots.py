"""RQ's own concurrency limit (`rate_limit=`, since RQ 3): a job that throttlekit denied holds none of RQ's slots."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

from rq.job import JobStatus

__all__ = ["cancellable_in", "give_slot_back", "has_rq_limit", "skip_release"]

_registry: Any = None
with suppress(ImportError):  # the module exists since RQ 3
    _registry = import_module("rq.rate_limit").RateLimitRegistry


def has_rq_limit(job: Any) -> bool:
    """Return whether *job* was enqueued with RQ's `rate_limit=`."""
    return _registry is not None and bool(job.has_rate_limit)


def give_slot_back(job: Any, pipeline: Any) -> None:
    """
    Give the RQ slot of *job* to the next job that waits for one, in *pipeline*, the transaction that puts *job* back.
    When RQ's scheduler or rq_promote.lua enqueues *job*, it receives another slot.
    """
    registry = _registry.from_job(job)
    pipeline.zrem(registry.allowed_key, job.id)
    registry.acquire_and_enqueue(job.rate_limit_concurrency, pipeline=pipeline)


def skip_release(job: Any) -> None:
    """
    Prevent RQ from releasing the slot of *job* after the transaction that puts the job back: by then the job may be in
    its queue again, with a new slot. RQ releases the slot unless the job object has status "queued" or "started".
    """
    job._status = JobStatus.QUEUED


@contextmanager
def cancellable_in(job: Any, pipeline: Any) -> Generator[None]:
    """Allow *job* to be cancelled in *pipeline* in this context. RQ does not allow it for a job with RQ's own limit."""
    if not has_rq_limit(job):
        yield
        return
    own, job.rate_limit_key = job.rate_limit_key, None
    try:
        yield
    finally:
        job.rate_limit_key = own
    give_slot_back(job, pipeline)
