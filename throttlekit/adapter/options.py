"""
The options of a job: `throttle=`, `throttle_on_429=`, `throttle_max_wait=`, and the rules for its wait.

This module checks every option, for all frameworks, and defines how limits are written into a message ("by value").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import lru_cache
from inspect import Parameter, signature
from typing import Any, Literal, TypeAlias

from throttlekit._core.durations import seconds_in
from throttlekit._core.job import Job
from throttlekit._core.limit.base import Limit
from throttlekit._core.limit.template import safe_repr
from throttlekit._core.serialize import dump, load
from throttlekit._core.spelling import similar_names
from throttlekit._engine.call import Delivery
from throttlekit.errors import ConfigurationError
from throttlekit.limiter import Limiter

__all__ = [
    "MAX_WAIT",
    "ON_429",
    "OPTIONS",
    "THROTTLE",
    "JobOptions",
    "OnWaitedTooLong",
    "WaitRules",
    "boolean_in",
    "check_function",
    "check_limiter",
    "check_on_429",
    "check_spelling",
    "dump_limits",
    "is_dumped",
    "load_limits",
    "misspelt",
    "name_of",
    "read_limits",
]

OPTIONS = THROTTLE, ON_429, MAX_WAIT = "throttle", "throttle_on_429", "throttle_max_wait"
"""The options' names, in every framework. They begin with `throttle`, to differ from a framework's own options."""

_OF_OUR_FUNCTIONS = {"on_429": ON_429, "max_wait": MAX_WAIT}
"""Argument names of throttlekit's functions that users may write by mistake, with the right option for each."""

