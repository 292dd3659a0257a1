"""Check the limits of a worker's tasks, in its main process, when a slot of the pool is free for the task."""

from __future__ import annotations

import logging
import math
import os
import time
from functools import partial
from typing import Any

from throttlekit import ConfigurationError, RateLimited
from throttlekit.adapter import Deferred, Dropped, Every, Failed, Run, Throttling
from throttlekit_celery._body import RECEIPT, RunAgain, receipt_of
from throttlekit_celery._held_task import HeldTask, State
from throttlekit_celery._host import (
    forget,
    give_back,
    guard_close,
    keep_accepted_jobs,
    keep_loop_running,
    longest_hold,
    name_deliveries,
    read_pending_replies,
)
from throttlekit_celery._maps import refusal_of
from throttlekit_celery._options import TaskLimits
from throttlekit_celery._outcomes import end_without_body
from throttlekit_celery._pool_capacity import PoolCapacity
from throttlekit_celery._requeue import ASKS_AT, Copies, first_request_delay, queue_of
from throttlekit_celery._running import RunningTasks
from throttlekit_celery._waiting import HeldTasks

__all__ = ["DEFERRED_EVENT", "Admission"]

DEFERRED_EVENT = "throttlekit-deferred"
"""The type of the Celery event for a denied task. The event contains the estimated end of the task's wait."""

_log = logging.getLogger("throttlekit.celery")

_TRY_AGAIN_AFTER = _RETRY_COPY_AFTER = 1.0
_GIVE_BACK_WITHIN = 5.0


