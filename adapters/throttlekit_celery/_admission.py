"""The gate: a task is decided on in the worker's main process, when a slot of the pool is about to be used."""

from __future__ import annotations

import logging
import math
import os
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

from throttlekit import ConfigurationError, Decision, Delivery, Job, Limiter
from throttlekit._engine.ticket import Ticket
from throttlekit._util.log_limiter import Every
from throttlekit.adapter.options import WaitRules, refusal
from throttlekit.errors import WaitedTooLong
from throttlekit_celery._body import RECEIPT, told_to_body
from throttlekit_celery._host import worker_state
from throttlekit_celery._options import TaskLimits
from throttlekit_celery._outcomes import drop, fail
from throttlekit_celery._pool_capacity import Room
from throttlekit_celery._requeue import CONFIRMED_WITHIN, TICKET, Copies, delays_natively, queue_of
from throttlekit_celery._running import RunningTasks
from throttlekit_celery._waiting import Held, HeldTask

__all__ = ["DEFERRED_EVENT", "Gate", "Settings"]

DEFERRED_EVENT = "throttlekit-deferred"
"""The Celery event that tells until when a task has to wait."""

_log = logging.getLogger("throttlekit.celery")

_LONGEST_HOLD = 600.0  # RabbitMQ closes a channel that holds a message for 30 minutes; 10 leave room
_SHARE = 1 / 3
"""Of the time that a broker lets a message be unacknowledged, so much may be spent on waiting."""

_DURABLE_AFTER = 30.0
"""A ticket for a longer wait than this is written into the message, so that a killed worker does not lose it."""

_NATIVE_AFTER = 0.5
"""Where the broker itself can delay, in whole seconds, it keeps what waits longer than this."""

_UNASKED_AFTER = 1.0
"""What comes back with a ticket for more than so many seconds from now is held, and not asked for again."""

