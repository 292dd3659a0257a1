"""The middleware: a message becomes a Job, a denial becomes Dramatiq's own delayed delivery."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from dramatiq import Actor, Broker
from dramatiq.common import q_name
from dramatiq.generic import GenericActor
from dramatiq.middleware import Middleware, SkipMessage

from throttlekit import ConfigurationError, Decision, Delivery, Job, Limit, Limiter, TokenBucket
from throttlekit.inline import InlineWaits
from throttlekit_dramatiq._errors import AnyError, DeferFailed, WaitedTooLong, as_middleware_error
from throttlekit_dramatiq._release import WAITED, Releases, holder_of
from throttlekit_dramatiq._worker import (
    DEFERRAL,
    consumer_of,
    quieten,
    still_ours,
    take_position,
    tell_prometheus,
)

__all__ = ["Throttle"]

_log = logging.getLogger("throttlekit.dramatiq")

_OPTION = "throttle"
_MAX_WAIT = "throttle_max_wait"

_LONGEST = 600.0  # RabbitMQ closes a channel that holds a message for 30 minutes; 10 leave room
_LATENESS = 0.05
_EARLY = 0.015
_PANIC_DELAY = 1.0


@dataclass(slots=True)
class _Deferral:
    """A denied message on its way back: the copy to put into the delay queue, and when."""

    copy: Any
    delay_ms: int
    consumer: Any
    sent: bool = False


class Throttle(Middleware):
    """
    Holds limits over every worker that has this middleware and names the same store.

    A message that its limits deny goes back through its delay queue with its id, options, retries,
    group, pipeline and result untouched, and runs when its turn has come. Add it to the broker before
    actors are declared; it takes its right place among the middleware by itself when a worker boots.

    Args:
        limiter: Asks the store. Make it at import; it connects on first use.
        throttle: Limits for every actor that names none of its own.
        max_wait: How long a message may wait in all, in seconds, from its first denial. The option
            `throttle_max_wait` of an actor goes before it, and that of a message before both. Default: for ever.
        max_deferrals: How often a message may be denied. Default: any number of times.
        when_over: What becomes of a message past either: "fail" dead-letters it with `WaitedTooLong`,
            "drop" acknowledges it unrun, "run" runs it uncharged, **beyond the limit**.
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
        max_wait: float | timedelta | None = None,
        max_deferrals: int | None = None,
        when_over: Literal["fail", "drop", "run"] = "fail",
        max_inline_wait: float | timedelta = 0.05,
    ) -> None:
        if not isinstance(limiter, Limiter):
            raise ConfigurationError(f'Throttle takes a limiter: Throttle(Limiter("redis://…")), not {limiter!r}')
        if when_over not in ("fail", "drop", "run"):
            raise ConfigurationError(f'when_over must be "fail", "drop" or "run", not {when_over!r}')
        if max_deferrals is not None and (type(max_deferrals) is not int or max_deferrals < 0):
            raise ConfigurationError(f"max_deferrals must be a whole number of at least 0, not {max_deferrals!r}")
        self.limiter = limiter
        self._default = _limits(throttle)
        limiter.declare(*self._default)
        self._when_over = when_over
        self._max_wait = _seconds("max_wait", max_wait)
        self._max_deferrals = math.inf if max_deferrals is None else max_deferrals
        self._max_inline_wait = _seconds("max_inline_wait", max_inline_wait)
        self._of_actor: dict[str, tuple[Limit, ...]] = {}
        self._delivery_of_actor: dict[str, Delivery] = {}
        self._queues: set[str] = set()
        self._inline = InlineWaits(self._max_inline_wait)
        self._releases = Releases()
        self._worker: Any = None

    @property
    def actor_options(self) -> set[str]:
        return {_OPTION, _MAX_WAIT}

    # Declaration

    def before_declare_actor(self, broker: Broker, actor: Actor[..., Any]) -> None:
        try:
            limits = _limits(actor.options[_OPTION]) if _OPTION in actor.options else self._default
            self.limiter.declare(*limits)
            for limit in limits:
                limit.check_function(_function(actor.fn))
            _seconds(_MAX_WAIT, actor.options.get(_MAX_WAIT))
        except Exception as error:
            # Dramatiq would log any other error, and declare the actor without its limits.
            raise as_middleware_error(ConfigurationError(f"actor {actor.actor_name!r}: {error}")) from error
        self._of_actor[actor.actor_name] = limits
        if limits:
            self._queues.add(actor.queue_name)

    def before_enqueue(self, broker: Broker, message: Any, delay: int | None) -> None:
        """Limits given with the message travel in it by value, their keys and costs worked out here."""
        try:
            if _MAX_WAIT in message.options and message.options[_MAX_WAIT] is not None:
                message.options[_MAX_WAIT] = _seconds(_MAX_WAIT, message.options[_MAX_WAIT])
            if _OPTION not in message.options or _is_dumped(message.options[_OPTION]):
                return
            job = self._job(broker, message)
            message.options[_OPTION] = [limit.dump(job) for limit in _limits(message.options[_OPTION])]
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
        self._inline = InlineWaits(self._max_inline_wait, at_once)
        self._delivery_of_actor.clear()

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
            if name not in self._of_actor:  # declared before this middleware was added
                self.before_declare_actor(broker, actor)

    def after_consumer_thread_boot(self, broker: Broker, thread: Any) -> None:
        if q_name(thread.queue_name) in self._queues:
            self._releases.adopt(thread)

    def before_consumer_thread_shutdown(self, broker: Broker, thread: Any) -> None:
        if q_name(thread.queue_name) in self._queues:
            self._releases.retire(thread)

    # A message's way

    def before_process_message(self, broker: Broker, message: Any) -> None:
        if _OPTION not in message.options and not self._of_actor.get(message.actor_name, self._default):
            self._releases.take(message)
            return
        try:
            limits = self._limits_of(message)
            if not limits:
                self._releases.take(message)
                return
            delivery = self._delivery(broker, message)
            decision = self.limiter.acquire(*limits, job=self._job(broker, message), delivery=delivery)
        except ConfigurationError as error:
            self._fail(broker, message, error)
        except Exception:
            # Dramatiq would log what leaves this hook, and then run the message unthrottled.
            _log.exception("Message %s could not be decided on; it is deferred.", message.message_id)
            self._defer(broker, message, _PANIC_DELAY, message.options.get(WAITED))
        else:
            self._follow(broker, message, decision)

    def after_process_message(
        self, broker: Broker, message: Any, *, result: Any = None, exception: BaseException | None = None
    ) -> None:
        self._releases.give_back(message)

    def after_skip_message(self, broker: Broker, message: Any) -> None:
        self._releases.give_back(message)

    def before_ack(self, broker: Broker, message: Any) -> None:
        """Put a denied message back. Here, so that the original is acknowledged only once the copy is safe."""
        deferral: _Deferral | None = getattr(message, DEFERRAL, None)
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

    def _follow(self, broker: Broker, message: Any, decision: Decision) -> None:
        if decision.allowed:
            # The body's own retries ask anew: they call downstream again.
            message.options.pop(WAITED, None)
            self._releases.take(message)
        elif decision.reason != "waited too long":
            self._defer(broker, message, decision.delay, decision.waited)
        elif self._when_over == "drop":
            tell_prometheus(broker, self, message)
            raise SkipMessage(f"dropped: denied by limit {decision.limit.name!r} for too long")
        elif self._when_over == "run":
            message.options.pop(WAITED, None)
            self._releases.take(message)
        else:
            self._fail(
                broker,
                message,
                WaitedTooLong(f"limit {decision.limit.name!r} denied this message past its max_wait or max_deferrals"),
            )

    def _defer(self, broker: Broker, message: Any, delay: float, waited: Any) -> None:
        copy = message.copy(options={WAITED: waited} if waited else {})
        holder = holder_of(message)
        consumer = holder.consumer if holder else consumer_of(self._worker, message)
        setattr(message, DEFERRAL, _Deferral(copy, max(1, math.ceil(delay * 1000)), consumer))
        # On the dying original only, after the copy: Results would store a None for whoever waits.
        message.options["store_results"] = False
        tell_prometheus(broker, self, message)
        raise SkipMessage("deferred by throttlekit")

    def _fail(self, broker: Broker, message: Any, error: Exception) -> None:
        _log.error("Message %s for %s fails: %s", message.message_id, message.actor_name, error)
        # Asking again cannot help.
        message.options["throws"] = AnyError()
        message.fail()
        tell_prometheus(broker, self, message)
        raise as_middleware_error(error)

    def _limits_of(self, message: Any) -> tuple[Limit, ...]:
        if _OPTION in message.options:
            spec = message.options[_OPTION]
            if spec is None:
                return ()
            if not _is_dumped(spec):
                raise ConfigurationError("the message's throttle option is not one that throttlekit wrote")
            return tuple(TokenBucket.load(data) for data in spec)
        return self._of_actor.get(message.actor_name, self._default)

    def _job(self, broker: Broker, message: Any) -> Job:
        actor = _untyped(broker).actors.get(message.actor_name)
        return Job(
            id=message.message_id,
            name=message.actor_name,
            queue=q_name(message.queue_name),
            args=message.args,
            kwargs=message.kwargs,
            function=_function(actor.fn) if actor else None,
            waited=message.options.get(WAITED),
        )

    def _delivery(self, broker: Broker, message: Any) -> Delivery:
        if _MAX_WAIT in message.options:
            return self._make_delivery(message.options[_MAX_WAIT])
        delivery = self._delivery_of_actor.get(message.actor_name)
        if delivery is None:
            delivery = self._make_delivery(_untyped(broker).get_actor(message.actor_name).options.get(_MAX_WAIT))
            self._delivery_of_actor[message.actor_name] = delivery
        return delivery

    def _make_delivery(self, max_wait: Any) -> Delivery:
        return Delivery(
            longest=_LONGEST,
            lateness=_LATENESS,
            early=_EARLY,
            max_wait=self._max_wait if max_wait is None else _seconds(_MAX_WAIT, max_wait),
            max_deferrals=self._max_deferrals,
            inline=self._inline,
        )


