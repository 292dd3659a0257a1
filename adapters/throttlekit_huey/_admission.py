"""Check the limits of each task after huey's own checks and before its body, and act on the decision."""

from __future__ import annotations

import logging
import math
import os
from contextlib import suppress
from datetime import timedelta
from typing import Any

from huey.signals import SIGNAL_CANCELED  # type: ignore[import-untyped]
from huey.utils import SKIPPED  # type: ignore[import-untyped]

from throttlekit import Delivery, Limiter
from throttlekit.adapter import THROTTLE, Admitted, Deferred, Dropped, Outcome, Run, Throttling, Waiting, WaitRules
from throttlekit_huey._host import end_without_body, run
from throttlekit_huey._options import ADMITTED, COPY, FIELD, Tasks, carried, carry
from throttlekit_huey._schedule import Schedule, Taken
from throttlekit_huey._waiting import Item, WaitingTasks

__all__ = ["Admission"]

_TAKEN = "_throttlekit_taken"
"""The attribute of a task that is in this worker's hand: its message."""
_log = logging.getLogger("throttlekit.huey")
_LONGEST_S, _GRACE_S = 600.0, 10.0
"""A denied task that nobody wakes comes back so long after its turn, and at the latest so long after its denial."""


class _Ended(BaseException):
    """A body's 429, its context, has ended its run: huey would report an error, and run the task again."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome


def _end_run(outcome: Outcome) -> bool:
    raise _Ended(outcome)


class Admission:
    """
    What a huey does in place of its `dequeue`, `execute`, `read_schedule` and `flush`.

    While the huey is `immediate`, all four are its own.

    Args:
        texts: As for `Schedule`.
    """

    def __init__(self, huey: Any, limiter: Limiter, tasks: Tasks, rules: WaitRules, texts: Any) -> None:
        self._huey, self._tasks, self._rules, self._texts = huey, tasks, rules, texts
        self.throttling = Throttling[Any](limiter, self, rules=rules, log=_log, noun="Task")
        self.options, self.job = tasks.options, tasks.job
        self._dequeue, self._execute = huey.dequeue, huey.execute
        self._read_schedule, self._flush = huey.read_schedule, huey.flush
        self._schedule_in_use: Schedule | None = None
        self.waiting = WaitingTasks(limiter, lambda: self.schedule)

    @property
    def schedule(self) -> Schedule:
        """The schedule in huey's storage, which is another object after each change of `huey.immediate`."""
        schedule, storage = self._schedule_in_use, self._huey.storage
        if schedule is None or schedule.storage is not storage:
            schedule = self._schedule_in_use = Schedule(storage, self._texts)
        return schedule

    def delivery(self, message: Any, max_wait: float | None) -> Delivery:
        left = math.inf
        if message.expires_resolved:
            left = (message.expires_resolved - self._huey._get_timestamp()).total_seconds()
        return self._rules.delivery(Delivery(), max_wait, expires_in=left)

    # In place of huey's methods

    def dequeue(self) -> Any:
        if self._huey.immediate:
            return self._dequeue()
        self.waiting.is_idle()
        taken = self.schedule.next(float(self._huey.storage.read_timeout or 1))
        if taken is None:
            return None
        self.waiting.is_busy()
        try:
            task = self._huey.deserialize_task(taken.message)
            limited = self._is_limited(task)
        except Exception:  # as of a task that this worker does not know
            self.schedule.let_go(taken)
            if not self._leave(taken.message):
                raise
            # Huey's worker sleeps after an error, for up to 10 s: too long for the jobs behind this one.
            _log.exception("A task that waited cannot be read. It is dropped, as huey does.")
            return None
        if not limited:
            self.schedule.let_go(taken)
        setattr(task, _TAKEN, taken)
        return task

    def execute(self, task: Any, timestamp: Any = None) -> Any:
        if self._huey.immediate:
            return self._execute(task, timestamp)
        taken: Taken | None = task.__dict__.pop(_TAKEN, None)
        try:
            if not self._is_limited(task):
                return self._execute(task, timestamp)
            now = self._huey._get_timestamp() if timestamp is None else timestamp
            return self._decide(task, taken or Taken(self._huey.serialize_task(task)), now)
        finally:
            self.waiting.is_idle()

    def read_schedule(self, timestamp: Any = None) -> Any:
        now = self._huey._get_timestamp() if timestamp is None else timestamp
        if not self._huey.immediate:
            self.schedule.wake_due(now, self._read)
        return self._read_schedule(now)

    def flush(self) -> None:
        if not self._huey.immediate:
            self.schedule.flush()
        self._flush()

    # The way of one task

    def _decide(self, task: Any, taken: Taken, now: Any) -> Any:
        item = Item(task.priority or 0)
        try:
            if end_without_body(self._huey, task, now):
                self._leave(taken.message)
                self.schedule.let_go(taken)
                return None
            waits = Waiting(self.waiting.waker, item, denied=COPY in carried(task))
            outcome = self.throttling.admit(task, waits)
            if not isinstance(outcome, Run):
                return self._follow(task, outcome, taken, item)
            admitted = Admitted(self.throttling, outcome, _end_run)
            try:
                return self._run(task, admitted, now, taken, item) if self.schedule.let_go(taken) else None
            finally:
                if (cancel := admitted.cancel()) is not None:  # it is another worker's, or a hook has cancelled it
                    cancel()
        finally:
            if not item.message:
                self.waiting.has_ended(task.id)

    def _run(self, task: Any, admitted: Admitted, now: Any, taken: Taken, item: Item) -> Any:
        carry(task)
        setattr(task, ADMITTED, admitted)
        try:
            return run(self._huey, task, now)
        except _Ended as ended:
            self._huey._run_post_execute(task, None, ended.__context__)
            # As it came: its body may have changed its arguments.
            return self._follow(self._huey.deserialize_task(taken.message), ended.outcome, Taken(taken.message), item)

    def _follow(self, task: Any, outcome: Outcome, taken: Taken, item: Item) -> None:
        if isinstance(outcome, Deferred):
            self._defer(task, outcome.delay, taken, item)
        elif self.schedule.let_go(taken):
            if isinstance(outcome, Dropped):  # it ends as one does that a hook has cancelled
                _log.info("Task %s is dropped: %s", task.id, outcome.reason)
                self._huey._emit(SIGNAL_CANCELED, task)
                self._huey._abort_chord_member(task, SKIPPED)
            else:  # as one whose body has raised an error, and that has no retries left
                setattr(task, ADMITTED, Admitted(self.throttling, outcome, _end_run))
                task.retries = 0
                self._huey._execute(task, self._huey._get_timestamp())

    def _defer(self, task: Any, delay: float, taken: Taken, item: Item) -> None:
        # Huey's schedule is a set of messages: if two are equal, one is lost.
        carry(task, **{COPY: os.urandom(8).hex()})
        message = self._huey.serialize_task(task)
        due = self._huey._get_timestamp() + timedelta(seconds=min(delay, _LONGEST_S) + _GRACE_S)
        if self.schedule.defer(taken, message, due):
            self.waiting.is_stored(task.id, item, message)

    def _is_limited(self, task: Any) -> bool:
        return THROTTLE in carried(task) or self.throttling.concerns(self._tasks.declared(task))

    def _read(self, data: bytes) -> Any:
        """A message of huey's, if it is a denied task's; None: it is not, or it cannot be read, which huey logs."""
        with suppress(Exception):
            message = self._huey.serializer.deserialize(data)
            return message if COPY in message.kwargs.get(FIELD, ()) else None

    def _leave(self, data: bytes) -> bool:
        """A task ends that may have waited, and that huey may know no longer. Returns whether it has."""
        message = self._read(data)
        task = message and self._tasks.read(message)
        if task is not None:
            self.throttling.leave(task, Waiting(self.waiting.waker, None))
        return message is not None
