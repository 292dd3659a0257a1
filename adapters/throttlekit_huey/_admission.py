"""Ask for each task between huey's own checks and its body, and conclude what was decided."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from throttlekit import ConfigurationError, Delivery, Limiter
from throttlekit.adapter import (
    Around,
    Deferred,
    Dropped,
    Failed,
    InlineWaits,
    Outcome,
    Run,
    Throttling,
    Ticket,
    WaitRules,
    lane_in,
    leaves_most,
)
from throttlekit_huey._host import abandon, is_over, run
from throttlekit_huey._options import FIELD, TICKET, Tasks, carried
from throttlekit_huey._schedule import Schedule, Taken

__all__ = ["Gate"]

_TAKEN = "_throttlekit_taken"
"""The attribute of a task that is in this worker's hand: its message."""
_SOON = 0.03
_log = logging.getLogger("throttlekit.huey")
_NEW = Delivery(lateness=0.1, early=0.015, held=True)
_RETURNING = replace(_NEW, inline=InlineWaits(0.05))


class _Ended(BaseException):
    """
    A body's 429, its context, has ended its run: no error of huey's, which would report it and run the task again.
    """

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome


def _end_run(outcome: Outcome) -> bool:
    raise _Ended(outcome)


class Gate:
    """
    What a huey does in place of its `dequeue`, `execute` and `read_schedule`.

    Args:
        texts: As for `Schedule`.
    """

    def __init__(self, huey: Any, limiter: Limiter, tasks: Tasks, rules: WaitRules, texts: Any) -> None:
        self._huey, self._limiter, self._tasks, self._rules, self._texts = huey, limiter, tasks, rules, texts
        self.throttling = Throttling[Any](limiter, self, rules=rules, log=_log, noun="Task")
        self.options, self.job = tasks.options, tasks.job
        self._execute, self._read_schedule = huey.execute, huey.read_schedule

    @cached_property
    def _schedule(self) -> Schedule:
        return Schedule(self._huey.storage, self._texts)

    def delivery(self, message: Any, max_wait: float | None) -> Delivery:
        framework = _RETURNING if carried(message).get(TICKET) else _NEW
        if message.expires_resolved:
            left = message.expires_resolved - self._huey._get_timestamp()
            framework = replace(framework, expires_in=left.total_seconds())
        return self._rules.delivery(framework, max_wait)

    def dequeue(self) -> Any:
        taken = self._schedule.next(float(self._huey.storage.read_timeout))
        if taken is None:
            return None
        limited = False
        try:
            task = self._huey.deserialize_task(taken.message)
            limited = self._is_limited(task)
        finally:
            if not limited:
                self._schedule.let_go(taken)
        setattr(task, _TAKEN, taken)
        return task

    def read_schedule(self, timestamp: Any = None) -> Any:
        now = self._huey._get_timestamp() if timestamp is None else timestamp
        self._schedule.keep(now)
        return self._read_schedule(now)

    def execute(self, task: Any, timestamp: Any = None) -> Any:
        taken: Taken | None = task.__dict__.pop(_TAKEN, None)
        if self._huey.immediate or not self._is_limited(task):
            self._hide_field(task)
            return self._execute(task, timestamp)
        taken = taken or Taken(self._huey.serialize_task(task))
        now = self._huey._get_timestamp() if timestamp is None else timestamp
        if is_over(self._huey, task, now):
            self.throttling.leave(task)
            self._execute(task, now)
            self._schedule.let_go(taken)
            return None
        outcome = self.throttling.admit(task)
        if not isinstance(outcome, Run):
            return self._follow(task, outcome, taken)
        mine = False
        try:
            mine = self._schedule.let_go(taken)
        finally:
            if outcome.decision is not None and not mine:
                self._limiter.cancel(outcome.decision)
        return self._run(task, outcome, now, taken) if mine else None

    def _is_limited(self, task: Any) -> bool:
        try:
            return self.throttling.concerns(self.options(task))
        except ConfigurationError:
            return True  # it fails where it is asked for

    def _run(self, task: Any, granted: Run, now: Any, taken: Taken) -> Any:
        self._wake_next(task, granted)
        task.kwargs = {**task.kwargs, FIELD: {k: v for k, v in carried(task).items() if k != TICKET}}
        if not carried(task):
            del task.kwargs[FIELD]
        begun: list[bool] = []
        self._hide_field(task, partial(self._body, granted, begun))
        try:
            return run(self._huey, task, now)
        except _Ended as ended:
            self._huey._run_post_execute(task, None, ended.__context__)
            # As it came: its body may have changed its arguments.
            return self._follow(self._huey.deserialize_task(taken.message), ended.outcome, Taken(taken.message))
        finally:
            if not begun and granted.decision is not None:  # a hook has cancelled it
                self._limiter.cancel(granted.decision)
            for lane in granted.lanes:
                self._schedule.wake(lane)

    def _hide_field(self, task: Any, around: Callable[[Callable[[], Any]], Any] | None = None) -> None:
        """Keep what the message carries for us from the body of *task*, which runs *around* if that is given."""
        execute = task.execute

        def body() -> Any:
            field = task.kwargs.pop(FIELD, None)
            try:
                return around(execute) if around else execute()
            finally:
                if field is not None:
                    task.kwargs[FIELD] = field

        if around or FIELD in task.kwargs:
            task.execute = body

    def _body(self, granted: Run, begun: list[bool], execute: Callable[[], Any]) -> Any:
        begun.append(True)
        with Around(self.throttling, granted, _end_run):
            return execute()

    def _follow(self, task: Any, outcome: Outcome, taken: Taken) -> None:
        if isinstance(outcome, Deferred):
            before = carried(task).get(TICKET)
            if outcome.ticket is not None:
                task.kwargs[FIELD] = {**carried(task), TICKET: dict(outcome.ticket)}
            message, now = self._huey.serialize_task(task), self._huey._get_timestamp()
            self._schedule.defer(taken, message, before, outcome, priority=task.priority, now=now)
        elif self._schedule.let_go(taken):
            if isinstance(outcome, Dropped):
                _log.info("Task %s is dropped: %s", task.id, outcome.reason)
                abandon(self._huey, task)
            elif isinstance(outcome, Failed):
                self._fail(task, outcome.error)

    def _fail(self, task: Any, error: Exception) -> None:
        """End *task* as huey ends one whose body has raised *error*, and that has no retries left."""

        def execute() -> None:
            raise error

        task.execute, task.retries = execute, 0
        run(self._huey, task, self._huey._get_timestamp(), begins=False)

    def _wake_next(self, task: Any, granted: Run) -> None:
        """The line moves faster than its jobs know if one was granted early, or the limit has more left than half."""
        ticket = Ticket.read(carried(task).get(TICKET))
        stands = lane_in(carried(task).get(TICKET))
        if not stands.name or stands.slots or granted.decision is None or not granted.decision.charged:
            return
        if leaves_most(granted.decision):
            self._schedule.wake(stands.name)
        elif ticket.due_us - granted.decision.charged[0].at_us > _SOON * 1_000_000:
            self._schedule.wake(stands.name, _SOON)
