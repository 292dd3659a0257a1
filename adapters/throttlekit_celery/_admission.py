"""Admission: the worker's main process checks the limits of a task when a slot of the pool is free for it."""

from __future__ import annotations

import logging
import math
import os
import time
from functools import partial
from typing import Any

from throttlekit import ConfigurationError, Limiter, RateLimited
from throttlekit.adapter import Deferred, Dropped, Every, Failed, Outcome, Run, Throttling
from throttlekit_celery._body import RECEIPT, GoesBack, receipt_of
from throttlekit_celery._held_task import HeldTask, State
from throttlekit_celery._host import (
    forget,
    give_back,
    guard_close,
    is_revoked,
    keep_turning,
    list_as_scheduled,
    name_deliveries,
)
from throttlekit_celery._maps import refusal_of
from throttlekit_celery._options import TaskLimits
from throttlekit_celery._outcomes import end_unrun
from throttlekit_celery._pool_capacity import PoolCapacity
from throttlekit_celery._requeue import ASKS_AT, Copies, asks_in, queue_of
from throttlekit_celery._running import RunningTasks
from throttlekit_celery._waiting import HeldTasks
from throttlekit_celery._worker import Settings, WorkerHost, longest_hold

__all__ = ["DEFERRED_EVENT", "Admission"]

DEFERRED_EVENT = "throttlekit-deferred"
"""The Celery event that says until about when a task waits."""

_log = logging.getLogger("throttlekit.celery")

_RETRY_COPY_AFTER = 1.0
_GIVE_BACK_WITHIN = 5.0


