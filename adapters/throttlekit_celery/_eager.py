"""Let eager tasks (`task_always_eager`), which run in the calling process, wait for their limits in that process."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from throttlekit import Delivery, Job, Limiter, RateLimited
from throttlekit.adapter import Deferred, Failed, JobOptions, Outcome, Run, Throttling, Waiting, WaitRules, begin, end
from throttlekit_celery._body import LISTENER, REFUSAL
from throttlekit_celery._host import job_of
from throttlekit_celery._options import TaskLimits

__all__ = ["make_eager_wait"]

_log = logging.getLogger("throttlekit.celery")
_LEAST, _CHECK_EVERY = 0.01, 0.5


def make_eager_wait(limiter: Limiter, limits: TaskLimits) -> Callable[[Any], None]:
    """Return a function that waits until a task of the app, if it is eager, may run."""
    throttling = Throttling(limiter, _EagerHost(), rules=WaitRules(), log=_log, noun="Task")

    def wait(task: Any) -> None:
        if task.request.is_eager and (options := limits.of(task)).limits:
            try:
                _EagerTask(task, options).start(throttling)
            except Exception as error:  # Celery calls this in a signal, whose errors it only logs
                task.request.__dict__[REFUSAL] = error

    return wait


class _EagerTask:
    """One eager task. Its body may begin several times: once, and again after each 429."""

    def __init__(self, task: Any, options: JobOptions) -> None:
        self.task = task
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
        self.task.request.__dict__[LISTENER] = partial(self._start_again, throttling, outcome)

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
        return job_of(message.task, message.task.request)

    def delivery(self, message: _EagerTask, max_wait: float | None) -> Delivery:
        return Delivery()
