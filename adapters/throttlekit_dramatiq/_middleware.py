"""The middleware: a message becomes a Job, a denial becomes Dramatiq's own delayed delivery."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, NoReturn

from dramatiq import Actor, Broker
from dramatiq.common import current_millis, q_name
from dramatiq.middleware import Middleware, SkipMessage

from throttlekit import ConfigurationError, Decision, Limit, Limiter, RateLimited
from throttlekit._core.durations import seconds_in
from throttlekit._engine.inline import InlineWaits
from throttlekit._engine.running import begin, end, lanes
from throttlekit.adapter.options import WaitRules, WhenOver, refusal
from throttlekit.adapter.rate_limited import limited
from throttlekit.errors import WaitedTooLong
from throttlekit_dramatiq._body import Bodies
from throttlekit_dramatiq._delayed_consumer import DelayedConsumers
from throttlekit_dramatiq._errors import AnyError, DeferFailed, as_middleware_error
from throttlekit_dramatiq._host import calm, quieten, still_ours, take_position, tell_prometheus
from throttlekit_dramatiq._message_state import DEFERRAL, GRANT, Deferral, Grant, consumer_of, holder_of, take_mark
from throttlekit_dramatiq._options import MAX_WAIT, ON_429, OPTION, Terms
from throttlekit_dramatiq._waiting import TICKET

__all__ = ["Throttle"]

_log = logging.getLogger("throttlekit.dramatiq")

_PANIC_DELAY = 1.0


class Throttle(Middleware):
    """
    Holds limits over every worker that has this middleware and names the same store.

    A message that its limits deny goes back through its delay queue with its id, options, retries,
    group, pipeline and result untouched, and runs when its turn has come. So does one whose body raises
    `RateLimited`, once the key that it pauses admits again. A slot of a concurrency limit is held until the
    body has ended, however it ends. Add it to the broker before
    actors are declared; it takes its right place among the middleware by itself when a worker boots.

    Args:
        limiter: Asks the store. Make it at import; it connects on first use.
        throttle: Limits for every actor that names none of its own.
        on_429: Which of them is paused if a body raises `RateLimited` and does not say; a limit or its name. An
            actor, or a message, that names limits of its own may have an `on_429` of its own too.
        max_wait: How long a message may wait in all, in seconds, from its first denial. The option
            `throttle_max_wait` of an actor goes before it, and that of a message before both. Default: for ever.
        max_deferrals: How often a message may be denied. Default: any number of times.
        when_over: What becomes of a message past either, and of one that a `LeakyBucket` with a full queue
            refuses: "fail" dead-letters it with `WaitedTooLong`, "drop" acknowledges it unrun, "run" runs it
            uncharged, **beyond the limit**.
        max_inline_wait: The longest wait, in seconds, that a worker thread sleeps in place. At most a
            quarter of a worker's threads (and always one) do so at once. 0: none does.

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
    ) -> None:
        if not isinstance(limiter, Limiter):
            raise ConfigurationError(f'Throttle takes a limiter: Throttle(Limiter("redis://…")), not {limiter!r}')
        self.limiter = limiter
        self._rules = WaitRules.of(max_wait, max_deferrals, when_over)
        self._terms = Terms(limiter, throttle, on_429, self._rules)
        self._max_inline_wait = seconds_in("max_inline_wait", max_inline_wait)
        self._queues: set[str] = set()
        self._releases = DelayedConsumers()
        self._bodies = Bodies(self._limited)
        self._worker: Any = None

    @property
    def actor_options(self) -> set[str]:
        return {OPTION, ON_429, MAX_WAIT}

    # Declaration

    def before_declare_actor(self, broker: Broker, actor: Actor[..., Any]) -> None:
        try:
            limits = self._terms.declare(actor)
        except Exception as error:
            # Dramatiq would log any other error, and declare the actor without its limits.
            raise as_middleware_error(ConfigurationError(f"actor {actor.actor_name!r}: {error}")) from error
        self._bodies.watch(actor)
        if limits:
            self._queues.add(actor.queue_name)

    def before_enqueue(self, broker: Broker, message: Any, delay: int | None) -> None:
        """Limits given with the message travel in it by value, their keys and costs worked out here."""
        try:
            self._terms.write(broker, message)
        except ConfigurationError as error:
            raise as_middleware_error(ConfigurationError(f"message for {message.actor_name!r}: {error}")) from None

    # Boot

    def before_worker_boot(self, broker: Broker, worker: Any) -> None:
        self._check_boot(broker)
        take_position(broker, self)
        quieten()
        self._worker = worker
        self._releases.boot(worker)
        at_once = max(1, worker.worker_threads // 4) if self._max_inline_wait else 0
        self._terms.wait_in_place(InlineWaits(self._max_inline_wait, at_once))

    def after_worker_shutdown(self, broker: Broker, worker: Any) -> None:
        self._worker = None

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
            if not self._terms.knows(name):  # declared before this middleware was added
                self.before_declare_actor(broker, actor)

    def after_consumer_thread_boot(self, broker: Broker, thread: Any) -> None:
        if q_name(thread.queue_name) in self._queues:
            self._releases.adopt(thread)

    def before_consumer_thread_shutdown(self, broker: Broker, thread: Any) -> None:
        if q_name(thread.queue_name) in self._queues:
            self._releases.retire(thread)

    # A message's way

    def before_process_message(self, broker: Broker, message: Any) -> None:
        try:
            limits = self._terms.limits_of(message)
            if not limits:
                self._releases.take(message)
                return
            delivery, job = self._terms.delivery(broker, message), self._terms.job(broker, message)
            decision = self.limiter.acquire(*limits, job=job, delivery=delivery)
        except ConfigurationError as error:
            self._fail(broker, message, error)
        except Exception:
            # Dramatiq would log what leaves this hook, and then run the message unthrottled.
            _log.exception("Message %s could not be decided on; it is deferred.", message.message_id)
            self._defer(broker, message, _PANIC_DELAY, message.options.get(TICKET), self._consumer(message))
        else:
            grant = Grant(decision, limits, job, delivery, broker, self._consumer(message))
            self._follow(broker, message, decision, grant)

    def after_process_message(
        self, broker: Broker, message: Any, *, result: Any = None, exception: BaseException | None = None
    ) -> None:
        take_mark(message, DEFERRAL)  # whatever became of it: it did not end as a skip
        self._over(message)

    def after_skip_message(self, broker: Broker, message: Any) -> None:
        self._over(message)

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
            _untyped(broker).enqueue(deferral.copy, delay=deferral.delay_ms)
        except Exception as error:
            reason = f"a denied message could not be put into its delay queue: {error!r}"
            raise DeferFailed(reason) from error  # type: ignore[no-untyped-call]
        deferral.sent = True

    def _follow(self, broker: Broker, message: Any, decision: Decision, grant: Grant) -> None:
        if decision.allowed:
            self._run(message, grant)
            begin(self.limiter, decision)
            holder = holder_of(message)
            if holder is not None and holder.probe:
                self._releases.wake(lanes(decision), probe=True)
        elif not decision.final:
            if decision.reason == "early" and self._stays(message):
                self._skip(broker, message, Deferral(None, 0, grant.consumer))
            self._defer(broker, message, decision.delay, decision.ticket, grant.consumer)
        elif self._rules.when_over == "run":
            self._run(message, grant)
        else:
            self._refuse(broker, message, decision)

    def _run(self, message: Any, grant: Grant) -> None:
        # The body's own retries ask anew: they call downstream again.
        message.options.pop(TICKET, None)
        self._releases.take(message)
        setattr(message, GRANT, grant)
        self._bodies.expect(message)

    def _over(self, message: Any) -> None:
        """The body of *message* has ended, or will not begin. In the thread that it had, any number of times."""
        grant: Grant | None = take_mark(message, GRANT)
        if grant is None:
            self._releases.give_back(message)
            return
        self._bodies.expect(None)  # it may not have begun
        end()
        self._releases.give_back(message)
        self._releases.wake(lanes(grant.decision))

    def _limited(self, message: Any, error: RateLimited) -> None:
        """The body of *message* has raised *error*. Returns if that is an error like any other."""
        grant: Grant = getattr(message, GRANT)
        broker, delivery = grant.broker, grant.delivery
        calm(broker, self, message)
        try:
            on_429 = self._terms.on_429(message)
            decision = limited(
                self.limiter, error, grant.limits, job=grant.job, delivery=delivery, release=end, on_429=on_429
            )
        except ConfigurationError as fault:
            self._fail(broker, message, fault)
        except Exception:
            _log.exception("The 429 that message %s met could not be told; it is deferred.", message.message_id)
            delay = min(delivery.longest, max(_PANIC_DELAY, error.retry_after))
            self._defer(broker, message, delay, grant.job.ticket, grant.consumer)
        else:
            if not decision.final:
                self._defer(broker, message, decision.delay, decision.ticket, grant.consumer)
            elif self._rules.when_over != "run":
                self._refuse(broker, message, decision)

    def _refuse(self, broker: Broker, message: Any, decision: Decision) -> None:
        if self._rules.when_over == "drop":
            self._tell_prometheus(broker, message)
            raise SkipMessage(f"dropped: {refusal(decision)}")
        self._fail(broker, message, WaitedTooLong(refusal(decision)))

    def _stays(self, message: Any) -> bool:
        """Whether *message* was brought up before it is due, so that it can go on waiting where it did."""
        holder = holder_of(message)
        return holder is not None and holder.due > current_millis() and holder.consumer is holder.thread.consumer

    def _defer(self, broker: Broker, message: Any, delay: float, ticket: Any, consumer: Any) -> NoReturn:
        copy = message.copy(options={TICKET: ticket} if ticket else {})
        self._skip(broker, message, Deferral(copy, max(1, math.ceil(delay * 1000)), consumer))

    def _skip(self, broker: Broker, message: Any, deferral: Deferral) -> NoReturn:
        setattr(message, DEFERRAL, deferral)
        # On the dying original only, after the copy: Results would store a None for whoever waits.
        message.options["store_results"] = False
        self._tell_prometheus(broker, message)
        raise SkipMessage("deferred by throttlekit")

    def _fail(self, broker: Broker, message: Any, error: Exception) -> NoReturn:
        _log.error("Message %s for %s fails: %s", message.message_id, message.actor_name, error)
        # Asking again cannot help.
        message.options["throws"] = AnyError()
        message.fail()
        self._tell_prometheus(broker, message)
        raise as_middleware_error(error)

    def _tell_prometheus(self, broker: Broker, message: Any) -> None:
        if not hasattr(message, GRANT):
            tell_prometheus(broker, self, message)

    def _consumer(self, message: Any) -> Any:
        """Whom *message* came from: by the time its body has ended, another may have taken that one's place."""
        holder = holder_of(message)
        return holder.consumer if holder else consumer_of(self._worker, message)


def _untyped(host: Any) -> Any:
    """Dramatiq's own annotations leave type parameters open, which strict checkers will not have."""
    return host