def _limits(spec: Any) -> tuple[Limit, ...]:
    """Read a `throttle=` option: a limit, several, or None for none."""
    if spec is None:
        return ()
    if isinstance(spec, TokenBucket):
        return (spec,)
    limits: tuple[Any, ...] = tuple(spec) if isinstance(spec, (list, tuple, set, frozenset)) else (spec,)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    for limit in limits:
        if not isinstance(limit, TokenBucket):
            raise ConfigurationError(
                f'throttle= takes a limit or a list of limits, like [TokenBucket("name", "100/minute")], not {limit!r}'
            )
    names = [limit.name for limit in limits]
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(f"limit {name!r} is named twice in throttle=: name it once, with a cost")
    return limits


def _is_dumped(spec: Any) -> bool:
    return isinstance(spec, list) and all(isinstance(limit, dict) for limit in spec)  # pyright: ignore[reportUnknownVariableType]


def _function(function: Any) -> Callable[..., Any]:
    """What gives a message's arguments their names."""
    named: Callable[..., Any] = _untyped(function).perform if isinstance(function, GenericActor) else function
    return named


def _untyped(host: Any) -> Any:
    """Dramatiq's own annotations leave type parameters open, which strict checkers will not have."""
    return host


def _seconds(option: str, value: float | timedelta | None) -> float:
    if value is None:
        return math.inf
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < math.inf:
        raise ConfigurationError(f"{option} must be a number of seconds of at least 0, or a timedelta, not {value!r}")
    return float(seconds)
