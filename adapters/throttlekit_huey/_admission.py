"""Check the limits of each task after huey's own checks and before its body, and act on the decision."""

from __future__ import annotations

import logging
import math
import os
from contextlib import suppress
from datetime import timedelta
from typing import Any

from huey.signals import (  # type: ignore[import-untyped]
    SIGNAL_CANCELED,
    SIGNAL_EXECUTING,
    SIGNAL_EXPIRED,
    SIGNAL_REVOKED,
)
from huey.utils import SKIPPED  # type: ignore[import-untyped]

from throttlekit import Delivery, Limiter
from throttlekit.adapter import THROTTLE, Admitted, Deferred, Dropped, Outcome, Run, Throttling, Waiting, WaitRules
from throttlekit_huey._options import ADMITTED, COPY, FIELD, Tasks, read_field, write_field
from throttlekit_huey._schedule import Schedule, TakenMessage
from throttlekit_huey._waiting import Item, WaitingTasks

__all__ = ["Admission"]

_TAKEN = "_throttlekit_taken"
"""The attribute of a taken task that holds its `TakenMessage`."""
_log, _log_of_huey = logging.getLogger("throttlekit.huey"), logging.getLogger("huey")
_LONGEST_S, _GRACE_S = 600.0, 10.0
"""
If the store does not wake a denied task, huey's schedule returns it 10 s after its estimated turn, and at the latest
610 s after its denial.
"""


class _RunEnded(BaseException):
    """
    Ends a run whose body raised `RateLimited`, which is this error's context.

    This class is not a subclass of `Exception`, because huey would report such an error, and retry the task.
    """

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome


def _end_run(outcome: Outcome) -> bool:
    raise _RunEnded(outcome)


