"""What users write into an adapter's options: limits, seconds, and how long a job may wait."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeAlias

from throttlekit._core.decision import Decision
from throttlekit._core.durations import seconds_in
from throttlekit._core.job import Job
from throttlekit._core.limit.base import Limit
from throttlekit._core.limit.template import safe_repr
from throttlekit._core.serialize import dump, load
from throttlekit.errors import ConfigurationError

__all__ = [
    "WaitRules",
    "WhenOver",
    "dump_limits",
    "is_dumped",
    "limits_in",
    "load_limits",
    "refusal",
]

WhenOver: TypeAlias = Literal["fail", "drop", "run"]


@dataclass(frozen=True, slots=True)
class WaitRules:
    """
    How long a job may wait, and what then.

    Attributes:
        max_wait: Seconds from the first denial.
        max_deferrals: How often it may be denied.
        when_over: What becomes of it past either.

    Raises:
        ConfigurationError: A value can never work.
    """

    max_wait: float = math.inf
    max_deferrals: float = math.inf
    when_over: WhenOver = "fail"

    @classmethod
    def of(cls, max_wait: float | timedelta | None, max_deferrals: int | None, when_over: WhenOver) -> WaitRules:
        if when_over not in ("fail", "drop", "run"):
            raise ConfigurationError(f'when_over must be "fail", "drop" or "run", not {when_over!r}')
        if max_deferrals is not None and (type(max_deferrals) is not int or max_deferrals < 0):
            raise ConfigurationError(f"max_deferrals must be a whole number of at least 0, not {max_deferrals!r}")
        return cls(seconds_in("max_wait", max_wait), math.inf if max_deferrals is None else max_deferrals, when_over)


def limits_in(spec: Any) -> tuple[Limit, ...]:
    """
    Read a `throttle=` option: a limit, several, or None for none.

    Raises:
        ConfigurationError: It is something else, or names one limit twice.
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
    """Whether *spec* looks like limits that travelled by value."""
    return isinstance(spec, list) and all(isinstance(limit, dict) for limit in spec)  # pyright: ignore[reportUnknownVariableType]


def dump_limits(limits: Iterable[Limit], job: Job) -> list[dict[str, Any]]:
    """The limits as they travel by value with *job*."""
    return [dump(limit, job) for limit in limits]


def load_limits(spec: Any) -> tuple[Limit, ...]:
    """
    The limits that travelled by value with a job.

    Raises:
        ConfigurationError: *spec* is not what throttlekit writes.
    """
    if spec is None:
        return ()
    if not is_dumped(spec):
        raise ConfigurationError("the job's throttle option is not one that throttlekit wrote")
    return tuple(load(data) for data in spec)


def refusal(decision: Decision) -> str:
    """Why a job ends that *decision* refused, as its error or its log says it."""
    if decision.reason == "queue full":
        return f"limit {decision.limit.name!r} refused this job: as many wait already as its queue takes"
    return f"limit {decision.limit.name!r} denied this job past its max_wait or max_deferrals"
