"""The middleware: a message becomes a Job, a denial becomes Dramatiq's own delayed delivery."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn

from dramatiq import Actor, Broker
from dramatiq.common import current_millis, q_name
from dramatiq.middleware import Middleware, SkipMessage

from throttlekit import ConfigurationError, Limit, Limiter, RateLimited, current
from throttlekit.adapter import (
    MAX_WAIT,
    ON_429,
    THROTTLE,
    Deferred,
    Delivery,
    Dropped,
    Failed,
    InlineWaits,
    Outcome,
    Run,
    Throttling,
    WaitRules,
    WhenOver,
    begin,
    boolean_in,
    check_limiter,
    end,
    is_counted_here,
    lane_behind,
    lane_for,
    lane_left,
    seconds_in,
)
from throttlekit_dramatiq._body import Bodies
from throttlekit_dramatiq._delayed_consumer import DelayedConsumers
from throttlekit_dramatiq._errors import AnyError, DeferFailed, as_middleware_error
from throttlekit_dramatiq._host import (
    age_limit_before,
    calm,
    count_in_prometheus,
    quieten,
    still_ours,
    take_position,
)
from throttlekit_dramatiq._message_state import (
    DEFERRAL,
    GRANT,
    TICKET,
    Deferral,
    Grant,
    consumer_of,
    holder_of,
    take_mark,
)
from throttlekit_dramatiq._options import Options
from throttlekit_dramatiq._parking import Parking
from throttlekit_dramatiq._waiting import LONGEST_HOLD

__all__ = ["Throttle"]

_log = logging.getLogger("throttlekit.dramatiq")


class Throttle(Middleware):
    """
    Holds limits over every worker that has this middleware and names the same store.

    A message that its limits deny goes back through its delay queue with its id, options, retries,
    group, pipeline and result untouched, and runs when its turn has come. So does one whose body raises
    `RateLimited`, once the key that it pauses admits again. A slot of a concurrency limit is held until the
    body has ended, however it ends. Add it to the broker before
    actors are declared; it takes its right place among the middleware by itself when a worker boots.

    Args:
        limiter: Decides. Make it at import; it connects on first use.
        throttle: Limits for every actor that names none of its own.
        on_429: The one of them that is paused if a body raises `RateLimited` without naming a limit; a limit or its
            name. An actor or a message with limits of its own may have a `throttle_on_429` of its own too.
        max_wait: How long a message may wait in all, in seconds, from its first denial. The option
            `throttle_max_wait` of an actor goes before it, and that of a message before both. Default: for ever.
        max_deferrals: How often a message may be denied. Default: any number of times.
        when_over: What becomes of a message past either, and of one that is refused because a limit's `queue=`
            is full: "fail" dead-letters it with `WaitedTooLong`, "drop" acknowledges it unrun, "run" runs it
            uncharged, **beyond the limit**.
        max_inline_wait: The longest wait, in seconds, that a worker thread sleeps in place. At most a
            quarter of a worker's threads (at least one) do so at once. 0: no thread does.
        parking: Whether messages that are due much later wait in Redis, in no worker: docs/dramatiq.md. Nothing else
            changes where the broker is not `RedisBroker`.
        own_limits: Whether messages may bring `throttle`, `throttle_max_wait` or `throttle_on_429` of their own. False:
            to send one is an error, and a worker dead-letters it.

    Raises:
        ConfigurationError: An argument can never work.
    """

    def __init__(
        self,
        limiter: Limiter,
        *,
        throttle: Limit | Iterable[Limit] = (),
        on_429: Limit | str | None = None,
        max_wait: float | timedelta | None = None,
        max_deferrals: int | None = None,
        when_over: WhenOver = "fail",
        max_inline_wait: float | timedelta = 0.05,
        parking: bool = True,
        own_limits: bool = True,
    ) -> None:
        check_limiter(limiter, 'Throttle takes a limiter: Throttle(Limiter("redis://…"))')
        rules = WaitRules.read(max_wait, max_deferrals, when_over)
        own_limits = boolean_in("own_limits", own_limits)
        self._options = Options(limiter, throttle, on_429, rules, own_limits=own_limits)
        self._throttling = Throttling(limiter, self._options, rules=rules, log=_log, noun="Message")
        self._max_inline_wait = seconds_in("max_inline_wait", max_inline_wait)
        self._queues: set[str] = set()
        self._consumers = DelayedConsumers()
        self._parking = Parking(self._throttling, wanted=boolean_in("parking", parking))
        self._bodies = Bodies(self._rate_limited)
        self._worker: Any = None

    @property
    def limiter(self) -> Limiter:
        """The limiter that decides."""
        return self._throttling.limiter

    @property
    def actor_options(self) -> set[str]:
        return {THROTTLE, ON_429, MAX_WAIT}

    # Declaration

    def before_declare_actor(self, broker: Broker, actor: Actor[..., Any]) -> None:
        try:
            options = self._options.declare(actor)
        except Exception as error:
            # Dramatiq would log any other error, and declare the actor without its limits.
            raise as_middleware_error(ConfigurationError(f"actor {actor.actor_name!r}: {error}")) from error
        self._bodies.watch(actor)
        if self._throttling.concerns(options):
            self._queues.add(actor.queue_name)

    def before_enqueue(self, broker: Broker, message: Any, delay: int | None) -> None:
        """Limits given with the message travel in it by value, with the keys and costs that they have here."""
        try:
            self._options.write(broker, message)
        except ConfigurationError as error:
            raise as_middleware_error(ConfigurationError(f"message for {message.actor_name!r}: {error}")) from None

    # Boot

    def before_worker_boot(self, broker: Broker, worker: Any) -> None:
        self._check_boot(broker)
        self._throttling.warn_in_memory()
        take_position(broker, self)
        quieten()
        self._worker, self._options.broker = worker, broker
        self._options.age_limit = age_limit_before(broker, self)
        self._consumers.boot(worker)
        self._parking.boot(broker)
        at_once = max(1, worker.worker_threads // 4) if self._max_inline_wait else 0
        self._options.wait_in_place(InlineWaits(self._max_inline_wait, at_once))

    def after_worker_shutdown(self, broker: Broker, worker: Any) -> None:
        self._worker = None
        self._parking.stop()

    def _check_boot(self, broker: Broker) -> None:
        fault = ""
        if self._worker is not None:
            fault = (
                "this Throttle serves a running worker already: one Worker a process, and a Throttle for each broker"
            )
        elif sum(isinstance(middleware, Throttle) for middleware in broker.middleware) > 1:
            fault = "two Throttle middlewares on one broker would charge each message twice: remove one"
        if fault:
            raise as_middleware_error(ConfigurationError(fault))
        actors: dict[str, Any] = _untyped(broker).actors
        for name, actor in actors.items():
            if not self._options.knows(name):  # declared before this middleware was added
                self.before_declare_actor(broker, actor)

    def after_consumer_thread_boot(self, broker: Broker, thread: Any) -> None:
        if q_name(thread.queue_name) in self._queues:
            self._consumers.adopt(thread)
            self._parking.adopt(q_name(thread.queue_name))

    def before_consumer_thread_shutdown(self, broker: Broker, thread: Any) -> None:
        if q_name(thread.queue_name) in self._queues:
            self._consumers.retire(thread)

    # A message's way

    def before_process_message(self, broker: Broker, message: Any) -> None:
        outcome = self._throttling.admit(message)
        if isinstance(outcome, Run) and outcome.decision is None:
            self._consumers.take(message)
        else:
            self._follow(broker, message, outcome, self._consumer(message), stays=self._stays(message))

    def after_process_message(
        self, broker: Broker, message: Any, *, result: Any = None, exception: BaseException | None = None
    ) -> None:
        take_mark(message, DEFERRAL)  # the message did not end as a skip
        self._over(message, exception)

    def after_skip_message(self, broker: Broker, message: Any) -> None:
        self._over(message)
        deferral: Deferral | None = getattr(message, DEFERRAL, None)
        if deferral is not None and deferral.left:
            self._consumers.wake((deferral.left,), probe=True)

    def before_nack(self, broker: Broker, message: Any) -> None:
        self._over(message)

    def before_ack(self, broker: Broker, message: Any) -> None:
        """Put a denied message back. Here, so that the original is acknowledged only once the copy is safe."""
        marks = message.__dict__  # to ask the message itself takes longer where it has none
        if GRANT in marks:
            self._over(message)
        deferral: Deferral | None = marks.get(DEFERRAL)
        if deferral is None or deferral.sent:
            return
        try:
            if not still_ours(self._worker, message, deferral.consumer):
                return
            if deferral.parks is not None:
                self._parking.put(deferral, deferral.parks)
            else:
                _untyped(broker).enqueue(deferral.copy, delay=deferral.delay_ms)
        except Exception as error:
            reason = f"a denied message could not be put into its delay queue: {error!r}"
            raise DeferFailed(reason) from error  # type: ignore[no-untyped-call]
        deferral.sent = True

    def _follow(self, broker: Broker, message: Any, outcome: Outcome, consumer: Any, *, stays: bool = False) -> None:
        match outcome:
            case Run():
                self._run(message, outcome, consumer)
            case Deferred() if consumer is not None and (parks := self._parks(message, outcome)) is not None:
                copy = message.copy(options={TICKET: outcome.ticket})
                self._skip(broker, message, Deferral(copy, _milliseconds(outcome.delay), consumer, parks=parks))
            case Deferred() if stays:
                lane, waited = lane_for(outcome), getattr(holder_of(message), "waited", None)
                left = lane_left(waited, lane, outcome.delay)
                delay_ms, ticket = _milliseconds(outcome.delay), outcome.ticket
                self._skip(broker, message, Deferral(None, delay_ms, consumer, ticket=ticket, lane=lane, left=left))
            case Deferred():
                copy = message.copy(options={TICKET: outcome.ticket} if outcome.ticket else {})
                self._skip(broker, message, Deferral(copy, _milliseconds(outcome.delay), consumer))
            case Dropped():
                self._count(broker, message)
                raise SkipMessage(f"dropped: {outcome.reason}")
            case Failed():
                self._fail(broker, message, outcome.error)

    def _run(self, message: Any, run: Run, consumer: Any) -> None:
        # The body's own retries ask anew: they call downstream again.
        message.options.pop(TICKET, None)
        self._consumers.take(message)
        holder, behind = holder_of(message), ""
        if holder is not None:
            early = (holder.waited.expected - current_millis()) / 1000
            behind = lane_behind(run, early=early, waited=holder.waited)
        grant = Grant(run, consumer, behind)
        setattr(message, GRANT, grant)
        self._bodies.expect(message)
        if run.decision is not None and run.decision.allowed:
            begin(self.limiter, run.decision, run.job)
            if holder is not None and (holder.probe or behind):
                woken = self._consumers.wake(grant.lanes, probe=True)
                if woken and behind:  # once: the message that asks goes on to make the next one ask, if it is right
                    grant.behind = ""

    def _over(self, message: Any, error: BaseException | None = None) -> None:
        """The body of *message* has ended, or will not begin. In the thread that it had, any number of times."""
        grant: Grant | None = take_mark(message, GRANT)
        if grant is None:
            self._consumers.give_back(message)
            return
        self._bodies.expect(None)  # it may not have begun
        returned = grant.run.returned_lanes(current().decision)
        end(error)
        self._consumers.give_back(message)
        if self._consumers.wake((*grant.lanes, *returned)) is False:
            self._parking.freed(grant.run.lanes, returned)

    def _rate_limited(self, message: Any, error: RateLimited) -> None:
        """The body of *message* has raised *error*. Returns if that is an error like any other."""
        grant: Grant = getattr(message, GRANT)
        broker = self._options.broker
        calm(broker, self, message)
        # It has aged while its body ran.
        run = replace(grant.run, delivery=self._options.with_expiry(message, grant.run.delivery))
        outcome = self._throttling.rate_limited(run, error, release=partial(end, error))
        if not isinstance(outcome, Run):
            self._follow(broker, message, outcome, grant.consumer)

    def _parks(self, message: Any, outcome: Deferred) -> Delivery | None:
        """How long *message* may wait, if it is to be parked; None: it is not."""
        if not self._parking.takes(message, outcome):
            return None
        options = self._options.options(message)
        return None if is_counted_here(options.limits) else self._options.delivery(message, options.max_wait)

    def _stays(self, message: Any) -> bool:
        """Whether *message* is still in its delay queue, not for too long yet, and so can go on waiting there."""
        holder = holder_of(message)
        if holder is None or holder.consumer is not holder.thread.consumer:
            return False
        since: float = holder.held.since
        return time.monotonic() - since < LONGEST_HOLD

    def _skip(self, broker: Broker, message: Any, deferral: Deferral) -> NoReturn:
        setattr(message, DEFERRAL, deferral)
        # On the dying original only, after the copy: Results would store a None, and end a reader's wait.
        message.options["store_results"] = False
        self._count(broker, message)
        raise SkipMessage("deferred by throttlekit")

    def _fail(self, broker: Broker, message: Any, error: Exception) -> NoReturn:
        _log.error("Message %s for %s fails: %s", message.message_id, message.actor_name, error)
        # Asking again cannot help.
        message.options["throws"] = AnyError()
        message.fail()
        self._count(broker, message)
        raise as_middleware_error(error)

    def _count(self, broker: Broker, message: Any) -> None:
        if not hasattr(message, GRANT):
            count_in_prometheus(broker, self, message)

    def _consumer(self, message: Any) -> Any:
        """The consumer that *message* came from: another may have taken its place when the body has ended."""
        holder = holder_of(message)
        return holder.consumer if holder else consumer_of(self._worker, message)


def _milliseconds(seconds: float) -> int:
    return max(1, math.ceil(seconds * 1000))


def _untyped(host: Any) -> Any:
    """Dramatiq's own annotations leave type parameters open, which strict checkers will not have."""
    return host
