"""Let eager tasks (`task_always_eager`), which run in the calling process, wait for their limits in that process."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from throttlekit import Delivery, Job, Limiter, RateLimited
from throttlekit.adapter import Deferred, Failed, JobOptions, Outcome, Run, Throttling, Waiting, WaitRules, begin, end
from throttlekit_celery._body import LISTENER
from throttlekit_celery._host import job_of
from throttlekit_celery._options import TaskLimits

__all__ = ["make_eager_wait"]

_log = logging.getLogger("throttlekit.celery")
_LEAST, _CHECK_EVERY = 0.01, 0.5


def make_eager_wait(limiter: Limiter, limits: TaskLimits) -> Callable[[Any], None]:
    """Return a function that changes a task of the app: if the task is eager, its body waits until it may begin."""
    throttling = Throttling(limiter, _EagerHost(), rules=WaitRules(), log=_log, noun="Task")

    def wait_if_eager(task: Any) -> None:
        body = task.run  # with `autoretry_for`, which would retry an error of the wait

        @functools.wraps(body)
        def run(*args: Any, **kwargs: Any) -> Any:
            request = _request_that_begins(task)
            if request is not None and (options := limits.of(task)).limits:
                _EagerTask(task, request, options).start(throttling)
            return body(*args, **kwargs)

        task.run = run

    return wait_if_eager


def _request_that_begins(task: Any) -> Any:
    """
    Return the eager request of *task* whose body begins now, or None if there is none.

    It is not the last request of *task* if the user's `__call__` calls `super().__call__`, which adds another request.
    So does a direct call of *task* in its own body.
    """
    request = next((each for each in reversed(task.request_stack.stack) if each.is_eager), None)
    return None if request is None or LISTENER in request.__dict__ else request


class _EagerTask:
    """One eager task. Its body may begin several times: once, and again after each 429."""

    def __init__(self, task: Any, request: Any, options: JobOptions) -> None:
        self.task = task
        self.request = request
        self.options = options
        self.woken = threading.Event()

    def start(self, throttling: Throttling[_EagerTask], outcome: Outcome | None = None) -> None:
        """Wait until the body may begin. After a 429, wait first as *outcome* says."""
        waits = Waiting(throttling.limiter.waker, self.woken.set)
        try:
            if outcome is not None:
                self._wait(outcome, throttling.limiter)
            while not isinstance(outcome := throttling.admit(self, waits), Run):
                self._wait(outcome, throttling.limiter)
        except BaseException:  # also an interrupt, such as the time limit of the task that calls this one
            throttling.leave(self, waits)
            raise
        waits.waker.done(outcome.job.id)
        if outcome.decision is not None:
            begin(throttling.limiter, outcome.decision, outcome.job)
        for request in (self.request, self.task.request):
            request.__dict__[LISTENER] = partial(self._start_again, throttling, outcome)

    def _start_again(self, throttling: Throttling[_EagerTask], run: Run, error: RateLimited) -> None:
        self.start(throttling, throttling.rate_limited(run, error, release=partial(end, error)))

    def _wait(self, outcome: Outcome, limiter: Limiter) -> None:
        if isinstance(outcome, Deferred):
            while not self.woken.wait(_CHECK_EVERY):
                with suppress(RuntimeError):  # the waker's thread could not start before
                    limiter.waker.begin()
            self.woken.clear()
        elif isinstance(outcome, Failed):
            if outcome.decision is None:
                raise outcome.error
            # A full queue has no time at which a job may join: try again when the queue may be shorter.
            time.sleep(max(outcome.decision.retry_after, _LEAST))


class _EagerHost:
    """Implements `throttlekit.adapter.Host` for eager tasks, which wait without a deadline."""

    def options(self, message: _EagerTask) -> JobOptions:
        return message.options

    def job(self, message: _EagerTask) -> Job:
        return job_of(message.task, message.request)

    def delivery(self, message: _EagerTask, max_wait: float | None) -> Delivery:
        return Delivery()
