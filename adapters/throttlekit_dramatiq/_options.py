"""Read the limits of a message: the options of its actor, and the options that the message carries by value."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from dramatiq.common import current_millis, q_name
from dramatiq.generic import GenericActor

from throttlekit import ConfigurationError, Delivery, Job, Limit, Limiter
from throttlekit.adapter import (
    MAX_WAIT,
    ON_429,
    THROTTLE,
    JobOptions,
    WaitRules,
    check_on_429,
    dump_limits,
    is_dumped,
    load_limits,
    misspelt,
    name_of,
    read_limits,
    seconds_in,
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
        self._limiter = limiter
        self._own_limits = own_limits
        self._delivery = lru_cache(256)(partial(rules.delivery, Delivery()))  # by the longest wait of a message
        self._default = JobOptions.read(throttle, on_429=on_429, limiter=limiter)
        self._of_actor: dict[str, JobOptions] = {}

    def knows(self, name: str) -> bool:
        """Return whether the actor called *name* was declared."""
        return name in self._of_actor

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
        self._of_actor[actor.actor_name] = options
        return options

    def write(self, broker: Any, message: Any) -> None:
        """
        Replace the throttle options of *message* with plain data that it can carry: limits are dumped by value.

        Args:
            broker: The broker of the message.

        Raises:
            ConfigurationError: An option can never work.
        """
        options = message.options
        for name, meant in misspelt(options).items():
            _warn_misspelt(message.actor_name, name, meant)
        if not self._own_limits:
            _check_carries_none(options)
        if options.get(MAX_WAIT) is not None:
            options[MAX_WAIT] = seconds_in(MAX_WAIT, options[MAX_WAIT])
        fresh = read_limits(options[THROTTLE]) if THROTTLE in options and not is_dumped(options[THROTTLE]) else None
        on_429 = options.get(ON_429)
        if on_429 is not None and not isinstance(on_429, dict):
            # Check the name only here: a message in the queue must not fail because its limits were renamed.
            check_on_429(on_429, self.options(message).limits if fresh is None else fresh)
            options[ON_429] = {"name": name_of(on_429)}
        if fresh is not None:
            options[THROTTLE] = dump_limits(fresh, _job(broker, message))

    def options(self, message: Any) -> JobOptions:
        """
        Return the options that apply to *message*.

        Raises:
            ConfigurationError: *message* has options that throttlekit did not write, or that messages must not carry.
        """
        given: dict[str, Any] = message.options
        if not self._own_limits:
            _check_carries_none(given)
        own = self._of_actor.get(message.actor_name, self._default)
        if THROTTLE in given:
            own = replace(own, limits=load_limits(given[THROTTLE]))
        if MAX_WAIT in given:
            own = replace(own, max_wait=None if given[MAX_WAIT] is None else seconds_in(MAX_WAIT, given[MAX_WAIT]))
        if isinstance(named := given.get(ON_429), dict):
            name: Any = named.get("name")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            own = replace(own, on_429=name if isinstance(name, str) else None)
        return own

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


def _check_carries_none(given: Mapping[str, Any]) -> None:
    carried = [name for name in (THROTTLE, MAX_WAIT, ON_429) if name in given]
    if carried:
        raise ConfigurationError(
            f"the message carries its own {', '.join(carried)}, but Throttle(own_limits=False) allows only those of "
            "actors"
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
