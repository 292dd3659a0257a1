"""The options that every limit takes, and their checks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import Any, Literal, TypeAlias, TypedDict, get_args

from throttlekit._core.job import Job
from throttlekit._core.limit.adapt import Adapt, ByLatency
from throttlekit._core.limit.rate import Rate
from throttlekit._core.limit.share import Share
from throttlekit._core.limit.template import Key, check_source, check_units, safe_repr
from throttlekit._core.number import is_whole
from throttlekit._core.spelling import unknown_argument
from throttlekit.errors import ConfigurationError

__all__ = [
    "Cost",
    "LimitOptions",
    "OnStoreFailure",
    "Rates",
    "Scope",
    "Tier",
    "check_options",
    "fingerprint_of",
    "unknown_option",
]

Cost: TypeAlias = "int | Callable[[Job], int]"
Rates: TypeAlias = "Rate | Mapping[str, Rate] | Callable[[Job], Rate]"
Scope: TypeAlias = Literal["global", "queue", "job", "process"]
Tier: TypeAlias = "str | Callable[[Job], str] | None"
OnStoreFailure: TypeAlias = Literal["closed", "open", "local"]

_MOST_PROCESSES = 1_000_000


class LimitOptions(TypedDict, total=False):
    """The keywords that every limit takes; see `Limit`."""

    key: Key
    cost: Cost
    scope: Scope
    tier: Tier
    default_tier: str | None
    on_store_failure: OnStoreFailure
    processes: int | None
    share: Share | Key
    adapt: Adapt | ByLatency | None
    queue: int | Mapping[str, int] | None
    show_key: bool


def check_options(limit: Any) -> None:
    """
    Check the options of *limit* that do not depend on its algorithm or its rate.

    Raises:
        ConfigurationError: An option can never work.
    """
    _check_failure(limit.on_store_failure, limit.processes, limit.scope)
    check_source("key", limit.key)
    if limit.held_by is not None:
        _check_held_by(limit)
    if not isinstance(limit.show_key, bool):
        raise ConfigurationError(f"show_key must be True or False, not {safe_repr(limit.show_key)}")
    if not callable(limit.cost):
        check_units(limit.cost)
    if limit.scope not in get_args(Scope):
        raise ConfigurationError(
            f'the scope must be "global", "queue", "job" or "process", not {safe_repr(limit.scope)}'
        )
    if not isinstance(limit.rate, Mapping) and (limit.tier is not None or limit.default_tier is not None):
        raise ConfigurationError('tier= needs a rate for each tier, like {"free": "10/m", "pro": "100/m"}')


def _check_failure(on_store_failure: object, processes: Any, scope: object) -> None:
    """
    Check that these options can work together.

    Raises:
        ConfigurationError: The options cannot work together, or one of them is invalid.
    """
    if on_store_failure not in get_args(OnStoreFailure):
        raise ConfigurationError(f'on_store_failure must be "closed", "open" or "local", not {on_store_failure!r}')
    if on_store_failure != "local" and processes is not None:
        raise ConfigurationError(f'processes={processes!r} needs on_store_failure="local"')
    if on_store_failure != "closed" and scope == "process":
        raise ConfigurationError('a limit of scope "process" uses no store: leave on_store_failure= out')
    if on_store_failure == "local" and not is_whole(processes, 1, _MOST_PROCESSES):
        raise ConfigurationError(
            'on_store_failure="local" needs processes=: how many processes share the limit, '
            f"from 1 to {_MOST_PROCESSES}, not {processes!r}"
        )


def _check_held_by(limit: Any) -> None:
    check_source("held_by", limit.held_by)
    if limit.algorithm != "concurrency":
        raise ConfigurationError("held_by= is for the slots of a Concurrency limit: a rate has no slots to hold")
    if limit.scope == "process" or limit.on_store_failure == "local":
        raise ConfigurationError(
            "held_by= keeps a slot from job to job, where every process finds it: leave out "
            + ('scope="process"' if limit.scope == "process" else 'on_store_failure="local"')
        )
    if limit.adapt is not None:
        raise ConfigurationError(f"{limit.adapt!r} measures how long each job holds its slot: leave out it or held_by=")
    if not isinstance(limit.cost, int) or limit.cost > 1:
        raise ConfigurationError("with held_by= a workflow holds one slot: leave out either it or cost=")


def unknown_option(of: type, name: str) -> TypeError:
    """
    Return the error that Python raises for an unknown argument *name*, with the class *of* that the caller wrote, and
    the argument that was probably meant.
    """
    own = [each.name for each in signature(of).parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
    known = [each for each in [*own, *LimitOptions.__annotations__] if not each.startswith("_")]
    return unknown_argument(of.__name__, name, known)


def fingerprint_of(definition: str) -> str:
    """Return a short text that identifies a limit's definition, for the names of its keys."""
    return hashlib.blake2b(definition.encode(), digest_size=5).hexdigest()
