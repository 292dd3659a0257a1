"""Check the limits of a task, in the worker's main process, when a slot of the pool is free for the task."""

from __future__ import annotations

import logging
import math
import os
import time
from functools import partial
from typing import Any

from throttlekit import ConfigurationError, Limiter, RateLimited
from throttlekit.adapter import Deferred, Dropped, Every, Failed, Outcome, Run, Throttling, WaitRules
from throttlekit_celery._body import RECEIPT, RunAgain, receipt_of
from throttlekit_celery._held_task import HeldTask, State
from throttlekit_celery._host import (
    forget,
    give_back,
    guard_close,
    keep_loop_running,
    list_as_scheduled,
    name_deliveries,
)
from throttlekit_celery._maps import refusal_of
from throttlekit_celery._options import TaskLimits
from throttlekit_celery._outcomes import end_without_body
from throttlekit_celery._pool_capacity import PoolCapacity
from throttlekit_celery._requeue import ASKS_AT, Copies, first_request_delay, queue_of
from throttlekit_celery._running import RunningTasks
from throttlekit_celery._waiting import HeldTasks
from throttlekit_celery._worker import WorkerHost, longest_hold

__all__ = ["DEFERRED_EVENT", "Admission"]

DEFERRED_EVENT = "throttlekit-deferred"
"""The type of the Celery event for a denied task. The event contains the estimated end of the task's wait."""

_log = logging.getLogger("throttlekit.celery")

_TRY_AGAIN_AFTER = _RETRY_COPY_AFTER = 1.0
_GIVE_BACK_WITHIN = 5.0


