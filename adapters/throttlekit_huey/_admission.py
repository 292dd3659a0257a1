"""Ask for each task between huey's own checks and its body, and conclude what was decided."""

from __future__ import annotations

import logging
import math
import os
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from huey.signals import SIGNAL_CANCELED  # type: ignore[import-untyped]
from huey.utils import SKIPPED  # type: ignore[import-untyped]

from throttlekit import Delivery, Limiter
from throttlekit.adapter import (
    THROTTLE,
    Admitted,
    Deferred,
    Dropped,
    InlineWaits,
    Outcome,
    Run,
    Throttling,
    WaitRules,
    lane_behind,
)
from throttlekit_huey._host import end_without_body, run
from throttlekit_huey._options import ADMITTED, COPY, TICKET, Tasks, carried, carry
from throttlekit_huey._schedule import Schedule, Taken

__all__ = ["Gate"]

_TAKEN = "_throttlekit_taken"
"""The attribute of a task that is in this worker's hand: its message."""
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
    What a huey does in place of its `dequeue`, `execute`, `read_schedule` and `flush`.

    While the huey is `immediate`, all four are its own.

    Args:
        texts: As for `Schedule`.
    """

    def __init__(self, huey: Any, limiter: Limiter, tasks: Tasks, rules: WaitRules, texts: Any) -> None:
        self._huey, self._limiter, self._tasks, self._rules, self._texts = huey, limiter, tasks, rules, texts
        self.throttling = Throttling[Any](limiter, self, rules=rules, log=_log, noun="Task")
        self.options, self.job = tasks.options, tasks.job
        self._dequeue, self._execute = huey.dequeue, huey.execute
        self._read_schedule, self._flush = huey.read_schedule, huey.flush
        self._schedule_in_use: Schedule | None = None

    @property
    def _schedule(self) -> Schedule:
        """The schedule in huey's storage, which is another object after each change of `huey.immediate`."""
        schedule, storage = self._schedule_in_use, self._huey.storage
        if schedule is None or schedule.storage is not storage:
            schedule = self._schedule_in_use = Schedule(storage, self._texts)
        return schedule

    def delivery(self, message: Any, max_wait: float | None) -> Delivery:
        left = math.inf
        if message.expires_resolved:
            left = (message.expires_resolved - self._huey._get_timestamp()).total_seconds()
        return self._rules.delivery(_RETURNING if carried(message).get(TICKET) else _NEW, max_wait, expires_in=left)

    def dequeue(self) -> Any:
        if self._huey.immediate:
            return self._dequeue()
        taken = self._schedule.next(float(self._huey.storage.read_timeout))
        if taken is None:
            return None
        try:
            task = self._huey.deserialize_task(taken.message)
            limited = self._is_limited(task)
        except Exception:  # as of a task that this worker does not know
            self._wake_behind(taken)
            self._schedule.let_go(taken)
            if not taken.lane:
                raise
            # Huey's worker sleeps after an error, for up to 10 s: too long for the jobs behind this one.
            _log.exception("A task that waited cannot be read. It is dropped, as huey does.")
            return None
        if not limited:
            self._wake_behind(taken)
            self._schedule.let_go(taken)
        setattr(task, _TAKEN, taken)
        return task

    def read_schedule(self, timestamp: Any = None) -> Any:
        now = self._huey._get_timestamp() if timestamp is None else timestamp
        if not self._huey.immediate:
            self._schedule.keep(now)
        return self._read_schedule(now)

    def flush(self) -> None:
        if not self._huey.immediate:
            self._schedule.flush()
        self._flush()

    def execute(self, task: Any, timestamp: Any = None) -> Any:
        taken: Taken | None = task.__dict__.pop(_TAKEN, None)
        if self._huey.immediate or not self._is_limited(task):
            return self._execute(task, timestamp)
        taken = taken or Taken(self._huey.serialize_task(task))
        now = self._huey._get_timestamp() if timestamp is None else timestamp
        if end_without_body(self._huey, task, now):
            self.throttling.leave(task)
            self._schedule.let_go(taken)
            self._wake_behind(taken)
            return None
        outcome = self.throttling.admit(task)
        if not isinstance(outcome, Run):
            return self._follow(task, outcome, taken)
        admitted = Admitted(self.throttling, outcome, _end_run)
        try:
            # While the job is in hand: a lost connection does not lose it.
            if taken.was_kept:
                self._wake_behind(taken)
            if behind := lane_behind(outcome):
                self._schedule.wake(behind)
            return self._run(task, admitted, now, taken) if self._schedule.let_go(taken) else None
        finally:
            if (cancel := admitted.cancel()) is not None:  # it is another worker's, or a hook has cancelled it
                cancel()
            for lane in (*outcome.lanes, *admitted.returned_lanes):
                self._schedule.wake(lane)

    def _wake_behind(self, taken: Taken) -> None:
        """
        Wake the job behind one that ends without a grant.

        It may end in the same way, for example after its task was revoked. If each job ended only when it is due, the
        limit would not be used until then.
        """
        if taken.lane:
            self._schedule.wake(taken.lane)

    def _keeper(self, task: Any, outcome: Deferred, taken: Taken) -> str:
        """
        Return what blocks *task* although its turn has come, for `Schedule.defer`; "": nothing does.

        It is another of its limits, which is paused or whose store does not answer. The second shows only when the
        limit in whose line the job waits has a unit. So if a job has waited for such a store, its other limits are
        peeked at: a denial by its own line says nothing about the store.
        """
        denial = outcome.decision
        limits = self.options(task).limits if denial is not None else ()
        if denial is None or len(limits) < 2:
            return outcome.kept_by
        store = blake2b("\n".join(sorted(limit.name for limit in limits)).encode(), digest_size=6).hexdigest()
        reason = denial.reason
        if taken.is_kept_by(store) and reason != "store unavailable":
            others = [limit for limit in limits if limit.name != denial.limit.name]
            reason = self._limiter.peek(*others, job=self.job(task)).reason
        return store if reason == "store unavailable" else outcome.kept_by

    def _is_limited(self, task: Any) -> bool:
        return THROTTLE in carried(task) or self.throttling.concerns(self._tasks.declared(task))

    def _run(self, task: Any, admitted: Admitted, now: Any, taken: Taken) -> Any:
        carry(task, {name: value for name, value in carried(task).items() if name not in (TICKET, COPY)})
        setattr(task, ADMITTED, admitted)
        try:
            return run(self._huey, task, now)
        except _Ended as ended:
            self._huey._run_post_execute(task, None, ended.__context__)
            # As it came: its body may have changed its arguments.
            return self._follow(self._huey.deserialize_task(taken.message), ended.outcome, Taken(taken.message))

    def _follow(self, task: Any, outcome: Outcome, taken: Taken) -> None:
        if isinstance(outcome, Deferred):
            before = carried(task).get(TICKET)
            # Huey's schedule is a set of messages: if two are equal, one is lost.
            carry(task, {**carried(task), COPY: os.urandom(8).hex()})
            if outcome.ticket is not None:
                carry(task, {**carried(task), TICKET: dict(outcome.ticket)})
            message, now = self._huey.serialize_task(task), self._huey._get_timestamp()
            kept = self._keeper(task, outcome, taken)
            self._schedule.defer(taken, message, before, outcome, kept=kept, priority=task.priority, now=now)
            return
        self._wake_behind(taken)
        if self._schedule.let_go(taken):
            if isinstance(outcome, Dropped):  # it ends as one does that a hook has cancelled
                _log.info("Task %s is dropped: %s", task.id, outcome.reason)
                self._huey._emit(SIGNAL_CANCELED, task)
                self._huey._abort_chord_member(task, SKIPPED)
            else:  # as one whose body has raised an error, and that has no retries left
                setattr(task, ADMITTED, Admitted(self.throttling, outcome, _end_run))
                task.retries = 0
                run(self._huey, task, self._huey._get_timestamp(), begins=False)
