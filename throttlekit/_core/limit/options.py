"""The options that every limit takes, and what they may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias, TypedDict, get_args

from throttlekit._core.exact import LARGEST_EXACT
from throttlekit._core.job import Job
from throttlekit._core.limit.adapt import Adapt, SlotAdapt
from throttlekit._core.limit.local_share import OnStoreFailure, check_failure
from throttlekit._core.limit.rate import Rate
from throttlekit._core.limit.share import Share
from throttlekit._core.limit.template import Key, check_source, check_units, safe_repr
from throttlekit.errors import ConfigurationError

__all__ = ["Cost", "LimitOptions", "Rates", "Scope", "Tier", "check_options", "check_queue"]

Cost: TypeAlias = "int | Callable[[Job], int]"
Rates: TypeAlias = "Rate | Mapping[str, Rate] | Callable[[Job], Rate]"
Scope: TypeAlias = Literal["global", "queue", "job", "process"]
Tier: TypeAlias = "str | Callable[[Job], str] | None"


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
    adapt: Adapt | SlotAdapt | None
    queue: int | Mapping[str, int] | None


def check_options(limit: Any) -> None:
    """
    Make sure that the options of *limit* can work, whatever its algorithm and its rate.

    Raises:
        ConfigurationError: One of them cannot.
    """
    check_failure(limit.on_store_failure, limit.processes, limit.scope)
    check_source("key", limit.key)
    if limit.held_by is not None:
        _check_held_by(limit)
    if not callable(limit.cost):
        check_units(limit.cost)
    if limit.scope not in get_args(Scope):
        raise ConfigurationError(
            f'the scope must be "global", "queue", "job" or "process", not {safe_repr(limit.scope)}'
        )
    if not isinstance(limit.rate, Mapping) and (limit.tier is not None or limit.default_tier is not None):
        raise ConfigurationError('tier= needs a rate for each tier, like {"free": "10/m", "pro": "100/m"}')


def _check_held_by(limit: Any) -> None:
    check_source("held_by", limit.held_by)
    if limit.algorithm != "concurrency":
        raise ConfigurationError("held_by= is for the slots of a Concurrency limit: a rate has nothing to hold")
    if limit.scope == "process" or limit.on_store_failure == "local":
        raise ConfigurationError(
            "held_by= keeps a slot from job to job, where every process finds it: leave out "
            + ('scope="process"' if limit.scope == "process" else 'on_store_failure="local"')
        )
    if limit.adapt is not None:
        raise ConfigurationError(f"{limit.adapt!r} measures jobs that give their slots back: leave out it or held_by=")
    if not isinstance(limit.cost, int) or limit.cost > 1:
        raise ConfigurationError("with held_by= a workflow holds one slot: leave out either it or cost=")


def check_queue(queue: Any) -> int | None:
    """
    *queue*, if so many jobs may wait.

    Raises:
        ConfigurationError: It is not a number of jobs.
    """
    if queue is not None and (isinstance(queue, bool) or not isinstance(queue, int) or queue < 0):
        raise ConfigurationError(f"the queue must be a whole number of at least 0, not {safe_repr(queue)}")
    if queue is not None and queue > LARGEST_EXACT:
        raise ConfigurationError("the queue must be less than 2**53: leave it out, and any number may wait")
    return None if queue is None else int.__int__(queue)
