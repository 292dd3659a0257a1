"""What a message asks for: its limits, its job, and how long it may wait."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from dramatiq import Broker
from dramatiq.common import q_name
from dramatiq.generic import GenericActor

from throttlekit import Delivery, Job, Limit, Limiter
from throttlekit._core.durations import seconds_in
from throttlekit._engine.inline import InlineWaits
from throttlekit.adapter.options import WaitRules, dump_limits, is_dumped, limits_in, load_limits
from throttlekit.adapter.rate_limited import check_on_429
from throttlekit_dramatiq._waiting import TICKET

__all__ = ["MAX_WAIT", "ON_429", "OPTION", "Terms"]

OPTION = "throttle"
ON_429 = "on_429"
MAX_WAIT = "throttle_max_wait"

_LONGEST = 600.0  # RabbitMQ closes a channel that holds a message for 30 minutes; 10 leave room
_LATENESS = 0.05
_EARLY = 0.015


class Terms:
    """
    The options of middleware, actors and messages: a message's own go before its actor's, and those before the rest.

    Raises:
        ConfigurationError: A value can never work.
    """

    def __init__(
        self, limiter: Limiter, throttle: Limit | Iterable[Limit], on_429: Limit | str | None, rules: WaitRules
    ) -> None:
        self._limiter = limiter
        self._rules = rules
        self._default = limits_in(throttle)
        limiter.declare(*self._default)
        check_on_429(on_429, self._default)
        self._on_429 = on_429
        self._inline: InlineWaits | None = None
        self._of_actor: dict[str, tuple[Limit, ...]] = {}
        self._on_429_of_actor: dict[str, Limit | str | None] = {}
        self._delivery_of_actor: dict[str, Delivery] = {}

    def wait_in_place(self, inline: InlineWaits) -> None:
        """Short waits are slept in *inline*."""
        self._inline = inline
        self._delivery_of_actor.clear()

    def knows(self, name: str) -> bool:
        """Whether the actor called *name* has been declared."""
        return name in self._of_actor

    def declare(self, actor: Any) -> tuple[Limit, ...]:
        """
        The limits of *actor*.

        Raises:
            ConfigurationError: One of its options can never work.
        """
        own = OPTION in actor.options
        limits = limits_in(actor.options[OPTION]) if own else self._default
        on_429 = actor.options.get(ON_429, None if own else self._on_429)
        self._limiter.declare(*limits)
        check_on_429(on_429, limits)
        for limit in limits:
            limit.check_function(_function(actor.fn))
        seconds_in(MAX_WAIT, actor.options.get(MAX_WAIT))
        self._of_actor[actor.actor_name] = limits
        self._on_429_of_actor[actor.actor_name] = on_429
        return limits

    def write(self, broker: Broker, message: Any) -> None:
        """
        Make the options that were given with *message* what they travel as: limits by value, the rest as plain data.

        Raises:
            ConfigurationError: One can never work.
        """
        options = message.options
        if options.get(MAX_WAIT) is not None:
            options[MAX_WAIT] = seconds_in(MAX_WAIT, options[MAX_WAIT])
        given = options.get(OPTION)
        fresh = OPTION in options and not is_dumped(given)
        on_429 = options.get(ON_429)
        if on_429 is not None and not isinstance(on_429, dict):
            # Once: a message that is on its way must not be held up because limits have other names by now.
            check_on_429(on_429, limits_in(given) if fresh else self.limits_of(message))
            options[ON_429] = {"name": on_429.name if isinstance(on_429, Limit) else on_429}
        if fresh:
            options[OPTION] = dump_limits(limits_in(given), self.job(broker, message))

    def limits_of(self, message: Any) -> tuple[Limit, ...]:
        """
        What *message* is held to.

        Raises:
            ConfigurationError: It brings what throttlekit did not write.
        """
        if OPTION in message.options:
            return load_limits(message.options[OPTION])
        return self._of_actor.get(message.actor_name, self._default)

    def on_429(self, message: Any) -> Limit | str | None:
        """Which of its limits is paused, if *message*'s body hears 429 and does not say."""
        given: Any = message.options.get(ON_429)
        if given is None:
            return self._on_429_of_actor.get(message.actor_name, self._on_429)
        name: Any = given.get("name") if isinstance(given, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        return name if isinstance(name, str) else None

    def job(self, broker: Broker, message: Any) -> Job:
        """*message* as limits see it."""
        actor = _untyped(broker).actors.get(message.actor_name)
        return Job(
            id=message.message_id,
            name=message.actor_name,
            queue=q_name(message.queue_name),
            args=message.args,
            kwargs=message.kwargs,
            function=_function(actor.fn) if actor else None,
            ticket=message.options.get(TICKET),
        )

    def delivery(self, broker: Broker, message: Any) -> Delivery:
        """How *message* waits."""
        if MAX_WAIT in message.options:
            return self._make_delivery(message.options[MAX_WAIT])
        delivery = self._delivery_of_actor.get(message.actor_name)
        if delivery is None:
            delivery = self._make_delivery(_untyped(broker).get_actor(message.actor_name).options.get(MAX_WAIT))
            self._delivery_of_actor[message.actor_name] = delivery
        return delivery

    def _make_delivery(self, max_wait: Any) -> Delivery:
        return Delivery(
            longest=_LONGEST,
            lateness=_LATENESS,
            early=_EARLY,
            max_wait=self._rules.max_wait if max_wait is None else seconds_in(MAX_WAIT, max_wait),
            max_deferrals=self._rules.max_deferrals,
            inline=self._inline,
        )


def _function(function: Any) -> Callable[..., Any]:
    """What gives a message's arguments their names."""
    own = getattr(function, "__wrapped__", function)  # behind `Bodies.watch`
    named: Callable[..., Any] = _untyped(own).perform if isinstance(own, GenericActor) else function
    return named


def _untyped(host: Any) -> Any:
    """Dramatiq's own annotations leave type parameters open, which strict checkers will not have."""
    return host
