"""A body that has heard "429": in the pool, where it ran, and on its way back to the worker's main process."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from throttlekit import ConfigurationError, Decision, Delivery, Job, Limiter
from throttlekit._engine.rate_limited import RateLimited
from throttlekit._engine.running import end
from throttlekit.adapter.options import WhenOver
from throttlekit.adapter.rate_limited import limited
from throttlekit_celery._host import Ignore
from throttlekit_celery._options import TaskLimits

__all__ = ["ON_429", "GoesBack", "hears", "job_of", "listener"]

ON_429 = "_throttlekit_on_429"
"""The attribute of the request of a body that runs under limits: what is called with its `RateLimited`."""

_log = logging.getLogger("throttlekit.celery")

_PANIC_DELAY = 1.0
_HEARS = "_throttlekit_hears"


class GoesBack(Ignore):  # type: ignore[misc]
    """
    Raised in the pool in place of a `RateLimited`: to Celery the task has no outcome.

    It carries what the main process needs to know of the denial.
    """

    def __init__(self, reason: Any, limit: str, delay: float, ticket: Mapping[str, Any] | None) -> None:
        super().__init__(reason, limit, delay, ticket)  # pyright: ignore[reportUnknownMemberType]
        self.reason: Any = reason
        self.limit = limit
        self.delay = delay
        self.ticket = ticket

    def denial(self, grant: Decision, limits: Any) -> Decision:
        """As a decision, of the task whose *grant* let it run."""
        limit = next((limit for limit in limits if limit.name == self.limit), grant.limit)
        return replace(
            grant, allowed=False, limit=limit, reason=self.reason, delay=self.delay, retry_after=self.delay,
            ticket=self.ticket, charged=(),
        )  # fmt: skip


def hears(task: Any) -> None:
    """Let *task* hear its body's `RateLimited` before Celery does: within `autoretry_for`, which might count it."""
    attribute = "_orig_run" if hasattr(task, "_orig_run") else "run"
    body = getattr(task, attribute)
    if hasattr(body, _HEARS):
        return

    @functools.wraps(body)
    def run(*args: Any, **kwargs: Any) -> Any:
        while True:
            try:
                return body(*args, **kwargs)
            except RateLimited as error:
                # A task that is called directly has a request of its own, without this.
                told: Callable[[RateLimited], None] | None = task.request.__dict__.get(ON_429)
                if told is None:
                    raise
                told(error)

    setattr(run, _HEARS, True)
    setattr(task, attribute, run)


def listener(
    limiter: Limiter, limits: TaskLimits, when_over: WhenOver, task: Any, receipt: Mapping[str, Any]
) -> Callable[[RateLimited], None]:
    """What a body's `RateLimited` does in the pool: the key is paused, and the task goes back to the main process."""

    def goes_back(error: RateLimited) -> None:
        job = replace(job_of(task), queue=receipt["queue"], ticket=receipt["waited"])
        longest, lateness, max_wait, max_deferrals = receipt["delivery"]
        delivery = Delivery(longest=longest, lateness=lateness, max_wait=max_wait, max_deferrals=max_deferrals)
        try:
            on_429 = limits.on_429_of(task)
            denial = limited(limiter, error, limits.of(task), job=job, delivery=delivery, release=end, on_429=on_429)
        except ConfigurationError:
            raise
        except Exception:
            _log.exception("The 429 that task %s met could not be told; it is deferred.", job.id)
            delay = min(delivery.longest, max(_PANIC_DELAY, error.retry_after))
            raise GoesBack("paused", "", delay, job.ticket) from None
        if denial.final and when_over == "run":
            raise error  # to run it once more, at once, would only ask downstream for more
        raise GoesBack(denial.reason, denial.limit.name, denial.delay, denial.ticket) from None

    return goes_back


def job_of(task: Any) -> Job:
    """The body of *task* that runs here, as a job."""
    request = task.request
    return Job(
        id=request.id,
        name=task.name,
        args=tuple(request.args or ()),
        kwargs=request.kwargs or {},
        function=task.run,
    )