class Admission:
    """
    Checks the limits of the tasks of one worker before its pool receives the tasks.

    Args:
        consumer: The worker's consumer, in Celery's sense: it has the connection, the pool and the timer.
        max_hold: The argument *max_hold* of `install`.
        max_held: The argument *max_held* of `install`.
    """

    def __init__(
        self,
        consumer: Any,
        throttling: Throttling[HeldTask],
        limits: TaskLimits,
        *,
        max_hold: float | None,
        max_held: int,
    ) -> None:
        self._consumer, self._throttling, self._limits, self._max_hold = consumer, throttling, limits, max_hold
        self._capacity = PoolCapacity(consumer)
        self._tasks = HeldTasks(consumer, throttling.limiter, self._capacity, max_held, self._check)
        self._running = RunningTasks(consumer, throttling.limiter, self._finish, self._on_rate_limited)
        self._copies = Copies(consumer)
        self._only_here: set[HeldTask] = set()  # acknowledged tasks whose body has not ended, and without a safe copy
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

    def receive(self, request: Any) -> None:
        """Receive the signal `task_received`, in the main process, before Celery reads ETA and rate_limit."""
        request.request_dict.pop(RECEIPT, None)  # only the worker sets it: a sender could fake a charge
        self._capacity.record_received(request)
        if (error := refusal_of(request, self._throttling, self._limits)) is not None:
            request.execute_using_pool = partial(self._refuse, request, error)
            return
        try:
            limited = self._throttling.concerns(self._limits.of(request.task))
        except ConfigurationError:
            # `admit` fails the task. Celery would only log an exception of this signal handler, and the body would
            # run unthrottled.
            limited = True
        if not limited:
            self._capacity.keep_order(request)
            return
        # Celery copies headers to a retry of the body, and to a task that replaces this task.
        request.request_dict.pop(ASKS_AT, None)
        queue, now = queue_of(self._consumer, request), time.monotonic()
        first_request_at = now + first_request_delay(request.message)
        held = HeldTask(request, request.execute_using_pool, now, queue, first_request_at=first_request_at)
        request.execute_using_pool = partial(self._admit, held)

    def start(self) -> None:
        """Prepare for a new connection of the worker to its broker. Called for the first and each later connection."""
        consumer, now = self._consumer, time.monotonic()
        self._longest = longest_hold(consumer, self._max_hold)
        if now < self._lost_at + self._longest:
            # Only while a task may be held: after the visibility time-out, another worker may have these tasks.
            give_back(consumer, self._lost, now + _GIVE_BACK_WITHIN)
        self._lost, self._tried = [], guard_close(consumer)
        name_deliveries(consumer)
        read_pending_replies(consumer)
        keep_accepted_jobs(consumer)
        keep_loop_running(consumer)
        self._copies.start()
        self._capacity.start()
        self._throttling.warn_in_memory()
        self._pid = os.getpid()
        self._tasks.start()

    def on_disconnect(self) -> None:
        """
        Handle the loss of the connection.

        The broker delivers the unacknowledged tasks of this connection again, to any worker. The acknowledged tasks
        wait here until the worker has connected again.
        """
        for held in self._running.on_disconnect():
            self._tasks.waker.done(held.id)
        self._lost_at = self._lost_at if self._lost else time.monotonic()
        for held in (*self._capacity.take_all(), *self._tasks.take_all()):
            if held in self._only_here:
                continue
            held.set_state(State.GONE)
            forget(held.request.message)
            if (tag := held.request.message.delivery_tag) not in self._tried:
                self._lost.append(tag)
        for held in self._at_risk():
            self._tasks.hold_again(held, 0.0)

    def stop(self) -> None:
        """
        Stop the worker.

        When the connection closes, the broker requeues the tasks that the worker holds. They keep their positions in
        the store. Acknowledged tasks are put back by a copy.
        """
        self._stopping = True
        self._capacity.take_all()
        self._tasks.close()
        self._put_back_acknowledged()

    def close(self) -> None:
        """
        Release the slots of pool processes, and put back the tasks that are acknowledged, when the worker's process
        ends. Its pool has ended before.
        """
        if self._pid != os.getpid():
            return
        self._running.close()
        self.stop()  # again: bodies have ended since, and the connection may have been lost before the worker ended
        for held in self._at_risk():
            _log.error("Task %s is lost: it could not be put back after a 429 as its worker stopped.", held.request.id)
        self._only_here.clear()

    # From Celery to the pool, and back

    def _admit(self, held: HeldTask, pool: Any, **options: Any) -> Any:
        """Admit *held*, or let it wait. Celery calls this function to pass the task to the pool."""
        if self._stopping:
            return None  # the pool accepts no more tasks; the broker redelivers this one
        if not self._capacity.take_process(held):
            return None  # it waits for another process
        self._tasks.on_arrival(held)
        try:
            run = self._request(held)
        except Exception:
            self._try_again(held)
            run = None
        if run is None:
            return self._release_pool_slot()
        held.request.request_dict[RECEIPT] = receipt_of(run)
        return self._running.execute(held, run, pool, **options)

    def _request(self, held: HeldTask) -> Run | None:
        """
        Request the units of *held*. If it may not begin, let it wait, or end it, and return None.

        An exception comes from Celery, for example if its result backend is unavailable.
        """
        if held.request.revoked():
            self._remove(held)
        elif held.end is not None:
            self._end(held, held.end)
        elif round(rest := min(held.first_request_at - time.monotonic(), self._longest), 2) > 0:  # woken a little early
            self._tasks.hold_again(held, rest)
        elif self._capacity.admit_or_queue(held):
            outcome = self._throttling.admit(held, self._tasks.waiting_of(held))
            if isinstance(outcome, Run):
                return outcome
            if isinstance(outcome, Deferred):
                self._hold(held, outcome)
            else:
                self._end(held, outcome)
        return None

    def _try_again(self, held: HeldTask) -> None:
        """Handle an exception of Celery: let *held*, whose body does not begin now, make a request a little later."""
        _log.exception("Task %s could not be ended or checked by Celery; it is tried again.", held.request.id)
        if held.request.acknowledged:
            self._only_here.add(held)
        self._tasks.hold_again(held, _TRY_AGAIN_AFTER)

    def _refuse(self, request: Any, error: ConfigurationError, *_: Any, **__: Any) -> None:
        """End *request* as failed. Celery calls this function to pass the task to the pool."""
        try:
            end_without_body(request, Failed(error))
        except Exception:
            _log.exception("Task %s could not be ended without its body; the broker keeps it.", request.id)
        self._release_pool_slot()

    def _hold(self, held: HeldTask, outcome: Deferred) -> None:
        """Hold *held*, which was denied."""
        self._tasks.hold(held, outcome.delay)
        if outcome.decision is not None:
            self._emit_deferred(held, outcome.decision.limit.name, outcome.delay)
        if held in self._only_here:
            held.first_request_at = time.monotonic() + outcome.delay
            self._put_back(held)

    def _check(self, held: HeldTask) -> bool:
        """Remove *held* if it was revoked, or put it back if it was held too long. Return whether either was done."""
        if held.state is not State.HELD:
            return False
        if held.request.revoked():
            self._remove(held)
            return True
        now = time.monotonic()
        is_over = held in self._only_here or now - held.received_at > self._longest
        # A task that has ended is not put back: its copy would begin a new wait.
        if is_over and held.end is None and now >= max(self._copy_again_at, held.stays_until):
            self._put_back(held)
            return True
        return False

    def _finish(self, held: HeldTask) -> None:
        """Report to the waker that the body of *held* has ended, and free its pool slot. Called in any thread."""
        self._only_here.discard(held)
        self._tasks.waker.done(held.id)
        self._capacity.on_slot_freed()

    def _on_rate_limited(self, held: HeldTask, back: RunAgain) -> None:
        """Let *held* wait again, because its body raised `RateLimited`. Called in any thread."""
        self._tasks.loop.call(partial(self._hold_after_429, held, back))

    def _hold_after_429(self, held: HeldTask, back: RunAgain) -> None:
        request = held.request
        if request.acknowledged:
            self._only_here.add(held)
        elif held.state is State.ABANDONED or self._stopping:
            held.set_state(State.GONE)
            return
        # Remove Celery's record of the ended body. Otherwise "terminate" could kill the process of another task.
        request.time_start = request.worker_pid = request._apply_result = None
        if self._stopping:
            held.set_state(State.HELD)  # until it is put back
            return
        outcome = self._throttling.wait_again(held, self._tasks.waiting_of(held), back.retry_after, stored=back.stored)
        if isinstance(outcome, Deferred):
            self._hold(held, outcome)
        else:
            # `Run` means that the task must not wait any longer, so it fails with its own error.
            self._end(held, Failed(RateLimited(back.retry_after)) if isinstance(outcome, Run) else outcome)
        self._tasks.waker.report_free()
        self._capacity.on_slot_freed()

    # Tasks that are put back

    def _at_risk(self) -> list[HeldTask]:
        """Return the tasks that only this worker has, and that neither run nor have a copy that may be confirmed."""
        safe = (State.RUNNING, State.ABANDONED, State.REQUEUEING)
        return [held for held in list(self._only_here) if held.state not in safe]

    def _put_back_acknowledged(self) -> None:
        """Put the acknowledged tasks back into their queues while the worker stops, and wait for the confirmations."""
        until = time.monotonic() + _GIVE_BACK_WITHIN
        self._tasks.loop.run()
        for held in self._at_risk():
            if until <= time.monotonic() < self._copy_again_at:
                break  # the broker does not answer
            held.set_state(State.REQUEUEING)
            self._publish_copy(held)
        self._copies.wait_for_confirmations(_GIVE_BACK_WITHIN)
        self._copies.close()

    def _put_back(self, held: HeldTask) -> None:
        """Put *held* back into its queue. The worker holds it until the broker has confirmed the copy."""
        if self._tasks.requeue(held):
            self._publish_copy(held)

    def _publish_copy(self, held: HeldTask) -> None:
        try:
            self._copies.put_back(held, partial(self._on_copy_result, held))
        except Exception as error:
            self._copy_again_at = time.monotonic() + _RETRY_COPY_AFTER
            if self._copy_failed.due():
                _log.warning(
                    "Denied tasks could not be put back (%s); they are held, and put back later.", type(error).__name__
                )
            self._on_copy_result(held, False)

    def _on_copy_result(self, held: HeldTask, safe: bool) -> None:
        """Acknowledge the original of *held* if the broker has its copy (*safe*). Otherwise keep *held*."""
        request = held.request
        if held.state is not State.REQUEUEING:
            return
        if safe:
            self._tasks.forget(held)
            held.set_state(State.GONE)
            self._only_here.discard(held)
            # Celery would acknowledge on the next iteration of its loop. Many tasks can be put back in one iteration,
            # and after a kill all of them would exist twice. A loop that has ended has no next iteration.
            if not request.acknowledged:
                request.message.ack_log_error(_log, self._consumer.connection_errors)
                request.acknowledged = True
        elif self._stopping:
            held.set_state(State.HELD)  # `close` publishes another copy, if the task is acknowledged
        else:
            # If the time of its next request has come, this request is made before the next copy.
            held.stays_until = time.monotonic() + 2 * _RETRY_COPY_AFTER
            self._tasks.hold_again(held, _RETRY_COPY_AFTER)

    # Tasks that end without their body

    def _remove(self, held: HeldTask) -> None:
        """Remove *held*, which was revoked or has expired, from this worker and from the waitlists in the store."""
        self._tasks.forget(held)
        held.set_state(State.ENDED)
        self._only_here.discard(held)
        self._throttling.leave(held, self._tasks.waiting_of(held))

    def _end(self, held: HeldTask, outcome: Failed | Dropped) -> None:
        """End *held* with *outcome*. If Celery cannot store the outcome, try again until it can."""
        held.set_state(State.ENDED)
        held.end = outcome
        self._tasks.waker.done(held.id)
        try:
            end_without_body(held.request, outcome)
        except Exception:
            self._try_again(held)
        else:
            self._only_here.discard(held)

    def _release_pool_slot(self) -> None:
        """
        Release the pool's slot, so that the next task gets it.

        Celery releases the slot of a revoked task by raising an exception. Here these exceptions would nest: with 1 000
        denied tasks in a row, each task would be handled inside the call for the previous task, and the stack would
        overflow.
        """
        release = getattr(self._consumer.controller, "_quick_release", None)
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
