"""The parts of RQ's internals that throttlekit uses: names in Redis, and the two ways to end a denied job."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from rq.intermediate_queue import IntermediateQueue
from rq.job import JobStatus, Retry, get_current_job
from rq.queue import Queue
from rq.registry import ScheduledJobRegistry
from rq.scheduler import SCHEDULER_LOCKING_KEY_TEMPLATE
from rq.utils import utcformat
from rq.worker import BaseWorker

__all__ = [
    "Denied", "Refused", "created_at", "current_job", "end_with", "fail_with", "intermediate_key", "lock_key",
    "mark_denied", "scheduled_key", "untyped", "worker_key",
]  # fmt: skip


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


def lock_key(queue: str) -> str:
    """Return the key of the lock that RQ's scheduler holds for *queue*."""
    return SCHEDULER_LOCKING_KEY_TEMPLATE % queue


def scheduled_key(queue: str) -> str:
    """Return the key of the sorted set of scheduled jobs of *queue*: score = seconds since 1970 to enqueue them."""
    return ScheduledJobRegistry.key_template.format(queue)


def intermediate_key(queue: str) -> str:
    """Return the key of the list of jobs of *queue* that a worker has taken but not started."""
    return str(IntermediateQueue.get_intermediate_queue_key(f"{Queue.redis_queue_namespace_prefix}{queue}"))


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


def end_with(job: Any, write: Callable[[Any], None]) -> Denied:
    """Return a `Denied`, for which the worker calls *write* in the transaction that would handle a `Retry`."""

    def _handle_retry_result(queue: Any = None, pipeline: Any = None, *args: Any, **kwargs: Any) -> int:
        write(pipeline)
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


def mark_denied(job: Any, *, queued: bool) -> None:
    """Set the status in the object of a running job that is put back by the transaction at its end."""
    job._status = JobStatus.QUEUED if queued else JobStatus.SCHEDULED
