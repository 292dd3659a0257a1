"""Read the limits of a message: the options of its actor, and the options that the message carries by value."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from dramatiq.common import current_millis, q_name
from dramatiq.generic import GenericActor

from throttlekit import ConfigurationError, Delivery, Job, Limit, Limiter
from throttlekit.adapter import (
    MAX_WAIT,
    ON_429,
    OPTIONS,
    THROTTLE,
    JobOptions,
    WaitRules,
    misspelt,
)

__all__ = ["Options"]

_log = logging.getLogger("throttlekit.dramatiq")


class Options:
    """
    Reads the options of actors and messages, as the `Host` of `throttlekit.adapter.Throttling`.

    Args:
        throttle, on_429: The options of actors that name no limits of their own.
        own_limits: Whether messages may carry their own options.

    Attributes:
        of_actor: The options of each declared actor, by its name.
        broker: The broker of the worker, set when the worker boots. A body may send messages to other brokers.
        age_limit: The middleware that ends messages past their `max_age`, set when a worker boots, or None.

    Raises:
        ConfigurationError: An argument can never work.
    """

    def __init__(
        self,
        limiter: Limiter,
        throttle: Limit | Iterable[Limit],
        on_429: Limit | str | None,
        rules: WaitRules,
        *,
        own_limits: bool,
    ) -> None:
        self.broker: Any = None
        self.age_limit: Any = None
        self._limiter, self._own_limits = limiter, own_limits
        self._delivery = lru_cache(256)(partial(rules.delivery, Delivery()))  # by the longest wait of a message
        self._default = JobOptions.read(throttle, on_429=on_429, limiter=limiter)
        self.of_actor: dict[str, JobOptions] = {}

    def declare(self, actor: Any) -> JobOptions:
        """
        Read the options of *actor*.

        Raises:
            ConfigurationError: An option can never work.
        """
        given, own = actor.options, THROTTLE in actor.options
        options = JobOptions.read(
            given[THROTTLE] if own else self._default.limits,
            on_429=given.get(ON_429, None if own else self._default.on_429),
            max_wait=given.get(MAX_WAIT),
            limiter=self._limiter,
            function=_function(actor.fn),
        )
        self.of_actor[actor.actor_name] = options
        return options

    def write(self, broker: Any, message: Any) -> None:
        """
        Replace the throttle options of *message* with plain data that it can carry: limits are dumped by value.

        Args:
            broker: The broker of the message.

        Raises:
            ConfigurationError: An option can never work.
        """
        given: dict[str, Any] = message.options
        for name, meant in misspelt(given).items():
            _warn_misspelt(message.actor_name, name, meant)
        if not given.keys().isdisjoint(OPTIONS):
            self._check_own_limits(given)
            own = self.of_actor.get(message.actor_name, self._default)
            given.update(own.travelling(given, _job(broker, message)))

    def options(self, message: Any) -> JobOptions:
        """
        Return the options that apply to *message*.

        Raises:
            ConfigurationError: *message* has options that throttlekit did not write, or that messages must not carry.
        """
        own, given = self.of_actor.get(message.actor_name, self._default), message.options
        if given.keys().isdisjoint(OPTIONS):
            return own
        self._check_own_limits(given)
        return own.with_message(given)

    def job(self, message: Any) -> Job:
        """Return the `Job` that limits read."""
        return _job(self.broker, message)

    def delivery(self, message: Any, max_wait: float | None) -> Delivery:
        """Return the `Delivery` of *message*: its longest wait, and the time at which it expires."""
        return self.with_expiry(message, self._delivery(max_wait))

    def with_expiry(self, message: Any, delivery: Delivery) -> Delivery:
        """Return *delivery* with the time from now until *message* is past its `AgeLimit`."""
        if self.age_limit is None:
            return delivery
        actor = self.broker.actors.get(message.actor_name)
        of_actor: Any = actor.options if actor else {}
        # The unit is milliseconds, as in `AgeLimit`. None and 0 mean no limit.
        max_age: Any = message.options.get("max_age") or of_actor.get("max_age", self.age_limit.max_age)
        if not max_age:
            return delivery
        return replace(delivery, expires_in=(message.message_timestamp + max_age - current_millis()) / 1000)

    def _check_own_limits(self, given: Iterable[str]) -> None:
        if not self._own_limits:
            carried = ", ".join(name for name in OPTIONS if name in given)
            raise ConfigurationError(
                f"the message carries its own {carried}, but Throttle(own_limits=False) allows only those of actors"
            )


@lru_cache(256)
def _warn_misspelt(actor: str, name: str, meant: str) -> None:
    _log.warning("A message of actor %r has the option %r, which nothing reads: did you mean %r?", actor, name, meant)


def _job(broker: Any, message: Any) -> Job:
    actor = broker.actors.get(message.actor_name)
    return Job(
        id=message.message_id,
        name=message.actor_name,
        queue=q_name(message.queue_name),
        args=message.args,
        kwargs=message.kwargs,
        function=_function(actor.fn) if actor else None,
    )


def _function(function: Any) -> Callable[..., Any]:
    """Return the function whose parameters name a message's arguments."""
    own: Any = getattr(function, "__wrapped__", function)  # the function that `Throttle` has wrapped
    perform: Any = getattr(own, "perform", None)
    named: Callable[..., Any] = perform if isinstance(own, GenericActor) else function
    return named
