"""The gate: a task is admitted in the worker's main process, when a slot of the pool is free for it."""

from __future__ import annotations

import logging
import math
import os
import time
from functools import partial
from typing import Any

from throttlekit import ConfigurationError, Limiter
from throttlekit.adapter import Deferred, Dropped, Every, Failed, Run, Throttling, Ticket, is_far, lane_for
from throttlekit_celery._body import RECEIPT, GoesBack, receipt_of
from throttlekit_celery._delay_exchange import DelayExchange
from throttlekit_celery._host import forget, give_back, guard_close, is_refusal, keep_turning, name_deliveries
from throttlekit_celery._maps import refusal_of
from throttlekit_celery._options import TaskLimits
from throttlekit_celery._outcomes import end_unrun
from throttlekit_celery._parking import Parking
from throttlekit_celery._pool_capacity import PoolCapacity
from throttlekit_celery._requeue import CONFIRMED_WITHIN, TICKET, Copies, queue_of
from throttlekit_celery._running import RunningTasks
from throttlekit_celery._saving import Unsaved, is_unsaved
from throttlekit_celery._waiting import HeldTask, HeldTasks, State
from throttlekit_celery._worker import Settings, WorkerHost, longest_hold

__all__ = ["DEFERRED_EVENT", "Gate"]

DEFERRED_EVENT = "throttlekit-deferred"
"""The Celery event that says until when a task waits."""

_log = logging.getLogger("throttlekit.celery")

_NATIVE_AFTER = 0.5
"""Where the broker itself can delay, in whole seconds, it keeps a task that waits longer than this."""

_UNASKED_AFTER = 1.0
"""A task that comes with a ticket for more than so many seconds from now is held, without a call to the store."""

_RETRY_COPY_AFTER = 1.0
_GIVE_BACK_WITHIN = 5.0


