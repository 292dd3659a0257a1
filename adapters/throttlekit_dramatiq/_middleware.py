"""`Throttle`, the middleware that checks the limits of messages. A denied message waits until the store wakes it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from functools import partial, wraps
from typing import Any, NamedTuple, NoReturn

from dramatiq import Actor
from dramatiq.middleware import Middleware, MiddlewareError, SkipMessage

from throttlekit import ConfigurationError, Decision, Limit, Limiter, RateLimited
from throttlekit.adapter import (
    OPTIONS,
    Deferred,
    Dropped,
    Failed,
    OnWaitedTooLong,
    Outcome,
    Run,
    Throttling,
    Waiting,
    WaitRules,
    begin,
    boolean_in,
    check_limiter,
    checks_spelling,
    end,
)
from throttlekit_dramatiq._errors import AnyError, DeferFailed, as_middleware_error
from throttlekit_dramatiq._holding import DEFERRAL, Deferral, Holding, Item
from throttlekit_dramatiq._host import (
    age_limit_before,
    count_in_prometheus,
    drop_skip_warnings,
    end_interrupting,
    take_position,
)
from throttlekit_dramatiq._options import Options

__all__ = ["Throttle"]

_log = logging.getLogger("throttlekit.dramatiq")
_LEAST_DELAY, _LONGEST_DELAY = 1.0, 60.0
"""
The bounds of the seconds for which a denied message waits in the delay queue if this process does not hold it. The
delay is the estimated time until its turn.
"""

_GRANT = "_throttlekit_grant"
"""The attribute of an admitted message that holds its `_Grant`."""


class _Grant(NamedTuple):
    """An admitted message, with the decision of *run*, and the item to hold if its body raises `RateLimited`."""

    run: Run
    decision: Decision
    item: Item


class _Here(threading.local):
    """
    The state of one thread.

    Attributes:
        message: The message of the next body, if it has limits.
        in_worker: Whether this is a thread of a worker that runs no body. Its enqueues are those of Dramatiq, for
            example of a retry or of a message whose delay has passed.
    """

    message: Any = None
    in_worker = False


class Throttle(Middleware):
    """
    A Dramatiq middleware that applies limits in every worker of the broker.

        broker.add_middleware(Throttle(Limiter("redis://localhost/1")))

        @dramatiq.actor(throttle=[TokenBucket("partner", "10/s")])
        def push(contact_id): ...

    Add the middleware to the broker before actors are declared. When a worker boots, the middleware moves itself to its
    position in the broker's list. All workers whose limiter uses the same store share the limits.

    A denied message waits in the worker process, unacknowledged, and runs at its turn, with the same id, options,
    retries, group, pipeline and result. A message whose body raises `RateLimited` waits in the same way, until the
    pause has ended. A message holds its slot of a concurrency limit until the body has returned or failed.

    Args:
        limiter: The limiter that decides. Create it at import; it connects on first use.
        throttle: The limits for every actor that declares none.
        on_429: The limit of *throttle*, or its name, that is paused if a body raises `RateLimited` without naming a
            limit. An actor or a message with its own limits may also have its own `throttle_on_429`.
        max_wait: The longest total wait of a message, in seconds from its first denial. The option `throttle_max_wait`
            of a message, otherwise of its actor, replaces this value. Default: no limit.
        max_deferrals: The maximum number of denials of a message. Default: no limit.
        on_waited_too_long: The action for a message that exceeds *max_wait* or *max_deferrals*, or that a full `queue=`
            rejects. "fail" dead-letters it with `WaitedTooLong`. "drop" acknowledges it without running it. "run" runs
            it uncharged, **beyond the limit**.
        own_limits: Whether messages may carry `throttle`, `throttle_max_wait` or `throttle_on_429`. If False, sending
            such a message is an error, and a worker dead-letters it.

    Raises:
        ConfigurationError: An argument can never work.
    """

    @checks_spelling
    def __init__(
        self,
        limiter: Limiter,
        *,
        throttle: Limit | Iterable[Limit] = (),
        on_429: Limit | str | None = None,
        max_wait: float | timedelta | None = None,
        max_deferrals: int | None = None,
        on_waited_too_long: OnWaitedTooLong = "fail",
        own_limits: bool = True,
    ) -> None:
        self.limiter = check_limiter(limiter, 'Throttle takes a limiter: Throttle(Limiter("redis://…"))')
        rules = WaitRules.read(max_wait, max_deferrals, on_waited_too_long)
        own_limits = boolean_in("own_limits", own_limits)
        self._options = Options(limiter, throttle, on_429, rules, own_limits=own_limits)
        self._throttling = Throttling(limiter, self._options, rules=rules, log=_log, noun="Message")
        self._queues: set[str] = set()
        self._holding: Holding  # that of the latest worker
        self._here = _Here()
        self._worker: Any = None

    @property
    def actor_options(self) -> set[str]:
        return {*OPTIONS}

    # Declaration

    def before_declare_actor(self, broker: Any, actor: Actor[..., Any]) -> None:
        try:
            options = self._options.declare(actor)
        except Exception as error:
            # Dramatiq would log any other error, and declare the actor without its limits.
            raise as_middleware_error(ConfigurationError(f"actor {actor.actor_name!r}: {error}")) from error
        self._watch(actor)
        if self._throttling.concerns(options):
            self._queues.add(actor.queue_name)

    def _watch(self, actor: Any) -> None:
        """
        Handle a `RateLimited` of an admitted message. A direct call of the actor's function, also in another body,
        works as before.

        The error is caught directly around the body. `after_process_message` would be too late: by then, the worker has
        logged the error, and other middleware has counted it, retried the message, or sent callbacks.
        """
        function = actor.fn

        @wraps(function)
        def body(*args: Any, **kwargs: Any) -> Any:
            here = self._here
            message, in_worker = here.message, here.in_worker
            here.message, here.in_worker = None, False
            try:
                return function(*args, **kwargs)
            except RateLimited as error:
                if message is not None:
                    self._rate_limited(message, error)
                raise
            finally:
                here.in_worker = in_worker

        actor.fn = body

    def before_enqueue(self, broker: Any, message: Any, delay: int | None) -> None:
        """Replace the limits in the options of *message* with plain data, including their keys and costs."""
        try:
            self._options.write(broker, message)
        except ConfigurationError as error:
            # In a worker, an error would lose the message, or stop the consumer. The worker that gets it reports it.
            if not self._here.in_worker:
                raise as_middleware_error(ConfigurationError(f"message for {message.actor_name!r}: {error}")) from None

    # Boot

    def before_worker_boot(self, broker: Any, worker: Any) -> None:
        self._check_boot(broker)
        self._throttling.warn_in_memory()
        take_position(broker, self)
        drop_skip_warnings()
        self._worker, self._options.broker = worker, broker
        self._options.age_limit = age_limit_before(broker, self)
        self._holding = Holding(self.limiter, worker)

    def before_worker_shutdown(self, broker: Any, worker: Any) -> None:
        self._holding.stop()

    def after_worker_shutdown(self, broker: Any, worker: Any) -> None:
        self._worker = None

    def _check_boot(self, broker: Any) -> None:
        if self._worker is not None:
            fault = (
                "this Throttle already has a running worker: use one Worker per process, and a Throttle for each broker"
            )
            raise as_middleware_error(ConfigurationError(fault))
        if sum(isinstance(middleware, Throttle) for middleware in broker.middleware) > 1:
            fault = "two Throttle middlewares on one broker would charge each message twice: remove one"
            raise as_middleware_error(ConfigurationError(fault))
        for name, actor in broker.actors.items():
            if name not in self._options.of_actor:  # declared before this middleware was added
                self.before_declare_actor(broker, actor)

    def after_worker_thread_boot(self, broker: Any, thread: Any) -> None:
        self._here.in_worker = True

    def after_consumer_thread_boot(self, broker: Any, thread: Any) -> None:
        self._here.in_worker = True
        if thread.queue_name in self._queues:
            self._holding.adopt(thread)

    def before_consumer_thread_shutdown(self, broker: Any, thread: Any) -> None:
        if thread.queue_name in self._queues:
            self._holding.retire(thread)

    # From the check of the limits to the end of a message

    def before_process_message(self, broker: Any, message: Any) -> None:
        try:
            item = self._holding.item(message)
            outcome = self._throttling.admit(message, Waiting(self._holding.waker, item))
            self._follow(broker, message, outcome, item)
        except MiddlewareError:
            raise
        except Exception as error:
            raise as_middleware_error(error) from error  # Dramatiq would log any other error, and run the body

    def after_process_message(
        self, broker: Any, message: Any, *, result: Any = None, exception: BaseException | None = None
    ) -> None:
        message.__dict__.pop(DEFERRAL, None)  # the message was not skipped
        self._finish(message, exception, is_stopped=isinstance(exception, MiddlewareError))

    def after_skip_message(self, broker: Any, message: Any) -> None:
        self._finish(message, is_stopped=True)

    def before_nack(self, broker: Any, message: Any) -> None:
        self._finish(message)

    def before_ack(self, broker: Any, message: Any) -> None:
        """Enqueue the copy of a denied message before the original is acknowledged, so that the job is never lost."""
        marks = message.__dict__  # `getattr` of a message without the attribute is slower
        if _GRANT in marks:
            self._finish(message)
        deferral: Deferral | None = marks.get(DEFERRAL)
        if deferral is None or deferral.copy is None:
            return
        try:
            if not deferral.item.is_ours:
                return
            broker.enqueue(deferral.copy, delay=deferral.delay_ms)
        except Exception as error:
            reason = f"a denied message could not be put back: {error!r}"
            raise DeferFailed(reason) from error  # type: ignore[no-untyped-call]
        deferral.copy = None

    def _follow(self, broker: Any, message: Any, outcome: Outcome, item: Item) -> None:
        if not isinstance(outcome, Run) and _GRANT not in message.__dict__:
            count_in_prometheus(broker, self, message)
        match outcome:
            case Run():
                self._holding.take(message)
                if outcome.decision is not None:
                    setattr(message, _GRANT, _Grant(outcome, outcome.decision, item))
                    self._here.message = message
                    if outcome.decision.allowed:
                        begin(self.limiter, outcome.decision, outcome.job)
            case Deferred():
                deferral = Deferral(item)
                if not self._holding.hold(item):
                    delay = min(max(outcome.delay, _LEAST_DELAY), _LONGEST_DELAY)
                    deferral = Deferral(item, message.copy(), round(delay * 1000))
                _skip(message, deferral)
            case Dropped():
                raise SkipMessage(f"dropped: {outcome.reason}")
            case Failed():
                _fail(message, outcome.error)

    def _finish(self, message: Any, error: BaseException | None = None, *, is_stopped: bool = False) -> None:
        """
        End *message*, whose body has ended or will not begin. May be called several times, in its thread.

        *is_stopped* is whether a middleware or the body has raised SkipMessage or another MiddlewareError. Only such a
        message may be refunded: if an actor's function was replaced after its declaration, its body begins without
        notice.
        """
        grant: _Grant | None = message.__dict__.pop(_GRANT, None)
        if grant is not None:
            has_begun = self._here.message is None
            self._here.message = None
            if is_stopped and not has_begun:
                self.limiter.cancel(grant.decision)
            end(error)
        self._holding.give_back(message)

    def _rate_limited(self, message: Any, error: RateLimited) -> None:
        """Defer *message*, whose body has raised *error*. If this method returns, *error* is a normal failure."""
        grant: _Grant = getattr(message, _GRANT)
        broker = self._options.broker
        end_interrupting(broker, self, message)
        # The message is older now than when its body began.
        run = replace(grant.run, delivery=self._options.with_expiry(message, grant.run.delivery))
        outcome = self._throttling.rate_limited(run, error, release=partial(end, error))
        if not isinstance(outcome, Run):
            self._follow(broker, message, outcome, grant.item)


def _skip(message: Any, deferral: Deferral) -> NoReturn:
    setattr(message, DEFERRAL, deferral)
    # Without this option, Results would store None, and a reader would stop waiting. The held item lacks it.
    message._message = message._message.copy(options={"store_results": False})
    raise SkipMessage("deferred by throttlekit")


def _fail(message: Any, error: Exception) -> NoReturn:
    _log.error("Message %s for %s fails: %s", message.message_id, message.actor_name, error)
    # A retry cannot help.
    message.options["throws"] = AnyError()
    message.fail()
    raise as_middleware_error(error)