OnWaitedTooLong: TypeAlias = Literal["fail", "drop", "run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """
    The limits and wait options of one job.

    Attributes:
        limits: The job's limits. A job without limits runs at once.
        on_429: The name of the limit that a `RateLimited` in the job's body pauses, if the error names no limit. If
            None, every limit of the job that is not a concurrency limit is paused.
        max_wait: Seconds that the job may wait in total, from its first denial. If None, `WaitRules` has the value.
    """

    limits: tuple[Limit, ...] = ()
    on_429: str | None = None
    max_wait: float | None = None

    @classmethod
    def read(
        cls,
        throttle: Any = None,
        *,
        on_429: Limit | str | None = None,
        max_wait: float | timedelta | None = None,
        limiter: Limiter | None = None,
        function: Callable[..., Any] | None = None,
    ) -> JobOptions:
        """
        Read and check the options when they are declared, so that a mistake is reported at once.

        Args:
            limiter: The limiter that registers the limits, so that each name has one definition.
            function: The job's function. Templates of keys and tiers may name its arguments only.

        Raises:
            ConfigurationError: An option can never work. The message names the value; the caller adds the job's name.
        """
        limits = read_limits(throttle)
        if limiter is not None:
            limiter.declare(*limits)
        check_on_429(on_429, limits)
        if function is not None:
            check_function(limits, function)
        seconds = None if max_wait is None else seconds_in(MAX_WAIT, max_wait)
        return cls(limits=limits, on_429=name_of(on_429), max_wait=seconds)

    @classmethod
    def declared(
        cls, what: str, given: Mapping[str, Any], *, limiter: Limiter, function: Callable[..., Any] | None = None
    ) -> JobOptions:
        """
        Like `read`, for the options *given* in the declaration of *what*. Other options are ignored.

        Raises:
            ConfigurationError: An option can never work. The message begins with *what*, such as "task 'a'".
        """
        try:
            throttle, on_429, max_wait = map(given.get, OPTIONS)
            return cls.read(throttle, on_429=on_429, max_wait=max_wait, limiter=limiter, function=function)
        except ConfigurationError as error:
            raise ConfigurationError(f"{what}: {error}") from None

    def travelling(self, given: Mapping[str, Any], job: Job) -> dict[str, Any]:
        """
        Return throttlekit's options among *given* as plain data for one message, with its limits by value.

        Args:
            given: The options as a user writes them. Limits that are by value already, as in a retry, do not change.
            job: The job of the message, from which keys and costs are computed.

        Raises:
            ConfigurationError: An option can never work.
        """
        travel: dict[str, Any] = {}
        limits, throttle, on_429 = self.limits, given.get(THROTTLE), given.get(ON_429)
        if THROTTLE in given:
            limits = load_limits(throttle) if is_dumped(throttle) else read_limits(throttle)
            travel[THROTTLE] = throttle if is_dumped(throttle) else dump_limits(limits, job)
        if on_429 is not None:
            check_on_429(on_429, limits)
            travel[ON_429] = name_of(on_429)
        if given.get(MAX_WAIT) is not None:
            travel[MAX_WAIT] = seconds_in(MAX_WAIT, given[MAX_WAIT])
        return travel

    def with_message(self, travelled: Mapping[str, Any]) -> JobOptions:
        """
        Return the options of a message that carries *travelled*, which `travelling` wrote.

        Raises:
            ConfigurationError: `travelling` did not write *travelled*.
        """
        on_429, max_wait = travelled.get(ON_429), travelled.get(MAX_WAIT)
        return JobOptions(
            limits=load_limits(travelled[THROTTLE]) if THROTTLE in travelled else self.limits,
            on_429=on_429 if isinstance(on_429, str) else self.on_429,
            max_wait=self.max_wait if max_wait is None else seconds_in(MAX_WAIT, max_wait),
        )


@dataclass(frozen=True, slots=True)
class WaitRules:
    """
    The longest wait of a job, and the outcome of a job that exceeds it.

    Attributes:
        max_wait: The longest wait in seconds, from the first denial.
        max_deferrals: The most denials of a job.
        on_waited_too_long: The outcome of a job that exceeds one of these, or that a full `queue=` rejects: "fail" ends
            it with `WaitedTooLong`, "drop" ends it without running it, "run" runs it uncharged, **beyond the limit**.
    """

    max_wait: float = math.inf
    max_deferrals: float = math.inf
    on_waited_too_long: OnWaitedTooLong = "fail"

    @classmethod
    def read(
        cls, max_wait: float | timedelta | None, max_deferrals: int | None, on_waited_too_long: OnWaitedTooLong
    ) -> WaitRules:
        """
        Read and check an adapter's arguments. None means no bound.

        Raises:
            ConfigurationError: A value can never work.
        """
        if on_waited_too_long not in ("fail", "drop", "run"):
            raise ConfigurationError(f'on_waited_too_long must be "fail", "drop" or "run", not {on_waited_too_long!r}')
        if max_deferrals is not None and (type(max_deferrals) is not int or max_deferrals < 0):
            raise ConfigurationError(f"max_deferrals must be a whole number of at least 0, not {max_deferrals!r}")
        return cls(
            seconds_in("max_wait", max_wait), math.inf if max_deferrals is None else max_deferrals, on_waited_too_long
        )

    def delivery(self, framework: Delivery, max_wait: float | None, **of_job: Any) -> Delivery:
        """
        Return the delivery of *framework* for one job.

        Args:
            max_wait: The job's own longest wait, in seconds. If None, that of these rules is used.
            of_job: Other fields of the delivery, for this job.
        """
        longest = self.max_wait if max_wait is None else max_wait
        return replace(framework, max_wait=longest, max_deferrals=self.max_deferrals, **of_job)


def check_limiter(limiter: object, usage: str) -> Limiter:
    """
    Return *limiter* if it is a `Limiter`.

    Args:
        usage: The correct call, for the error: "Throttle takes a limiter: Throttle(Limiter(…))".

    Raises:
        ConfigurationError: *limiter* is not a `Limiter`.
    """
    if not isinstance(limiter, Limiter):
        raise ConfigurationError(f"{usage}, not {limiter!r}")
    return limiter


def boolean_in(option: str, value: object) -> bool:
    """
    Return the *value* of *option* if it is a bool.

    Raises:
        ConfigurationError: *value* is not a bool. The text "false", for example, would count as true.
    """
    if not isinstance(value, bool):
        raise ConfigurationError(f"{option} must be True or False, not {safe_repr(value)}")
    return value


def misspelt(names: Iterable[str]) -> dict[str, str]:
    """
    Map each of *names* that looks like a misspelt option of a job to that option. Most frameworks accept any option, so
    they would not report it.
    """
    given = set(names)
    meant = {name: option for name in given if (option := _similar_option(name))}
    if THROTTLE in given:
        meant |= {name: option for name, option in _OF_OUR_FUNCTIONS.items() if name in given}
    return meant


@lru_cache(256)
def _similar_option(name: str) -> str | None:
    if name in OPTIONS or name.startswith("throttlekit"):  # an option that an adapter uses itself
        return None
    return next(iter(similar_names(name, OPTIONS, unknown=False)), None)


def check_spelling(what: str, options: Mapping[str, Any], function: object = None) -> None:
    """
    Make sure that none of *options* of *what* is a misspelt option of a job. The framework would accept it, and nothing
    would read it.

    Args:
        function: The job's function, if *options* may also be its keyword arguments. Those that it accepts are allowed,
            except a limit, or a list of limits, that only its `**kwargs` would accept.

    Raises:
        ConfigurationError: An option is misspelt. The message has the misspelt and the right name.
    """
    for name, meant in misspelt(options).items():
        if function is None or not _accepts(function, name, options[name]):
            raise ConfigurationError(f"{what} has no option {name!r}: did you mean {meant!r}?")


def _accepts(function: Any, name: str, value: object) -> bool:
    try:
        parameters = signature(function).parameters
    except (TypeError, ValueError):  # *function* has no signature, or is only a name
        return not _holds_limits(value)
    return name in parameters or (
        any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values()) and not _holds_limits(value)
    )


def _holds_limits(value: object) -> bool:
    limits: list[object] = list(value) if isinstance(value, (list, tuple)) else [value]  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return any(isinstance(limit, Limit) for limit in limits)


def check_function(limits: Iterable[Limit], function: Callable[..., Any]) -> None:
    """
    Make sure that the keys and tiers of *limits* can be computed from the arguments of *function*.

    Raises:
        ConfigurationError: A template names an argument that *function* does not take.
    """
    for limit in limits:
        limit.check_function(function)


def check_on_429(on_429: Limit | str | None, limits: Iterable[Limit]) -> None:
    """
    Make sure that the option `throttle_on_429` of a job names one of its *limits*.

    Raises:
        ConfigurationError: The option names no limit of the job.
    """
    names = [limit.name for limit in limits]
    if on_429 is not None and name_of(on_429) not in names:
        listed = f"name one of {', '.join(map(repr, names))}" if names else "name its limits in throttle="
        raise ConfigurationError(
            f"the limit to pause on a 429 is {on_429!r}, which is not a limit of the job: {listed}"
        )


def name_of(on_429: Limit | str | None) -> str | None:
    """Return the limit's name, which is how the option `throttle_on_429` is stored and sent."""
    return on_429.name if isinstance(on_429, Limit) else on_429


def read_limits(spec: Any) -> tuple[Limit, ...]:
    """
    Read a `throttle=` option: a limit, several limits, or None.

    Raises:
        ConfigurationError: *spec* is something else, or names one limit twice.
    """
    if spec is None:
        return ()
    if isinstance(spec, Limit):
        return (spec,)
    limits: tuple[Any, ...] = tuple(spec) if isinstance(spec, (list, tuple, set, frozenset)) else (spec,)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    for limit in limits:
        if not isinstance(limit, Limit):
            raise ConfigurationError(
                'throttle= takes a limit or a list of limits, like [TokenBucket("name", "100/minute")], '
                f"not {safe_repr(limit)}"
            )
    names = [limit.name for limit in limits]
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(f"limit {name!r} is named twice in throttle=: name it once, with a cost")
    return limits


def is_dumped(spec: Any) -> bool:
    """Whether *spec* looks like limits that `dump_limits` wrote."""
    return isinstance(spec, list) and all(isinstance(limit, dict) for limit in spec)  # pyright: ignore[reportUnknownVariableType]


def dump_limits(limits: Iterable[Limit], job: Job) -> list[dict[str, Any]]:
    """Return the limits as plain data, for the message of *job*."""
    return [dump(limit, job) for limit in limits]


def load_limits(spec: Any) -> tuple[Limit, ...]:
    """
    Return the limits that a message carries by value.

    Raises:
        ConfigurationError: throttlekit did not write *spec*.
    """
    if spec is None:
        return ()
    if not is_dumped(spec):
        raise ConfigurationError("the job's throttle option is not one that throttlekit wrote")
    return tuple(load(data) for data in spec)
