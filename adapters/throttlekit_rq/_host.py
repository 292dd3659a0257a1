"""The parts of RQ's internals that throttlekit uses: names in Redis, and the two ways to end a denied job."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from importlib import import_module
from typing import Any

from rq.executions import ExecutionRegistry
from rq.intermediate_queue import IntermediateQueue
from rq.job import Retry, get_current_job
from rq.queue import Queue
from rq.registry import ScheduledJobRegistry, StartedJobRegistry
from rq.scheduler import SCHEDULER_LOCKING_KEY_TEMPLATE
from rq.utils import utcformat
from rq.worker import BaseWorker

__all__ = [
    "UNAVAILABLE",
    "Denied",
    "RedisError",
    "Refused",
    "cancel_in",
    "created_at",
    "current_job",
    "end_with",
    "executions_key",
    "fail_with",
    "give_slot_back",
    "has_rq_limit",
    "intermediate_key",
    "lock_key",
    "now_text",
    "queue_key",
    "scheduled_key",
    "started_key",
    "untyped",
    "worker_key",
]

_errors: Any = import_module(BaseWorker.__module__).redis.exceptions
UNAVAILABLE: tuple[type[Exception], ...] = (_errors.ConnectionError, _errors.TimeoutError)
"""The errors of calls to RQ's Redis after which RQ's worker waits and tries again; RQ 2 ends after a time-out."""

RedisError: type[Exception] = _errors.RedisError
"""Any error of calls to RQ's Redis. After one that is not in `UNAVAILABLE`, RQ's worker ends."""

_rq_limits: Any = None
with suppress(ImportError):  # the module exists since RQ 3
    _rq_limits = import_module("rq.rate_limit").RateLimitRegistry


def untyped(host: Any) -> Any:
    """Return *host* as Any: RQ's annotations omit type parameters, which strict type checkers reject."""
    return host


def current_job() -> Any:
    """Return the job that a worker runs in this thread; None outside of a job, or if the queue has `is_async=False`."""
    job: Any = get_current_job()
    return None if job is None or job.worker_name == "sync" else job


def created_at(job: Any) -> str:
    """Return the creation time of *job* as text, which distinguishes jobs with the same id."""
    return str(utcformat(job.created_at))


def now_text() -> str:
    """Return the time in the format of a job's `enqueued_at`."""
    return str(utcformat(datetime.now(timezone.utc)))


def lock_key(queue: str) -> str:
    """Return the key of the lock that RQ's scheduler holds for *queue*."""
    return SCHEDULER_LOCKING_KEY_TEMPLATE % queue


def scheduled_key(queue: str) -> str:
    """Return the key of the sorted set of scheduled jobs of *queue*: score = seconds since 1970 to enqueue them."""
    return ScheduledJobRegistry.key_template.format(queue)


def queue_key(queue: str) -> str:
    """Return the key of the list of the jobs of *queue*."""
    return f"{Queue.redis_queue_namespace_prefix}{queue}"


def intermediate_key(queue: str) -> str:
    """Return the key of the list of jobs of *queue* that a worker has taken but not started."""
    return str(IntermediateQueue.get_intermediate_queue_key(queue_key(queue)))


def executions_key(job_id: str) -> str:
    """Return the key of the sorted set of the executions of a job."""
    return ExecutionRegistry.key_template.format(job_id)


def started_key(queue: str) -> str:
    """Return the key of the sorted set of executions of *queue* that have begun: "<job's id>:<execution's id>"."""
    return StartedJobRegistry.key_template.format(queue)


def worker_key(name: str | None) -> str:
    """Return the key of the hash of the worker *name*."""
    return f"{BaseWorker.redis_worker_namespace_prefix}{name or ''}"


class Denied(Retry):
    """
    The return value of the function of a denied job.

    RQ's worker handles it like a `Retry`: in the transaction that ends the job's execution, it calls a method of the
    job object that `end_with` has replaced. So RQ stores no result and counts no retry.
    """

    def __init__(self) -> None:
        self.max = math.inf  # type: ignore[assignment]  # never used up
        self.intervals = [0]  # RQ before 2.8 calls the job only if this is 0
        self.enqueue_at_front = False


def end_with(job: Any, *writes: Callable[..., None]) -> Denied:
    """Return a `Denied`, for which the worker calls *writes* with the transaction, `pipeline`, that ends the job."""

    def _handle_retry_result(queue: Any = None, pipeline: Any = None, *args: Any, **kwargs: Any) -> int:
        for write in writes:
            write(pipeline=pipeline)
        return 1  # RQ 3 reads this as the interval

    job._handle_retry_result = _handle_retry_result
    return Denied()


class Refused:
    """The replacement of a popped job's `instance`: the job fails with *error* when its function would run."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        raise self._error


def fail_with(job: Any, error: BaseException) -> None:
    """Make *job*, which a worker has taken but not started, fail with *error* when it would run."""
    job._instance = Refused(error)


# RQ's own concurrency limit: a job that throttlekit denied holds none of its slots


def has_rq_limit(job: Any) -> bool:
    """Return whether *job* was enqueued with RQ's `rate_limit=`."""
    return _rq_limits is not None and bool(job.has_rate_limit)


def give_slot_back(job: Any, pipeline: Any) -> None:
    """
    Give the RQ slot of *job* to the next job that waits for one, in *pipeline*, the transaction that puts *job* back.
    When RQ's scheduler or rq_promote.lua enqueues *job*, it receives another slot.
    """
    registry = _rq_limits.from_job(job)
    pipeline.zrem(registry.allowed_key, job.id)
    registry.acquire_and_enqueue(job.rate_limit_concurrency, pipeline=pipeline)


def cancel_in(job: Any, pipeline: Any) -> None:
    """Cancel *job* in *pipeline*, which RQ itself does not allow for a job with RQ's own limit."""
    if not has_rq_limit(job):
        job.cancel(pipeline=pipeline)
        return
    own, job.rate_limit_key = job.rate_limit_key, None
    try:
        job.cancel(pipeline=pipeline)
    finally:
        job.rate_limit_key = own
    give_slot_back(job, pipeline)
