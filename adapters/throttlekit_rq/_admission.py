"""Check the limits of a job, and act on the decision: run the job, put it back, fail it, or cancel it."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from throttlekit import Delivery, Job, Limiter
from throttlekit.adapter import (
    Deferred,
    Dropped,
    Every,
    Failed,
    JobOptions,
    Run,
    Throttling,
    Waiting,
    once_in_fleet,
)
from throttlekit.errors import WaitedTooLong
from throttlekit_rq._options import Declared, describe
from throttlekit_rq._received_429 import Received429
from throttlekit_rq._settings import limiter_for, settings
from throttlekit_rq._waiting import cancel, clear_deferral, is_first_to_log, read_expiry, read_record
from throttlekit_rq._wire import Record

__all__ = ["BY_RQ_SCHEDULER", "BY_WORKER", "Check", "Grant", "log_once"]

_LOG_EVERY = 30
_log = logging.getLogger("throttlekit.rq")
_memory_warning = Every(math.inf)


BY_RQ_SCHEDULER = Delivery(longest=600.0, lateness=2.1)
"""
Delivery by RQ's own scheduler. It checks once a second, and takes the jobs that were due at the last whole second. So
a job is up to two seconds late, and about half of all jobs are more than one second late.
"""

BY_WORKER = Delivery(longest=600.0, lateness=0.05)
"""
Delivery by a worker of throttlekit. It enqueues the jobs that it holds when the store wakes them. While it is idle, it
also enqueues due jobs that stock workers have put back.
"""


@dataclass(slots=True)
class Check:
    """
    The check of one job's limits, and the `throttlekit.adapter.Host` of its admission.

    Attributes:
        by: The delivery that enqueues the job again if it is denied.
        record: What denials have stored in the job.
        ends_at: The time at which the job's ttl ends, by the monotonic clock.
        limiter: The limiter that decides.

    Raises:
        ConfigurationError: The job names no limiter, and this process cannot create one.
    """

    rq_job: Any
    declared: Declared
    by: Delivery
    record: Record
    ends_at: float = math.inf
    limiter: Limiter = field(init=False)

    def __post_init__(self) -> None:
        self.limiter = self.declared.limiter or limiter_for(self.rq_job.connection)

    @classmethod
    def of(cls, job: Any, declared: Declared, by: Delivery) -> Check:
        """Return the check of *job*, whose record is read from RQ's Redis. Raises like the constructor."""
        record, lives = read_expiry(job, read_record(job))
        return cls(job, declared, by, record, time.monotonic() + lives)

    @property
    def lives(self) -> float:
        """The seconds until the job's ttl ends."""
        return self.ends_at - time.monotonic()

    @property
    def throttling(self) -> Throttling[Any]:
        """The admission of the job."""
        return Throttling(self.limiter, self, rules=settings().rules, log=_log)

    def options(self, message: Any) -> JobOptions:
        return self.declared.options

    def job(self, message: Any) -> Job:
        return describe(message)

    def delivery(self, message: Any, max_wait: float | None) -> Delivery:
        return settings().rules.delivery(self.by, max_wait, expires_in=self.lives)

    def admit(self, waiting: Waiting | None = None) -> Grant | Deferred | Failed | Dropped:
        """
        Request the units of the job. If it is admitted, remove the data of earlier denials from it. If its ttl has
        ended, it is removed from the waitlists without a request.

        Args:
            waiting: The job's way to wait if it is denied. If None, it is enqueued after the delay of its denial.
        """
        job = self.rq_job
        if self.limiter.in_memory and _memory_warning.due():
            _log.warning(
                "The limits of %s are kept in memory, where no other process sees them, and are lost when the "
                'work-horse ends. Name a store: Limiter("redis://…").',
                job.func_name,
            )
        if self.lives < 0:
            self.throttling.leave(job, waiting)
            return Deferred(0.0, None)
        outcome = self.throttling.admit(job, waiting)
        if not isinstance(outcome, Run):
            return outcome
        if waiting is not None:  # the body's process has no waker
            self.throttling.record_waited(job.id, waiting.waker.waited_of(job.id))
        try:
            clear_deferral(job, self.record)
        except BaseException:  # the job is checked again, and would be charged twice
            Grant(self, outcome).cancel()
            raise
        return Grant(self, outcome)

    def refuse(self, outcome: Failed | Dropped) -> Callable[..., None]:
        """
        Return the function that cancels the job, which takes the argument *pipeline* of `cancel`.

        Raises:
            WaitedTooLong: The job fails with this error. Its own `Retry` is cleared, because a retry would not help.
            ConfigurationError: The job fails with this error.
        """
        job = self.rq_job
        if isinstance(outcome, Dropped):
            clear_deferral(job, self.record)
            return partial(cancel, job)
        if not isinstance(outcome.error, WaitedTooLong):
            raise outcome.error
        clear_deferral(job, self.record)  # if a user requeues the job, it starts as a new job
        job.retries_left = None
        text = f"job {job.id}: {outcome.error}: raise the limit or the wait, or requeue it when there is room"
        raise WaitedTooLong(text, limit=outcome.error.limit, reason=outcome.error.reason)


@dataclass(slots=True)
class Grant:
    """
    An admitted job.

    Attributes:
        run: The units that the job was charged. Its decision is None if another process holds all slots.
        received: The pipe that reports a 429 to the worker. None in a stock worker.
        ended: Whether the body has run in this process, and its slots are released, or the job was refunded.
    """

    check: Check
    run: Run
    received: Received429 | None = None
    ended: bool = False

    def keep(self) -> None:
        """Renew the slots in this process until `release` is called: a spawned work-horse cannot renew them."""
        if self.run.decision is not None:
            self.check.limiter.keep(self.run.decision, lambda: None)

    def cancel(self) -> None:
        """Refund the job, whose body does not begin, unless it was refunded before. A wait before its grant goes on."""
        if self.run.decision is not None and not self.ended:
            self.ended = True  # first: after an interrupt, a second call would refund the job twice
            self.check.limiter.cancel(self.run.decision)
            self.check.throttling.return_position(self.run)

    def release(self) -> None:
        """Release the slots of this job, unless they were released before."""
        if self.run.decision is not None and not self.ended:
            self.check.limiter.release(self.run.decision)
            self.ended = True


def log_once(connection: Any) -> AbstractContextManager[None]:
    """Return a context in which only one work-horse of the fleet logs the denials of a limit, not each of them."""
    return once_in_fleet(lambda limit: is_first_to_log(connection, f"held-back:{limit}", _LOG_EVERY))
