"""
The pool's side of a running body: `throttlekit.current()`, the slots that the body holds, and its `RateLimited`.

The worker's main process admits a task and writes a receipt into its headers. This module reads the receipt in the
pool. If the body raises `RateLimited`, the main process receives a `RunAgain` instead, and lets the task wait again.
"""

from __future__ import annotations

import functools
from contextvars import ContextVar
from functools import partial
from typing import Any

from throttlekit import Delivery, Job, RateLimited, current
from throttlekit.adapter import Failed, Run, Running, Throttling, begin_from_receipt, end, receipt, resume
from throttlekit_celery._host import Ignore, job_of
from throttlekit_celery._options import TaskLimits

__all__ = ["LISTENER", "RECEIPT", "Bodies", "RunAgain", "catch_rate_limited", "receipt_of"]

RECEIPT = "throttlekit_receipt"
"""
The header with the charges of a task. The main process sets it for the pool, and removes a header of the sender.
"""

LISTENER = "_throttlekit_on_429"
"""The attribute of a request with limits that holds the function for the body's `RateLimited`."""

_CATCHES = "_throttlekit_catches"

_outer: ContextVar[tuple[Running, ...]] = ContextVar("throttlekit_celery_outer", default=())
"""The outer values of `current()`, one for each running task, because a body may run other tasks with `apply`."""


class RunAgain(Ignore):  # type: ignore[misc]
    """
    Raised in the pool in place of `RateLimited`, so that Celery records no outcome for the task.

    Attributes:
        retry_after: The `retry_after` of the body's error.
        stored: Whether the pause of the task's limits is recorded in the store.
    """

    def __init__(self, retry_after: float, stored: bool) -> None:
        super().__init__(retry_after, stored)  # pyright: ignore[reportUnknownMemberType]
        self.retry_after = retry_after
        self.stored = stored


def receipt_of(run: Run) -> dict[str, Any]:
    """Return the receipt of an admitted task for the pool: its charges and its queue."""
    charged: dict[str, Any] = {"charged": []} if run.decision is None else receipt(run.decision)
    return {**charged, "queue": run.job.queue}


def catch_rate_limited(task: Any) -> bool:
    """
    Catch the `RateLimited` of *task*'s body before Celery's `autoretry_for` can count it as a failure. Return False if
    this function was called before for *task*.
    """
    attribute = "_orig_run" if hasattr(task, "_orig_run") else "run"
    body = getattr(task, attribute)
    if hasattr(body, _CATCHES):
        return False

    @functools.wraps(body)
    def run(*args: Any, **kwargs: Any) -> Any:
        if LISTENER in task.request.__dict__:
            current().start()
        while True:
            try:
                return body(*args, **kwargs)
            except RateLimited as error:
                # If the task was called directly, its request has no listener.
                listener = task.request.__dict__.get(LISTENER)
                if listener is None:
                    raise
                listener(error)

    setattr(run, _CATCHES, True)
    setattr(task, attribute, run)
    return True


class Bodies:
    """Receives the signals before and after the body of each task of one app."""

    def __init__(self, throttling: Throttling[Any], limits: TaskLimits) -> None:
        self._throttling = throttling
        self._limits = limits

    def on_prerun(self, task: Any) -> None:
        """Receive Celery's signal `task_prerun`."""
        if not self._limits.may_limit(task):
            return
        request = task.request
        # Read the attribute of the request, not a header, which the sender may have set.
        receipt: Any = request.__dict__.pop(RECEIPT, None)
        if request.is_eager:
            _outer.set((*_outer.get(), current()))
            return
        end()
        if _outer.get():
            _outer.set(())
        if receipt is not None:
            headers: dict[str, Any] = request.headers or {}
            headers.pop(RECEIPT, None)  # a retry of the body is charged again
            request.headers = headers or None
            job = job_of(task, request, queue=receipt["queue"])
            request.__dict__[LISTENER] = partial(self._rate_limited, task, job)
            if receipt["charged"]:
                # The job starts in `run`: tracing may open the task's span in a later receiver of this signal.
                begin_from_receipt(self._throttling.limiter, receipt, job, starts=False)

    def on_postrun(self, task: Any, state: str, retval: Any) -> None:
        """Receive Celery's signal `task_postrun`, after which Celery drops the request with its listener."""
        if not self._limits.may_limit(task):
            return
        error = retval if state != "SUCCESS" and isinstance(retval, BaseException) else None
        if outer := _outer.get():
            _outer.set(outer[:-1])
            if current() is not outer[-1]:
                end(error)
            resume(outer[-1])
        else:
            end(error)

    def _rate_limited(self, task: Any, job: Job, error: RateLimited) -> None:
        options = self._limits.of(task)
        run = Run(job, self._throttling.limits(options, job), None, Delivery(), options.on_429)
        if not run.limits:
            raise error
        stored = self._throttling.pause(run, error, release=partial(end, error))
        if isinstance(stored, Failed):
            raise stored.error
        raise RunAgain(error.retry_after, stored) from None