class Admission:
    """
    Checks the limits of the tasks of one app before the pool receives the tasks.

    Attributes:
        max_hold: The argument *max_hold* of `install`.
    """

    def __init__(
        self,
        app: Any,
        limiter: Limiter,
        limits: TaskLimits,
        *,
        rules: WaitRules,
        max_hold: float | None,
        max_held: int,
    ) -> None:
        self.throttling = Throttling(limiter, WorkerHost(limits, rules), rules=rules, log=_log, noun="Task")
        self.max_hold = max_hold
        self._app = app
        self._limits = limits
        self._max_held = max_held
        self._copies = Copies(app)
        self._held: dict[Any, HeldTasks] = {}  # by consumer
        self._capacity = PoolCapacity()
        self._running = RunningTasks(limiter, self._finish, self._on_rate_limited)
        self._pid = 0
        self._stopping = False
        self._releasing = False
        self._releases_due = 0
        self._copy_failed = Every()
        self._copy_again_at = 0.0
        self._longest = math.inf  # how long a task may be held
        self._lost: list[str] = []  # delivery tags of the tasks that were held when the connection broke
        self._lost_at = 0.0
        self._tried: set[str] = set()

    @property
    def limiter(self) -> Limiter:
        return self.throttling.limiter

    def receive(self, consumer: Any, request: Any) -> None:
        """Receive the signal `task_received`, in the main process, before Celery reads ETA and rate_limit."""
        request.request_dict.pop(RECEIPT, None)  # only the worker sets it: a sender could fake a charge
        self._capacity.record_received(consumer, request)
        if (error := refusal_of(request, self.throttling, self._limits)) is not None:
            request.execute_using_pool = partial(self._refuse, consumer, request, error)
            return
        try:
            limited = self.throttling.concerns(self._limits.of(request.task))
        except ConfigurationError:
            # `admit` fails the task. Celery would only log an exception of this signal handler, and the body would
            # run unthrottled.
            limited = True
        if not limited:
            return
        # Celery copies headers to a retry of the body, and to a task that replaces this task.
        request.request_dict.pop(ASKS_AT, None)
        queue, now = queue_of(consumer, request), time.monotonic()
        first_request_at = now + first_request_delay(request.message)
        held = HeldTask(consumer, request, request.execute_using_pool, now, queue, first_request_at=first_request_at)
        request.execute_using_pool = partial(self._admit, held)

    def check(self) -> None:
        """
        Read the limits of every task of the app.

        Raises:
            ConfigurationError: The limits of a task can never work; the message names the task.
        """
        for task in list(self._app.tasks.values()):
            self._limits.of(task)
        for name in sorted(self._limits.names - set(self._app.tasks)):
            _log.warning("install(throttle=…) names a task %r, which this worker does not know.", name)

    def start(self, consumer: Any) -> None:
        """Prepare for a new connection of a worker to its broker. Called for the first and each later connection."""
        now = time.monotonic()
        self._longest = longest_hold(consumer, self.max_hold)
        if now < self._lost_at + self._longest:
            # Only while a task may be held: after the visibility time-out, another worker may have these tasks.
            give_back(consumer, self._lost, now + _GIVE_BACK_WITHIN)
        self._lost, self._tried = [], guard_close(consumer)
        name_deliveries(consumer)
        keep_loop_running(consumer)
        self._copies.start(consumer)
        self.throttling.warn_in_memory()
        self._pid = os.getpid()
        self._stopping = False
        if self._tasks_of(consumer).is_closed:
            del self._held[consumer]
        self._tasks_of(consumer).start()

    def on_disconnect(self, consumer: Any) -> None:
        """
        Handle the loss of the connection.

        The broker delivers the unacknowledged tasks of this connection again, to any worker. The acknowledged tasks
        wait here until the worker has connected again.
        """
        discarded = self._running.on_disconnect(consumer)
        self._lost_at = self._lost_at if self._lost else time.monotonic()
        tasks = self._tasks_of(consumer)
        for held in (*self._capacity.take_all(), *tasks.take_all()):
            if held.request.acknowledged:
                if held.state is not State.REQUEUEING:
                    tasks.hold_again(held, 0.0)
                continue
            held.set_state(State.GONE)
            forget(held.request.message)
            if (tag := held.request.message.delivery_tag) not in self._tried:
                self._lost.append(tag)
        for held in discarded:
            if held.request.acknowledged:  # its body has begun before, and got a 429
                tasks.hold_again(held, 0.0)

    def stop(self, consumer: Any) -> None:
        """
        Stop the worker.

        When the connection closes, the broker requeues the tasks that the worker holds. They keep their positions in
        the store. Acknowledged tasks are put back by a copy.
        """
        until = time.monotonic() + _GIVE_BACK_WITHIN
        self._stopping = True
        self._copies.wait_for_confirmations(until)
        tasks = self._tasks_of(consumer)
        for held in (*self._capacity.take_all(), *tasks.close()):
            if held.request.acknowledged and held.state is not State.REQUEUEING:
                self._put_back_or_log(held)
        tasks.loop.run()
        self._copies.wait_for_confirmations(until)
        self._copies.close()

    def close(self) -> None:
        """
        Release the slots of pool processes, and put back the tasks that are acknowledged, when the worker's process
        ends. Its pool has ended before.
        """
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
        self._copies.wait_for_confirmations(time.monotonic() + _GIVE_BACK_WITHIN)
        self._copies.close()

    # From Celery to the pool, and back

    def _admit(self, held: HeldTask, pool: Any, **options: Any) -> Any:
        """Admit *held*, or let it wait. Celery calls this function to pass the task to the pool."""
        if self._stopping:
            return None  # the pool accepts no more tasks; the broker redelivers this one
        tasks = self._tasks_of(held.consumer)
        tasks.on_arrival(held)
        try:
            run = self._request(tasks, held, pool)
        except Exception:
            self._try_again(tasks, held)
            run = None
        if run is None:
            return self._release_pool_slot(held.consumer)
        held.request.request_dict[RECEIPT] = receipt_of(run)
        return self._running.execute(held, run, pool, **options)

    def _request(self, tasks: HeldTasks, held: HeldTask, pool: Any) -> Run | None:
        """
        Request the units of *held*. If it may not begin, let it wait, or end it, and return None.

        An exception comes from Celery, for example if its result backend is unavailable.
        """
        if held.request.revoked():
            self._remove(tasks, held)
        elif round(rest := min(held.first_request_at - time.monotonic(), self._longest), 2) > 0:  # woken a little early
            tasks.hold_again(held, rest)
        elif self._capacity.admit_or_queue(held, pool):
            outcome = self.throttling.admit(held, tasks.waiting_of(held))
            if isinstance(outcome, Run):
                return outcome
            if isinstance(outcome, Deferred):
                self._hold(tasks, held, outcome)
            else:
                self._end(tasks, held, outcome)
        return None

    def _try_again(self, tasks: HeldTasks, held: HeldTask) -> None:
        """Handle an exception of Celery: let *held*, whose body does not begin now, make a request a little later."""
        _log.exception("Task %s could not be ended or checked by Celery; it is tried again.", held.request.id)
        tasks.hold_again(held, _TRY_AGAIN_AFTER)

    def _refuse(self, consumer: Any, request: Any, error: ConfigurationError, *_: Any, **__: Any) -> None:
        """End *request* as failed. Celery calls this function to pass the task to the pool."""
        try:
            end_without_body(request, Failed(error))
        except Exception:
            _log.exception("Task %s could not be ended without its body; the broker keeps it.", request.id)
        self._release_pool_slot(consumer)

    def _hold(self, tasks: HeldTasks, held: HeldTask, outcome: Deferred) -> None:
        """Hold *held*, which was denied."""
        tasks.hold(held, outcome.delay)
        if outcome.decision is not None:
            self._emit_deferred(held, outcome.decision.limit.name, outcome.delay)
        if held.request.acknowledged:  # its body has begun before, so the broker no longer has the task
            held.first_request_at = time.monotonic() + outcome.delay
            self._put_back(tasks, held)

    def _check(self, held: HeldTask) -> bool:
        """Remove *held* if it was revoked, or put it back if it was held too long. Return whether either was done."""
        if held.state is not State.HELD:
            return False
        if held.request.revoked():
            self._remove(self._tasks_of(held.consumer), held)
            return True
        now = time.monotonic()
        is_over = held.request.acknowledged or now - held.received_at > self._longest
        if is_over and now >= max(self._copy_again_at, held.stays_until):
            self._put_back(self._tasks_of(held.consumer), held)
            return True
        return False

    def _finish(self, held: HeldTask) -> None:
        """Report to the waker that the body of *held* has ended, and free its pool slot. Called in any thread."""
        self._tasks_of(held.consumer).waker.done(held.id)
        self._capacity.on_slot_freed(held.consumer)

    def _on_rate_limited(self, held: HeldTask, back: RunAgain) -> None:
        """Let *held* wait again, because its body raised `RateLimited`. Called in any thread."""
        self._tasks_of(held.consumer).loop.call(partial(self._hold_after_429, held, back))

    def _hold_after_429(self, held: HeldTask, back: RunAgain) -> None:
        request, tasks = held.request, self._tasks_of(held.consumer)
        if not request.acknowledged and (held.state is State.ABANDONED or self._stopping):
            held.set_state(State.GONE)
            return
        # Remove Celery's record of the ended body. Otherwise "terminate" could kill the process of another task.
        request.time_start = request.worker_pid = request._apply_result = None
        if self._stopping:
            self._put_back_or_log(held)
            return
        outcome = self.throttling.wait_again(held, tasks.waiting_of(held), back.retry_after, stored=back.stored)
        if isinstance(outcome, Deferred):
            self._hold(tasks, held, outcome)
        else:
            # `Run` means that the task must not wait any longer, so it fails with its own error.
            self._end(tasks, held, Failed(RateLimited(back.retry_after)) if isinstance(outcome, Run) else outcome)
        tasks.waker.report_free()
        self._capacity.on_slot_freed(held.consumer)

    def _put_back_or_log(self, held: HeldTask) -> None:
        """Put *held*, an acknowledged task, back into its queue while its worker stops."""
        if not self._publish_copy(held):
            _log.error("Task %s is lost: it could not be put back after a 429 as its worker stopped.", held.request.id)

    def _put_back(self, tasks: HeldTasks, held: HeldTask) -> None:
        """Put *held* back into its queue. The worker holds it until the broker has confirmed the copy."""
        if tasks.requeue(held) and not self._publish_copy(held) and held.state is State.REQUEUEING:
            self._retry_copy_later(tasks, held)

    def _retry_copy_later(self, tasks: HeldTasks, held: HeldTask) -> None:
        """Keep *held*, which could not be put back. If its time has come, its next request is made before that."""
        held.stays_until = time.monotonic() + 2 * _RETRY_COPY_AFTER
        tasks.hold_again(held, _RETRY_COPY_AFTER)

    def _publish_copy(self, held: HeldTask) -> bool:
        try:
            return self._copies.put_back(held, partial(self._on_copy_result, held))
        except Exception as error:
            self._copy_again_at = time.monotonic() + _RETRY_COPY_AFTER
            if self._copy_failed.due():
                _log.warning(
                    "Denied tasks could not be put back (%s); they are held, and put back later.", type(error).__name__
                )
            return False

    def _on_copy_result(self, held: HeldTask, safe: bool) -> None:
        """Acknowledge the original of *held* if the broker has its copy (*safe*). Otherwise keep *held*."""
        request, tasks = held.request, self._tasks_of(held.consumer)
        if held.state in (State.ABANDONED, State.GONE, State.ENDED):
            return
        if safe:
            tasks.forget(held)
            held.set_state(State.GONE)
            # Celery would acknowledge on the next iteration of its loop. Many tasks can be put back in one iteration,
            # and after a kill all of them would exist twice. A loop that has ended has no next iteration.
            if not request.acknowledged:
                request.message.ack_log_error(_log, held.consumer.connection_errors)
                request.acknowledged = True
        elif not self._stopping:
            self._retry_copy_later(tasks, held)

    def _remove(self, tasks: HeldTasks, held: HeldTask) -> None:
        """Remove *held*, which was revoked or has expired, from this worker and from the waitlists in the store."""
        tasks.forget(held)
        held.set_state(State.ENDED)
        self.throttling.leave(held, tasks.waiting_of(held))

    def _end(self, tasks: HeldTasks, held: HeldTask, outcome: Outcome) -> None:
        held.set_state(State.ENDED)
        tasks.waker.done(held.id)
        assert isinstance(outcome, (Failed, Dropped))  # noqa: S101 - the other outcomes end no task
        try:
            end_without_body(held.request, outcome)
        except Exception:
            self._try_again(tasks, held)

    def _tasks_of(self, consumer: Any) -> HeldTasks:
        tasks = self._held.get(consumer)
        if tasks is None:
            tasks = HeldTasks(consumer, self.limiter, self._capacity, self._max_held, self._check)
            self._held[consumer] = tasks
            list_as_scheduled(consumer, tasks.requests)
        return tasks

    def _release_pool_slot(self, consumer: Any) -> None:
        """
        Release the pool's slot, so that the next task gets it.

        Celery releases the slot of a revoked task by raising an exception. Here these exceptions would nest: with 1 000
        denied tasks in a row, each task would be handled inside the call for the previous task, and the stack would
        overflow.
        """
        release = getattr(consumer.controller, "_quick_release", None)
        if release is None:
            return
        self._releases_due += 1
        if self._releasing:
            return
        self._releasing = True
        try:
            while self._releases_due:
                self._releases_due -= 1
                release()
        finally:
            self._releasing = False

    def _emit_deferred(self, held: HeldTask, limit: str, delay: float) -> None:
        request = held.request
        try:
            request.send_event(DEFERRED_EVENT, name=request.name, limit=limit, until=time.time() + delay)
        except Exception as error:
            _log.debug("The event of a deferral could not be sent: %s", type(error).__name__)