class Admission:
    """
    Replaces the methods `dequeue`, `execute`, `read_schedule` and `flush` of a huey.

    While the huey is `immediate`, each replacement calls the original method.

    Args:
        texts: The argument *texts* of `Schedule`.
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
        """The schedule in huey's storage, whose object each change of `huey.immediate` replaces."""
        schedule, storage = self._schedule_in_use, self._huey.storage
        if schedule is None or schedule.storage is not storage:
            schedule = self._schedule_in_use = Schedule(storage, self._texts)
        return schedule

    def delivery(self, message: Any, max_wait: float | None) -> Delivery:
        left = math.inf
        if message.expires_resolved:
            left = (message.expires_resolved - self._huey._get_timestamp()).total_seconds()
        return self._rules.delivery(Delivery(), max_wait, expires_in=left)

    # Replacements of huey's methods

    def dequeue(self) -> Any:
        if self._huey.immediate:
            return self._dequeue()
        self.waiting.mark_idle()
        taken = self.schedule.next(float(self._huey.storage.read_timeout or 1))
        if taken is None:
            return None
        self.waiting.mark_busy()
        try:
            task = self._huey.deserialize_task(taken.message)
            limited = self._is_limited(task)
        except Exception:  # for example, this worker does not know the task
            self.schedule.release(taken)
            if not self._leave_waitlists(taken.message):
                raise
            # Do not raise the error: huey's worker would sleep for up to 10 s, which delays the next jobs.
            _log.exception("A waiting task cannot be read. It is dropped, as huey drops every unreadable task.")
            return None
        if not limited:
            self.schedule.release(taken)
        setattr(task, _TAKEN, taken)
        return task

    def execute(self, task: Any, timestamp: Any = None) -> Any:
        if self._huey.immediate:
            return self._execute(task, timestamp)
        taken: TakenMessage | None = task.__dict__.pop(_TAKEN, None)
        try:
            if not self._is_limited(task):
                return self._execute(task, timestamp)
            now = self._huey._get_timestamp() if timestamp is None else timestamp
            return self._decide(task, taken or TakenMessage(self._huey.serialize_task(task)), now)
        finally:
            self.waiting.mark_idle()

    def read_schedule(self, timestamp: Any = None) -> Any:
        now = self._huey._get_timestamp() if timestamp is None else timestamp
        if not self._huey.immediate:
            self.schedule.wake_due(now, self._read)
        return self._read_schedule(now)

    def flush(self) -> None:
        if not self._huey.immediate:
            self.schedule.flush()
        self._flush()

    # From the check of the limits to the end of a task

    def _decide(self, task: Any, taken: TakenMessage, now: Any) -> Any:
        item = Item(task.priority or 0)
        try:
            if self._end_without_body(task, now):
                self._leave_waitlists(taken.message)
                self.schedule.release(taken)
                return None
            waits = Waiting(self.waiting.waker, item, denied=COPY in read_field(task))
            outcome = self.throttling.admit(task, waits)
            if not isinstance(outcome, Run):
                return self._follow(task, outcome, taken, item)
            admitted = Admitted(self.throttling, outcome, _end_run)
            try:
                return self._run(task, admitted, now, taken, item) if self.schedule.release(taken) else None
            finally:
                if (cancel := admitted.cancel()) is not None:  # another worker has the task, or a hook cancelled it
                    cancel()
        finally:
            if not item.message:
                self.waiting.finish(task.id)

    def _end_without_body(self, task: Any, now: Any) -> bool:
        """
        Handle *task* like huey's `execute`, which has no public function for it, if its body must not run now, because
        it is not due yet, revoked or expired.

        If the body may run, the call takes one round trip. It deletes a revocation that has ended or is for one run
        only, so call this method once each time a task is taken from the queue.

        Returns:
            False if the body may run. True if the task was scheduled again, or has ended without its body.
        """
        if not self._huey.ready_to_run(task, now):
            self._huey.add_schedule(task)
        elif self._huey.is_revoked(task, now, False):
            _log_of_huey.warning("Task %s was revoked, not executing", task)
            self._end_skipped(task, SIGNAL_REVOKED)
        elif task.expires_resolved and task.expires_resolved < now:
            _log_of_huey.info("Task %s expired, not executing.", task)
            self._end_skipped(task, SIGNAL_EXPIRED)
        else:
            return False
        return True

    def _end_skipped(self, task: Any, signal: str) -> None:
        self._huey._emit(signal, task)
        self._huey._abort_chord_member(task, SKIPPED)

    def _run(self, task: Any, admitted: Admitted, now: Any, taken: TakenMessage, item: Item) -> Any:
        write_field(task)
        setattr(task, ADMITTED, admitted)
        try:
            # Like the second part of huey's `execute`, after its checks.
            _log_of_huey.info("Executing %s", task)
            self._huey._emit(SIGNAL_EXECUTING, task)
            return self._huey._execute(task, now)
        except _RunEnded as ended:
            self._huey._run_post_execute(task, None, ended.__context__)
            # Read the message again: the body may have changed the arguments of *task*.
            return self._follow(
                self._huey.deserialize_task(taken.message), ended.outcome, TakenMessage(taken.message), item
            )

    def _follow(self, task: Any, outcome: Outcome, taken: TakenMessage, item: Item) -> None:
        if isinstance(outcome, Deferred):
            self._defer(task, outcome.delay, taken, item)
        elif self.schedule.release(taken):
            if isinstance(outcome, Dropped):  # end it like a task that a hook has cancelled
                _log.info("Task %s is dropped: %s", task.id, outcome.reason)
                self._end_skipped(task, SIGNAL_CANCELED)
            else:  # end it like a task whose body has raised an error and that has no retries left
                setattr(task, ADMITTED, Admitted(self.throttling, outcome, _end_run))
                task.retries = 0
                self._huey._execute(task, self._huey._get_timestamp())

    def _defer(self, task: Any, delay: float, taken: TakenMessage, item: Item) -> None:
        # Huey's schedule is a set of messages. Make each message unique: of two equal messages, one would be lost.
        write_field(task, **{COPY: os.urandom(8).hex()})
        message = self._huey.serialize_task(task)
        due = self._huey._get_timestamp() + timedelta(seconds=min(delay, _LONGEST_S) + _GRACE_S)
        if self.schedule.defer(taken, message, due):
            self.waiting.on_stored(task.id, item, message)

    def _is_limited(self, task: Any) -> bool:
        return THROTTLE in read_field(task) or self.throttling.concerns(self._tasks.declared_options(task))

    def _read(self, data: bytes) -> Any:
        """Return the message in *data* if its task was denied, otherwise None. Huey logs unreadable messages."""
        with suppress(Exception):
            message = self._huey.serializer.deserialize(data)
            return message if COPY in message.kwargs.get(FIELD, ()) else None

    def _leave_waitlists(self, data: bytes) -> bool:
        """Remove a task, which huey may not have, from the waitlists if it was denied before. Return whether it was."""
        message = self._read(data)
        task = message and self._tasks.read(message)
        if task is not None:
            self.throttling.leave(task, Waiting(self.waiting.waker, None))
        return message is not None