class Admission:
    """Checks the limits of the tasks of one app before the pool gets them."""

    def __init__(self, app: Any, limiter: Limiter, limits: TaskLimits, settings: Settings) -> None:
        self._app = app
        self._limits = limits
        self._settings = settings
        self._copies = Copies(app)
        self._host = WorkerHost(limits, settings)
        self.throttling = Throttling(limiter, self._host, rules=settings.rules, log=_log, noun="Task")
        self._held: dict[Any, HeldTasks] = {}  # by consumer
        self._capacity = PoolCapacity()
        self._running = RunningTasks(limiter, self._ended, self._goes_back)
        self._pid = 0
        self._stopping = False
        self._releasing = False
        self._owed = 0
        self._copy_failed = Every()
        self._copy_again_at = 0.0
        self._longest = math.inf  # how long a task may be held
        self._lost: list[str] = []  # delivery tags of what was held as the connection broke
        self._lost_at = 0.0
        self._tried: set[str] = set()

    @property
    def limiter(self) -> Limiter:
        return self.throttling.limiter

    @property
    def max_hold(self) -> float | None:
        """The argument of `install`."""
        return self._settings.max_hold

    def receive(self, sender: Any = None, request: Any = None, **_: Any) -> None:
        """Celery's signal `task_received`, in the main process, before Celery looks at ETA and rate_limit."""
        request.request_dict.pop(RECEIPT, None)  # a sender may not say what a task has charged
        self._capacity.receive(sender, request)
        if (error := refusal_of(request, self.throttling, self._limits)) is not None:
            request.execute_using_pool = partial(self._refuse, sender, request, error)
            return
        try:
            limited = self.throttling.concerns(self._limits.of(request.task))
        except ConfigurationError:
            # `admit` fails the task. An exception that left this signal handler would be logged, and the body would
            # run unthrottled.
            limited = True
        if not limited:
            return
        # A retry of the body, or a task that replaces this one, must not inherit it.
        request.request_dict.pop(ASKS_AT, None)
        queue, now = queue_of(sender, request), time.monotonic()
        held = HeldTask(sender, request, request.execute_using_pool, now, queue, asks_at=now + asks_in(request.message))
        request.execute_using_pool = partial(self._enter, held)

    def check(self) -> None:
        """
        Read the limits of every task that is known here.

        Raises:
            ConfigurationError: The limits of a task can never work; the message names the task.
        """
        for task in list(self._app.tasks.values()):
            self._limits.of(task)
        for name in sorted(self._limits.names - set(self._app.tasks)):
            _log.warning("install(throttle=…) names a task %r, which this worker does not know.", name)

    def start(self, consumer: Any) -> None:
        """A worker has connected."""
        now = time.monotonic()
        self._longest = longest_hold(consumer, self._settings.max_hold)
        if now < self._lost_at + self._longest:
            # After that, another worker may have them: the visibility time-out is three times as long.
            give_back(consumer, self._lost, now + _GIVE_BACK_WITHIN)
        self._lost, self._tried = [], guard_close(consumer)
        name_deliveries(consumer)
        keep_turning(consumer)
        self._copies.start(consumer)
        self.throttling.warn_in_memory()
        self._pid = os.getpid()
        self._stopping = False
        if self._tasks_of(consumer).is_closed:
            del self._held[consumer]
        self._tasks_of(consumer).start()

    def disconnected(self, consumer: Any) -> None:
        """
        The connection is lost: the broker delivers again what was delivered on it, to any worker, but for the tasks
        that were acknowledged. Those wait here until the worker has connected again.
        """
        self._running.disconnected()
        self._lost_at = self._lost_at if self._lost else time.monotonic()
        tasks = self._tasks_of(consumer)
        for held in (*self._capacity.take_all(), *tasks.take_all()):
            if held.request.acknowledged:
                if held.state is not State.REQUEUEING:
                    tasks.hold_again(held, 0.0)
                continue
            held.becomes(State.GONE)
            forget(held.request.message)
            if (tag := held.request.message.delivery_tag) not in self._tried:
                self._lost.append(tag)

    def stop(self, consumer: Any) -> None:
        """
        The worker stops. What it holds goes back to the broker when the connection closes, and keeps its positions in
        the store. What was acknowledged is put back.
        """
        until = time.monotonic() + _GIVE_BACK_WITHIN
        self._stopping = True
        self._copies.settle(until)
        tasks = self._tasks_of(consumer)
        for held in (*self._capacity.take_all(), *tasks.close()):
            if held.request.acknowledged and held.state is not State.REQUEUEING:
                self._put_back_or_log(held)
        tasks.loop.run()
        self._copies.settle(until)
        self._copies.close()

    def close(self, **_: Any) -> None:
        """The worker's process ends: its pool has ended too."""
        if self._pid != os.getpid():
            return
        self._stopping = True
        self._running.close()
        for tasks in list(self._held.values()):
            tasks.loop.run()
            for held in tasks.close():  # the connection was lost before the worker ended
                if held.request.acknowledged:
                    self._put_back_or_log(held)
        self._held.clear()
        self._copies.settle(time.monotonic() + _GIVE_BACK_WITHIN)
        self._copies.close()

    # A task's way

    def _enter(self, held: HeldTask, pool: Any, **options: Any) -> Any:
        """Celery gives *held* to the pool: admit it, or let it wait."""
        if self._stopping:
            return None  # the pool takes nothing any more: the broker delivers the task again
        tasks = self._tasks_of(held.consumer)
        tasks.arrived(held)
        if held.request.revoked():
            self._leave(tasks, held)
        elif (rest := min(held.asks_at - time.monotonic(), self._longest)) > 0:
            held.asks_at = 0.0
            tasks.hold_again(held, rest)
        elif self._capacity.admits(held, pool):
            outcome = self.throttling.admit(held, tasks.waits(held))
            if isinstance(outcome, Run):
                held.request.request_dict[RECEIPT] = receipt_of(outcome)
                return self._running.execute(held, outcome, pool, **options)
            if isinstance(outcome, Deferred):
                self._wait(tasks, held, outcome)
            else:
                self._end(tasks, held, outcome)
        return self._step_aside(held.consumer)

    def _refuse(self, consumer: Any, request: Any, error: ConfigurationError, *_: Any, **__: Any) -> None:
        """Celery gives *request* to the pool: end it as failed."""
        end_unrun(request, Failed(error))
        self._step_aside(consumer)

    def _wait(self, tasks: HeldTasks, held: HeldTask, outcome: Deferred) -> None:
        """Hold *held*, which was denied."""
        tasks.hold(held, outcome.delay)
        if outcome.decision is not None:
            self._emit_deferred(held, outcome.decision.limit.name, outcome.delay)
        if held.request.acknowledged:  # as its body began: it is in no queue any more
            held.asks_at = time.monotonic() + outcome.delay
            self._put_back(tasks, held)

    def _check(self, held: HeldTask) -> bool:
        """Now and then, for each task that is held. Returns whether there was something to do for it."""
        if held.state is not State.HELD:
            return False
        if is_revoked(held.request):
            self._leave(self._tasks_of(held.consumer), held)
            return True
        now = time.monotonic()
        is_over = held.request.acknowledged or now - held.received_at > self._longest
        if is_over and now >= max(self._copy_again_at, held.stays_until):
            self._put_back(self._tasks_of(held.consumer), held)
            return True
        return False

    def _ended(self, held: HeldTask) -> None:
        """The body of *held* has ended. In any thread."""
        self._tasks_of(held.consumer).waker.done(held.id)
        self._capacity.freed(held.consumer)

    def _goes_back(self, held: HeldTask, back: GoesBack) -> None:
        """The body of *held* has raised `RateLimited`, and ended without an outcome. In any thread."""
        self._tasks_of(held.consumer).loop.call(partial(self._comes_back, held, back))

    def _comes_back(self, held: HeldTask, back: GoesBack) -> None:
        request, tasks = held.request, self._tasks_of(held.consumer)
        if not request.acknowledged and (held.state is State.ABANDONED or self._stopping):
            held.becomes(State.GONE)
            return
        # What Celery recorded of the body that has ended: to terminate the task must not hit another one.
        request.time_start = request.worker_pid = request._apply_result = None
        if self._stopping:
            self._put_back_or_log(held)
            return
        held.woken = False
        outcome = self.throttling.wait_again(held, tasks.waits(held), back.retry_after, stored=back.stored)
        if isinstance(outcome, Deferred):
            self._wait(tasks, held, outcome)
        else:
            # `Run`: it may wait no longer, and its own error ends it.
            self._end(tasks, held, Failed(RateLimited(back.retry_after)) if isinstance(outcome, Run) else outcome)
        tasks.waker.freed()
        self._capacity.freed(held.consumer)

    def _put_back_or_log(self, held: HeldTask) -> None:
        """Put *held* back, which was acknowledged, as its worker stops."""
        if not self._copy(held):
            _log.error("Task %s is lost: it could not be put back after a 429 as its worker stopped.", held.request.id)

    def _put_back(self, tasks: HeldTasks, held: HeldTask) -> None:
        """Put *held*, which is held, back into its queue. It is held until the broker has confirmed the copy."""
        if tasks.requeue(held) and not self._copy(held) and held.state is State.REQUEUEING:
            self._stay(tasks, held)

    def _stay(self, tasks: HeldTasks, held: HeldTask) -> None:
        """*held* could not be put back: it asks before it is tried again."""
        held.stays_until = time.monotonic() + 2 * _RETRY_COPY_AFTER
        tasks.hold_again(held, _RETRY_COPY_AFTER)

    def _copy(self, held: HeldTask) -> bool:
        try:
            return self._copies.put_back(held, partial(self._copied, held))
        except Exception as error:
            self._copy_again_at = time.monotonic() + _RETRY_COPY_AFTER
            if self._copy_failed.due():
                _log.warning(
                    "Denied tasks could not be put back (%s); they are held, and put back later.", type(error).__name__
                )
            return False

    def _copied(self, held: HeldTask, safe: bool) -> None:
        """The copy of *held* is *safe*, or may not be there. If it is safe, the original goes."""
        request, tasks = held.request, self._tasks_of(held.consumer)
        if held.state in (State.ABANDONED, State.GONE, State.ENDED):
            return
        if safe:
            tasks.forget(held)
            held.becomes(State.GONE)
            # Now, and not on the loop's next turn as Celery does it: many go back in one turn, and a kill would
            # leave all of them twice. A loop that has ended has no next turn.
            if not request.acknowledged:
                request.message.ack_log_error(_log, held.consumer.connection_errors)
                request.acknowledged = True
        elif not self._stopping:
            self._stay(tasks, held)

    def _leave(self, tasks: HeldTasks, held: HeldTask) -> None:
        """*held* was revoked, or has expired: it waits no longer, in the store either."""
        tasks.forget(held)
        held.becomes(State.ENDED)
        self.throttling.leave(held, tasks.waits(held))

    def _end(self, tasks: HeldTasks, held: HeldTask, outcome: Outcome) -> None:
        held.becomes(State.ENDED)
        tasks.waker.done(held.id)
        assert isinstance(outcome, (Failed, Dropped))  # noqa: S101 - the others are no end
        end_unrun(held.request, outcome)

    def _tasks_of(self, consumer: Any) -> HeldTasks:
        tasks = self._held.get(consumer)
        if tasks is None:
            tasks = HeldTasks(consumer, self.limiter, self._capacity, self._settings.max_held, self._check)
            self._held[consumer] = tasks
            list_as_scheduled(consumer, tasks.requests)
        return tasks

    def _step_aside(self, consumer: Any) -> None:
        """
        Leave the pool's slot to the next task.

        Not by an exception, as Celery does for revoked tasks: each of many that are denied one after the
        other would then lie on the stack of the one before.
        """
        release = getattr(consumer.controller, "_quick_release", None)
        if release is None:
            return
        self._owed += 1
        if self._releasing:
            return
        self._releasing = True
        try:
            while self._owed:
                self._owed -= 1
                release()
        finally:
            self._releasing = False

    def _emit_deferred(self, held: HeldTask, limit: str, delay: float) -> None:
        request = held.request
        try:
            request.send_event(DEFERRED_EVENT, name=request.name, limit=limit, until=time.time() + delay)
        except Exception as error:
            _log.debug("The event of a deferral could not be sent: %s", type(error).__name__)