class Gate:
    """Stands before the pool, for one app."""

    def __init__(self, app: Any, limiter: Limiter, limits: TaskLimits, settings: Settings) -> None:
        self._app = app
        self._limits = limits
        self._settings = settings
        self._copies = Copies(app)
        self._host = WorkerHost(limits, settings, DelayExchange(self._copies))
        self.throttling = Throttling(limiter, self._host, rules=settings.rules, log=_log, noun="Task")
        self._held = HeldTasks(settings.max_held)
        self._capacity = PoolCapacity()
        self._running = RunningTasks(limiter, self._wake, self._comes_back, self._capacity.freed)
        self._unsaved = Unsaved(self._copies.in_queue, self._save)
        self._parking = Parking(self.throttling, limits, settings.parking)
        self._pid = 0
        self._stopping = False
        self._releasing = False
        self._owed = 0
        self._copy_failed = Every()
        self._lost: list[str] = []  # delivery tags of what was held as the connection broke
        self._lost_at = 0.0
        self._tried: set[str] = set()
        self._ours: list[HeldTask] = []  # of what was held then: acknowledged before a 429, so in no queue

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
        # A retry of the body, or a task that replaces this one, must not inherit the ticket.
        request.request_dict.pop(TICKET, None)
        headers: dict[str, Any] = request.message.headers or {}
        ticket, queue = headers.get(TICKET), queue_of(sender, request)
        held = HeldTask(sender, request, request.execute_using_pool, time.monotonic(), ticket, ticket, queue)
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
        if now < self._lost_at + longest_hold(consumer, self._settings.max_hold):
            # After that, another worker may have them: the visibility time-out is three times as long.
            give_back(consumer, self._lost, now + _GIVE_BACK_WITHIN)
        self._lost, self._tried = [], guard_close(consumer)
        name_deliveries(consumer)
        keep_turning(consumer)
        self._copies.start(consumer)
        self._host.start(consumer, parks=self._parking.start(consumer))
        self._unsaved.clear()
        self.throttling.warn_in_memory()
        self._pid = os.getpid()
        self._stopping = False
        self._running.start(consumer)
        ours, self._ours = self._ours, []
        for held in ours:
            self._wait(held, max(0.0, held.due - time.monotonic()))

    def disconnected(self, consumer: Any) -> None:
        """
        The connection is lost: the broker delivers again what was delivered on it, to any worker, but for the tasks
        that were acknowledged. Those wait here until the worker has connected again.
        """
        self._running.disconnected()
        self._parking.disconnected()
        self._lost_at = self._lost_at if self._lost else time.monotonic()
        for held in (*self._capacity.take_all(), *self._held.take_all(consumer)):
            if held.request.acknowledged:
                if held.state is not State.REQUEUEING:
                    self._ours.append(held)
                continue
            held.becomes(State.GONE)
            forget(held.request.message)
            if (tag := held.request.message.delivery_tag) not in self._tried:
                self._lost.append(tag)

    def stop(self, consumer: Any) -> None:
        """The worker stops: put back what it holds, with its tickets, so that each task keeps its place in the line."""
        until = time.monotonic() + _GIVE_BACK_WITHIN
        self._stopping = True
        self._unsaved.clear()
        self._copies.settle(until)
        for held in (*self._capacity.take_all(), *self._held.take_all(consumer)):
            # The rest goes back as it came, when the connection closes.
            if held.ticket != held.carried and not held.unsure and time.monotonic() < until:
                self._put_back(held, 0.0)
        self._copies.settle(until)
        self._copies.close()
        self._parking.stop()

    def close(self, **_: Any) -> None:
        """The worker's process ends: its pool has ended too."""
        if self._pid != os.getpid():
            return
        self._running.close()
        self._parking.stop()
        for held in self._ours:
            self._put_back_or_log(held)
        self._copies.settle(time.monotonic() + _GIVE_BACK_WITHIN)
        self._copies.close()

    # A task's way

    def _enter(self, held: HeldTask, pool: Any, **options: Any) -> Any:
        """Celery gives *held* to the pool: admit it, or let it wait."""
        if self._stopping:
            return None  # the pool takes nothing any more: the broker delivers the task again
        if held.unsure:
            self._parks(held, 0.0)
        elif held.request.revoked():
            self.throttling.leave(held)
        elif not self._rests(held) and self._capacity.admits(held, pool):
            outcome = self.throttling.admit(held)
            if isinstance(outcome, Run):
                held.request.request_dict[RECEIPT] = receipt_of(outcome)
                return self._running.execute(held, outcome, pool, **options)
            if not isinstance(outcome, Deferred):
                self._end(held, outcome)
            elif outcome.decision is None:
                self._held.hold(held, outcome.delay)
            else:
                self._defer(held, outcome, outcome.decision.limit.name)
        return self._step_aside(held.consumer)

    def _refuse(self, consumer: Any, request: Any, error: ConfigurationError, *_: Any, **__: Any) -> None:
        """Celery gives *request* to the pool: end it as failed."""
        end_unrun(request, Failed(error))
        self._step_aside(consumer)

    def _rests(self, held: HeldTask) -> bool:
        """
        Hold a task that has just come, if its ticket says that it is not due yet, without a call to the store.

        Never twice: the store may have lost its line, or use another clock, and would admit it.
        """
        if not held.carried or held.ticket is not held.carried:
            return False
        try:
            delivery = self._host.delivery_of(held)
            if min(delivery.max_wait, delivery.expires_in) < math.inf or self._host.delays_natively(held):
                return False
            rest = self.limiter.until_due(self._host.options(held).limits, held.carried)
        except Exception:
            return False  # `admit` meets the same error, and reports it
        if rest is None or (rest := min(rest, delivery.longest)) <= _UNASKED_AFTER:
            return False
        if is_far(held.carried, rest) and self._parking.knows(held):
            return False  # parked tasks are woken just before they are due: the line is ahead of what the ticket says
        held.ticket = Ticket.read(held.carried).write()  # another object: next time it is admitted or denied
        self._wait(held, rest)
        return True

    def _wake(self, lane: str) -> None:
        """A slot or a unit may be free for the tasks of *lane*."""
        if not self._held.wake(lane):
            self._parking.freed(lane)

    def _comes_back(self, held: HeldTask, back: GoesBack) -> None:
        """The body of *held* has raised `RateLimited`, and ended without an outcome."""
        request, outcome = held.request, back.outcome
        if not request.acknowledged and (held.state is State.ABANDONED or self._stopping):
            held.becomes(State.GONE)
            return
        # What Celery recorded of the body that has ended: to terminate the task must not hit another one.
        request.time_start = request.worker_pid = request._apply_result = None
        held.entry = held.waited = None  # a new turn, in front of those that have not run
        if not isinstance(outcome, Deferred):
            self._end(held, outcome)
        elif not self._stopping:
            self._defer(held, outcome, back.limit)
        else:
            held.ticket = outcome.ticket
            self._put_back_or_log(held)

    def _put_back_or_log(self, held: HeldTask) -> None:
        """Put *held* back, which was acknowledged, as its worker stops."""
        if not self._put_back(held, 0.0):
            _log.error("Task %s is lost: it could not be put back after a 429 as its worker stopped.", held.request.id)

    def _defer(self, held: HeldTask, outcome: Deferred, limit: str) -> None:
        held.ticket, held.lane = outcome.ticket, lane_for(outcome)
        if not outcome.early:
            self._emit_deferred(held, limit, outcome.delay)
        self._wait(held, outcome.delay)

    def _wait(self, held: HeldTask, delay: float) -> None:
        """Hold *held*, park it, or put it back into its queue, whichever the broker allows for so long."""
        if self._parking.takes(held, delay) and self._parks(held, delay):
            return
        delivery = self._host.delivery_of(held)
        held_for, longest = time.monotonic() - held.received_at, longest_hold(held.consumer, self._settings.max_hold)
        left, delay = longest - held_for, min(delay, longest)
        # Not before half the time is over: a copy that is due much later would go round and round.
        worn = delay > left and held_for > longest / 2
        native = delay > _NATIVE_AFTER and self._host.delays_natively(held)
        unsaved = is_unsaved(held, delay) and delay <= delivery.expires_in
        # With a max_wait, its copy asks when it comes, and may wait no longer for a line that is late by then.
        at_once = unsaved and (delivery.max_wait < math.inf or not self._held.fetches_on(held.consumer))
        # A task that was acknowledged as its body began is in no queue any more.
        if worn or native or at_once or held.request.acknowledged:
            if self._put_back(held, delay if native else 0.0):
                return
            delay = min(delay, _RETRY_COPY_AFTER)
        self._held.hold(held, delay if worn else min(delay, left), wakeable=True, most=min(left, delivery.expires_in))
        if unsaved:
            self._unsaved.add(held)

    def _parks(self, held: HeldTask, delay: float) -> bool:
        """Park *held*; False: it stays here. If the broker does not answer it waits here, until that is known."""
        try:
            if not self._parking.put(held, delay, self._host.delivery_of(held)):
                return False
        except Exception as error:
            held.unsure = held.unsure or not is_refusal(error)
            if held.unsure:
                self._held.hold(held, _RETRY_COPY_AFTER)
            return held.unsure
        held.becomes(State.GONE)
        return True

    def _save(self, held: HeldTask) -> bool:
        """Put *held*, which is held, back; if that fails, it goes on waiting here."""
        late = self._held.late(held)
        if held.state is not State.HELD or not self._held.drop(held):
            return True  # it was taken up while the broker was asked for the length of its queue
        if held.entry is not None and late:  # the worker that receives the copy knows nothing of that
            held.due = held.entry.own + late
            ticket = Ticket.read(held.ticket)
            held.ticket = ticket._replace(due_us=ticket.due_us + round(late * 1_000_000)).write()
        saved = self._put_back(held, 0.0)
        if not saved:
            self._wait(held, held.due - time.monotonic())
        return saved

    def _put_back(self, held: HeldTask, delay: float) -> bool:
        """Put *held* back into its queue; it is held until the broker has confirmed the copy."""
        held.becomes(State.REQUEUEING)
        try:
            sent = self._copies.put_back(held, delay, partial(self._copied, held))
        except Exception as error:
            if self._copy_failed.due():
                _log.warning(
                    "Denied tasks could not be put back (%s); they are held, and put back later.", type(error).__name__
                )
            return False
        if sent and held.state is State.REQUEUEING and not self._stopping:
            self._held.hold(held, CONFIRMED_WITHIN, state=State.REQUEUEING)
        return sent

    def _copied(self, held: HeldTask, safe: bool) -> None:
        """The copy of *held* is *safe*, or may not be there. If it is safe, the original goes."""
        request = held.request
        if held.state in (State.ABANDONED, State.GONE, State.ENDED):
            return
        self._held.drop(held)
        if safe:
            held.becomes(State.GONE)
            # Now, and not on the loop's next turn as Celery does it: many go back in one turn, and a kill would
            # leave all of them twice. A loop that has ended has no next turn.
            if not request.acknowledged:
                request.message.ack_log_error(_log, held.consumer.connection_errors)
                request.acknowledged = True
        elif not self._stopping:
            self._held.hold(held, _RETRY_COPY_AFTER)

    def _end(self, held: HeldTask, outcome: Failed | Dropped) -> None:
        held.becomes(State.ENDED)
        end_unrun(held.request, outcome)

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
