"""The whole adapter of the toy queue, with the public names of `throttlekit.adapter`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from support.toy.queue import Message, Plugin, Queue, Task
from throttlekit import Job, Limiter, RateLimited
from throttlekit.adapter import (
    Deferred,
    Delivery,
    Dropped,
    Failed,
    JobOptions,
    OnWaitedTooLong,
    Outcome,
    Run,
    Throttling,
    WaitRules,
    begin,
    check_limiter,
    end,
)

__all__ = ["Throttle"]


class Throttle(Plugin):
    """
    Applies limits to the tasks of a queue: `Queue(Throttle(Limiter("redis://…")))`.

    Args:
        limiter: The limiter that decides.
        max_wait, max_deferrals, on_waited_too_long: How long jobs may wait, and what happens afterwards.
    """

    def __init__(
        self,
        limiter: Limiter,
        *,
        max_wait: float | timedelta | None = None,
        max_deferrals: int | None = None,
        on_waited_too_long: OnWaitedTooLong = "fail",
    ) -> None:
        self._limiter = check_limiter(limiter, "Throttle takes a limiter: Throttle(Limiter(…))")
        self._rules = WaitRules.read(max_wait, max_deferrals, on_waited_too_long)
        log = logging.getLogger("throttlekit.toy")
        self._throttling = Throttling[Message](limiter, self, rules=self._rules, log=log)
        self._options: dict[str, JobOptions] = {}
        self.queue: Queue

    # 1. Declaration: read and check the users' options.

    def declare(self, task: Task) -> None:
        self._options[task.name] = JobOptions.declared(
            f"task {task.name!r}", task.options, limiter=self._limiter, function=task.function
        )

    def send(self, message: Message) -> None:
        """Store the limits of a message in it by value, as plain JSON data."""
        message.options.update(self._options[message.task.name].travelling(message.options, self.job(message)))

    # 2. The host: what `Throttling` needs to know about a message.

    def options(self, message: Message) -> JobOptions:
        return self._options[message.task.name].with_message(message.options)

    def job(self, message: Message) -> Job:
        task = message.task
        return Job(str(message.id), task.name, args=message.args, function=task.function)

    def delivery(self, message: Message, max_wait: float | None) -> Delivery:
        return self._rules.delivery(Delivery(longest=3600.0, lateness=0.02), max_wait)

    # 3. Admission: request the units, and act on one of four outcomes.

    def process(self, message: Message, run: Callable[[], None]) -> None:
        outcome = self._throttling.admit(message)
        if isinstance(outcome, Run):
            outcome = self._body(message, outcome, run)
        if isinstance(outcome, Deferred):
            self.queue.put(message, outcome.delay)
        elif isinstance(outcome, Dropped):
            message.result = ("dropped", None)
        elif isinstance(outcome, Failed):
            message.retries = message.task.retries  # a retry cannot help
            raise outcome.error

    # 4. The body: it holds leases, it may settle, and it may raise `RateLimited`.

    def _body(self, message: Message, granted: Run, run: Callable[[], None]) -> Outcome | None:
        if granted.decision is None:  # no limits
            run()
            return None
        begin(self._limiter, granted.decision, granted.job)
        error: BaseException | None = None
        try:
            run()
        except RateLimited as limited:
            outcome = self._throttling.rate_limited(granted, limited, release=partial(end, limited))
            if isinstance(outcome, Run):  # the job may not wait longer
                raise
            return outcome
        except BaseException as raised:
            error = raised
            raise
        finally:
            end(error)
        return None