_NATIVE_LATENESS = 1.0
_LATENESS = 0.05
_PANIC_DELAY = 1.0
_GIVE_BACK_WITHIN = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What `install` was told."""

    rules: WaitRules
    max_hold: float | None
    max_held: int


class Gate:
    """Stands before the pool, for one app."""

    def __init__(self, app: Any, limiter: Limiter, limits: TaskLimits, settings: Settings) -> None:
        self._app = app
        self._limiter = limiter
        self._limits = limits
        self._settings = settings
        self._held = Held(settings.max_held)
        self._room = Room()
        self._granted = RunningTasks(limiter, self._held, self._comes_back, self._room.vacant)
        self._copies = Copies(app)
        self._deliveries: dict[tuple[str, str | None], Delivery] = {}
        self._known_at_start: frozenset[str] = frozenset()
        self._pid = 0
        self._stopping = False
        self._draining = False
        self._owed = 0
        self._copy_failed = Every()

    @property
    def limiter(self) -> Limiter:
        return self._limiter

    @property
    def max_hold(self) -> float | None:
        """What `install` was told."""
        return self._settings.max_hold

    def receive(self, sender: Any = None, request: Any = None, **_: Any) -> None:
        """Celery's signal `task_received`, in the main process, before Celery looks at ETA and rate_limit."""
        if sender.app is not self._app:
            return
        request.request_dict.pop(RECEIPT, None)  # whoever sent it may not say what a task has charged
        try:
            limits = self._limits.of(request.task)
        except ConfigurationError as error:
            # What left a signal handler would be logged, and the body would run unthrottled.
            request.execute_using_pool = partial(self._refuse, sender, request, error)
            return
        if not limits:
            return
        # A retry of the body, or a task that replaces this one, must not inherit the ticket.
        request.request_dict.pop(TICKET, None)
        headers: dict[str, Any] = request.message.headers or {}
        ticket = headers.get(TICKET)
        queue = queue_of(sender, request)
        gated = HeldTask(sender, request, limits, request.execute_using_pool, time.monotonic(), ticket, ticket, queue)
        request.execute_using_pool = partial(self._enter, gated)

    def check(self) -> None:
        """
        Read the limits of every task that is known here.

        Raises:
            ConfigurationError: Some can never work; the message names the task.
        """
        for task in list(self._app.tasks.values()):
            self._limits.of(task)
        for name in sorted(self._limits.names - set(self._app.tasks)):
            _log.warning("install(throttle=…) names a task %r, which this worker does not know.", name)

    def start(self, consumer: Any) -> None:
        """A worker has connected."""
        self._deliveries.clear()
        self._pid = os.getpid()
        # Celery has told its delay exchange of these. What would come back to a queue that is added later is lost.
        self._known_at_start = frozenset(consumer.app.amqp.queues)
        self._stopping = False
        self._granted.start(consumer)

    def disconnected(self, consumer: Any) -> None:
        """The connection is gone: what was delivered on it the broker delivers again, to whom it likes."""
        self._granted.disconnected()
        for gated in (*self._room.take_all(), *self._held.take_all(consumer)):
            gated.gone = True
            worker_state().task_ready(gated.request)

    def stop(self, consumer: Any) -> None:
        """The worker stops: put back what it holds, with its tickets, so that nobody loses his place."""
        until = time.monotonic() + _GIVE_BACK_WITHIN
        self._stopping = True
        self._copies.settle(until)
        for gated in (*self._room.take_all(), *self._held.take_all(consumer)):
            # The rest goes back as it came, when the connection closes.
            if gated.ticket != gated.carried and time.monotonic() < until:
                self._put_back(gated, 0.0)
        self._copies.settle(until)
        self._copies.close()

    def close(self, **_: Any) -> None:
        """The worker's process ends: its pool has ended too."""
        if self._pid != os.getpid():
            return
        self._granted.close()
        self._copies.settle(time.monotonic() + _GIVE_BACK_WITHIN)
        self._copies.close()

    # A task's way

    def _enter(self, gated: HeldTask, pool: Any, **options: Any) -> Any:
        if self._stopping:
            return None  # the pool takes nothing any more: the broker will give it to somebody else
        if gated.request.revoked():
            return self._step_aside(gated.consumer)
        try:
            rest = self._rest(gated)
            if rest > _UNASKED_AFTER:
                gated.ticket = Ticket.read(gated.carried).write()  # next time it asks
                self._wait(gated, rest)
                return self._step_aside(gated.consumer)
            if not self._room.admits(gated, pool):
                return self._step_aside(gated.consumer)
            decision = self._ask(gated)
        except ConfigurationError as error:
            return self._refuse(gated.consumer, gated.request, error, pool)
        except Exception:
            _log.exception("Task %s could not be decided on; it is deferred.", gated.request.id)
            self._held.hold(gated, _PANIC_DELAY)
            return self._step_aside(gated.consumer)
        if decision.allowed or (decision.final and self._settings.rules.when_over == "run"):
            told = told_to_body(decision, gated.ticket, gated.queue, self._delivery(gated))
            gated.request.request_dict[RECEIPT] = told
            return self._granted.execute(gated, decision, pool, **options)
        if decision.final:
            self._end(gated, decision)
        else:
            self._defer(gated, decision)
        return self._step_aside(gated.consumer)

    def _ask(self, gated: HeldTask) -> Decision:
        request, task = gated.request, gated.request.task
        job = Job(
            id=request.id,
            name=task.name,
            queue=gated.queue or "",
            args=tuple(request.args),
            kwargs=request.kwargs,
            function=task.run,
            ticket=gated.ticket,
        )
        return self._limiter.acquire(*gated.limits, job=job, delivery=self._delivery(gated))

    def _rest(self, gated: HeldTask) -> float:
        """
        How long a copy that has just come has to wait until its slot, by its ticket; 0: it has to ask.

        Nobody is held unasked twice: the store may have lost its line, or got another clock, and would let it pass.
        """
        if not gated.carried or gated.ticket is not gated.carried or self._delays_natively(gated):
            return 0.0
        if self._delivery(gated).max_wait < math.inf:
            return 0.0
        rest = self._limiter.until_due(gated.limits, gated.carried)
        return 0.0 if rest is None else min(rest, self._delivery(gated).longest)

    def _comes_back(self, gated: HeldTask, denial: Decision) -> None:
        """Its body has heard "429", and ended without an outcome."""
        request = gated.request
        worker_state().task_ready(request)
        if not request.acknowledged and (gated.gone or self._stopping):
            return  # the broker has it still, and gives it to somebody
        # What Celery noted of the body that has ended: whoever terminates the task must not hit another.
        request.time_start = request.worker_pid = request._apply_result = None
        if denial.final:
            self._end(gated, denial)
        elif not self._stopping:
            self._defer(gated, denial)
        else:
            gated.ticket = denial.ticket
            if not self._put_back(gated, 0.0):
                _log.error("Task %s is lost: it could not be put back after a 429 as its worker stopped.", request.id)

    def _defer(self, gated: HeldTask, decision: Decision) -> None:
        gated.ticket, delay = decision.ticket, decision.delay
        if decision.reason != "early":
            self._tell(gated, decision, delay)
        self._wait(gated, delay)

    def _wait(self, gated: HeldTask, delay: float) -> None:
        """Hold *gated*, or put it back into its queue, whichever the broker allows for so long."""
        held_for, longest = time.monotonic() - gated.received_at, self._delivery(gated).longest
        # Not before half the time is over: a copy that is due much later would go round and round.
        worn = held_for + delay > longest and held_for > longest / 2
        native = delay > _NATIVE_AFTER and self._delays_natively(gated)
        durably = delay > _DURABLE_AFTER and gated.ticket != gated.carried
        # What was acknowledged as its body began is in no queue any more.
        if worn or native or durably or gated.request.acknowledged:
            if self._put_back(gated, delay if native else 0.0):
                return
            delay = min(delay, _PANIC_DELAY)
        lane = (gated.ticket or {}).get("lane")
        self._held.hold(gated, delay if worn else min(delay, longest - held_for), lane)

    def _put_back(self, gated: HeldTask, delay: float) -> bool:
        """Put *gated* back into its queue; it is held until the broker has confirmed that."""
        gated.gone = False
        try:
            sent = self._copies.put_back(
                gated.consumer, gated.request, gated.queue, gated.ticket, delay, partial(self._copied, gated)
            )
        except Exception as error:
            self._tell_copy_failed(error)
            return False
        if sent and not gated.gone and not self._stopping:
            self._held.hold(gated, CONFIRMED_WITHIN)
        return sent

    def _copied(self, gated: HeldTask, safe: bool) -> None:
        """The broker has told whether a copy is safe. If so, the original goes."""
        request = gated.request
        if gated.gone:
            return
        self._held.drop(gated)
        if safe:
            gated.gone = True
            worker_state().task_ready(request)
            # Now, and not on the loop's next turn as Celery does it: many go back in one turn, and a kill would
            # leave all of them twice. A loop that has ended has no next turn.
            if not request.acknowledged:
                request.message.ack_log_error(_log, gated.consumer.connection_errors)
                request.acknowledged = True
        elif not self._stopping:
            self._held.hold(gated, _PANIC_DELAY)

    def _end(self, gated: HeldTask, decision: Decision) -> None:
        if self._settings.rules.when_over == "drop":
            drop(gated.request, refusal(decision))
        else:
            fail(gated.request, WaitedTooLong(refusal(decision)))

    def _refuse(self, consumer: Any, request: Any, error: Exception, pool: Any, **_: Any) -> None:
        """Asking again cannot help."""
        if not request.revoked():
            fail(request, error)
        self._step_aside(consumer)

    def _step_aside(self, consumer: Any) -> None:
        """
        Leave the pool's slot to the next.

        Not by an exception, as Celery does for revoked tasks: each of many that are denied one after the
        other would then lie on the stack of the one before.
        """
        release = getattr(consumer.controller, "_quick_release", None)
        if release is None:
            return
        self._owed += 1
        if self._draining:
            return
        self._draining = True
        try:
            while self._owed:
                self._owed -= 1
                release()
        finally:
            self._draining = False

    def _delivery(self, gated: HeldTask) -> Delivery:
        key = gated.request.task.name, gated.queue
        delivery = self._deliveries.get(key)
        if delivery is None:
            max_wait = self._limits.max_wait_of(gated.request.task)
            delivery = self._deliveries[key] = Delivery(
                longest=_longest_hold(gated.consumer, self._settings.max_hold),
                lateness=_NATIVE_LATENESS if self._delays_natively(gated) else _LATENESS,
                max_wait=self._settings.rules.max_wait if max_wait is None else max_wait,
                max_deferrals=self._settings.rules.max_deferrals,
            )
        return delivery

    def _delays_natively(self, gated: HeldTask) -> bool:
        return gated.queue in self._known_at_start and delays_natively(gated.consumer, gated.queue)

    def _tell(self, gated: HeldTask, decision: Decision, delay: float) -> None:
        try:
            gated.request.send_event(
                DEFERRED_EVENT, name=gated.request.name, limit=decision.limit.name, until=time.time() + delay
            )
        except Exception as error:
            _log.debug("The event of a deferral could not be sent: %s", type(error).__name__)

    def _tell_copy_failed(self, error: Exception) -> None:
        if self._copy_failed.due():
            _log.warning(
                "Denied tasks could not be put back (%s); they are held, and it is tried again.", type(error).__name__
            )


def _longest_hold(consumer: Any, wanted: float | None) -> float:
    """How long a task may be held: well within what the broker lets a message be unacknowledged."""
    if wanted is not None:
        return wanted
    allowed = [_LONGEST_HOLD / _SHARE]
    if visibility := consumer.app.conf.broker_transport_options.get("visibility_timeout"):
        allowed.append(visibility)
    for queue in consumer.task_consumer.queues:
        arguments: dict[str, Any] = queue.queue_arguments or {}
        if timeout_ms := arguments.get("x-consumer-timeout"):
            allowed.append(timeout_ms / 1000)
    return float(min(allowed)) * _SHARE
