"""
The body's side, in the pool: what `throttlekit.current()` returns there, its slots, and its `RateLimited`.

The worker's main process admits a task and writes a receipt into its headers; the pool reads it here. A body that
raises `RateLimited` goes back to the main process, as `GoesBack`.
"""

from __future__ import annotations

import functools
from contextvars import ContextVar
from functools import partial
from typing import Any

from throttlekit import Delivery, Job, RateLimited, current
from throttlekit.adapter import (
    Failed,
    Run,
    Running,
    Throttling,
    begin_from_receipt,
    end,
    receipt,
    resume,
)
from throttlekit_celery._host import Ignore, job_of
from throttlekit_celery._options import TaskLimits

__all__ = ["LISTENER", "RECEIPT", "Bodies", "GoesBack", "listens", "receipt_of"]

RECEIPT = "throttlekit_receipt"
"""The header, between the main process and the pool only, with what a task has charged. A sender's is dropped."""

LISTENER = "_throttlekit_on_429"
"""The attribute of the request of a body that runs under limits: what is called with its `RateLimited`."""

_LISTENS = "_throttlekit_hears"

_outer: ContextVar[tuple[Running, ...]] = ContextVar("throttlekit_celery_outer", default=())
"""What was current before each task that runs here: a body may run others inside it, by `apply`."""


class GoesBack(Ignore):  # type: ignore[misc]
    """
    Raised in the pool in place of a `RateLimited`: to Celery the task has no outcome.

    Attributes:
        retry_after: As the body's error says.
        stored: Whether the pause of its limits is stored.
    """

    def __init__(self, retry_after: float, stored: bool) -> None:
        super().__init__(retry_after, stored)  # pyright: ignore[reportUnknownMemberType]
        self.retry_after = retry_after
        self.stored = stored


def receipt_of(run: Run) -> dict[str, Any]:
    """What the pool needs to know of a task that may run: what it charged."""
    charged: dict[str, Any] = {"charged": []} if run.decision is None else receipt(run.decision)
    return {**charged, "queue": run.job.queue}


def listens(task: Any) -> None:
    """Catch the `RateLimited` of *task*'s body before Celery does: within `autoretry_for`, which might count it."""
    attribute = "_orig_run" if hasattr(task, "_orig_run") else "run"
    body = getattr(task, attribute)
    if hasattr(body, _LISTENS):
        return

    @functools.wraps(body)
    def run(*args: Any, **kwargs: Any) -> Any:
        while True:
            try:
                return body(*args, **kwargs)
            except RateLimited as error:
                # A task that is called directly has a request of its own, without a listener.
                listener = task.request.__dict__.get(LISTENER)
                if listener is None:
                    raise
                listener(error)

    setattr(run, _LISTENS, True)
    setattr(task, attribute, run)


class Bodies:
    """Both ends of the bodies of one app's tasks."""

    def __init__(self, throttling: Throttling[Any], limits: TaskLimits) -> None:
        self._throttling = throttling
        self._limits = limits

    def before(self, task: Any = None, **_: Any) -> None:
        """Celery's signal `task_prerun`."""
        if not self._limits.limited(task):
            return
        request = task.request
        # Never from the headers: a sender may have written those.
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
                begin_from_receipt(self._throttling.limiter, receipt, job)

    def after(self, task: Any = None, state: Any = None, retval: Any = None, **_: Any) -> None:
        """Celery's signal `task_postrun`. Celery drops the request right after it, with its listener."""
        if not self._limits.limited(task):
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
        raise GoesBack(error.retry_after, stored) from None
