"""RQ's own limit of jobs at work (`rate_limit=`, since RQ 3): a job that waits for one of ours holds no slot of it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

from rq.job import JobStatus

__all__ = ["cancelled_with", "give_slot_back", "has_rq_limit", "keeps_slot"]

_registry: Any = None
with suppress(ImportError):  # before RQ 3
    _registry = import_module("rq.rate_limit").RateLimitRegistry


def has_rq_limit(job: Any) -> bool:
    """Whether *job* was enqueued with RQ's `rate_limit=`."""
    return _registry is not None and bool(job.has_rate_limit)


def give_slot_back(job: Any, pipeline: Any) -> None:
    """
    In *pipeline*, the transaction that puts *job* back: its slot of RQ's goes to the next job that waits for one. It
    gets another when it is promoted: from RQ's scheduler, or in rq_promote.lua.
    """
    registry = _registry.from_job(job)
    pipeline.zrem(registry.allowed_key, job.id)
    registry.acquire_and_enqueue(job.rate_limit_concurrency, pipeline=pipeline)


def keeps_slot(job: Any) -> None:
    """
    RQ is to leave the slot of *job* alone after the transaction that puts it back: by then it may stand in its queue
    again, with a slot. RQ takes one from each job whose object it does not find queued or started.
    """
    job._status = JobStatus.QUEUED


@contextmanager
def cancelled_with(job: Any, pipeline: Any) -> Generator[None]:
    """Within, *job* can be cancelled in *pipeline*, which RQ refuses for one with a limit of RQ's."""
    if not has_rq_limit(job):
        yield
        return
    own, job.rate_limit_key = job.rate_limit_key, None
    try:
        yield
    finally:
        job.rate_limit_key = own
    give_slot_back(job, pipeline)
