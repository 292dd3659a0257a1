"""Convert limits to plain data for messages. A process that does not declare a limit can build it from the data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from throttlekit._core.algorithms.concurrency import Concurrency
from throttlekit._core.algorithms.fixed_window import FixedWindow
from throttlekit._core.algorithms.sliding_log import SlidingLog
from throttlekit._core.algorithms.sliding_window import SlidingWindow
from throttlekit._core.algorithms.token_bucket import LeakyBucket, TokenBucket
from throttlekit._core.job import Job
from throttlekit._core.limit.adapt import Adapt, ByLatency
from throttlekit._core.limit.base import Limit
from throttlekit._core.limit.share import NO_TENANT_SHARE, GivenShare, TenantShare
from throttlekit._core.limit.template import safe_repr
from throttlekit._core.number import LARGEST_EXACT
from throttlekit.errors import ConfigurationError

__all__ = ["dump", "load", "load_in_force", "plain"]

_KINDS: tuple[type[Limit], ...] = (TokenBucket, LeakyBucket, FixedWindow, SlidingWindow, SlidingLog, Concurrency)
_ALGORITHMS: dict[str, type[Limit]] = {kind.algorithm: kind for kind in _KINDS}
_LEFT_OUT = {"scope": "global", "on_store_failure": "closed", "show_key": False}
"""The values that the data does not contain, besides None."""


def dump(limit: Limit, job: Job) -> dict[str, Any]:
    """Return the data of *limit* as it applies to *job*: with the job's own key, cost and tier."""
    limit = limit.for_job(job)
    workflow = None if limit.held_by is None else limit.workflow_of(job)
    return plain(limit, limit.key_of(job), limit.cost_of(job), limit.tenant_share_of(job), workflow)


def plain(
    limit: Limit, key: str, cost: int, share: TenantShare = NO_TENANT_SHARE, workflow: str | None = None
) -> dict[str, Any]:
    """Return the data of *limit* with *key*, *cost*, *share* and *workflow* instead of its own."""
    options = {
        "scope": limit.scope,
        "tier": limit.of_tier,
        "varying_us": limit.varying_us,
        "on_store_failure": limit.on_store_failure,
        "processes": limit.processes,
        "share": None if limit.share is None else list(share),
        "adapt": limit.adapt and limit.adapt.plain(limit.amount, limit.period_us),
        "held_by": workflow,
        "show_key": limit.show_key,
        "prefetch": limit.prefetch,
        "prefetch_for": limit.prefetch_for,
        "declared": limit.declared and _plain_rate(limit.declared),
    }
    return {
        "algorithm": limit.algorithm,
        "name": limit.name,
        **_plain_rate(limit),
        "key": key,
        "cost": cost,
        **{name: value for name, value in options.items() if value is not None and value != _LEFT_OUT.get(name)},
    }


def _plain_rate(limit: Limit) -> dict[str, Any]:
    """Return the part of the data that live control may change."""
    return {"rate": [limit.amount, limit.period_us], **limit.own_options()}


def load(data: Mapping[str, Any]) -> Limit:
    """
    Read a limit that `dump` or `plain` wrote. It may differ from a limit with the same name that this process declares,
    because the sender of the message may run another release.

    Raises:
        ConfigurationError: `dump` or `plain` did not write *data*.
    """
    try:
        # A message of the first release, which had only one algorithm, does not name it.
        algorithm = _ALGORITHMS[data.get("algorithm", "token-bucket")]
        make: Any = algorithm
        rules = algorithm.rule_type
        amount, period_us = data["rate"]
        key, tier, varying_us = data["key"], data.get("tier"), data.get("varying_us")
        workflow = data.get("held_by")
        if not isinstance(key, str) or not all(isinstance(each, (str, type(None))) for each in (tier, workflow)):
            raise ValueError("key")
        if varying_us is not None and (type(varying_us) is not int or not 0 <= varying_us <= LARGEST_EXACT):
            raise ValueError("varying_us")
        share, adapt = data.get("share"), data.get("adapt")
        limit: Limit = make(
            data["name"],
            algorithm.rate_from(amount, period_us),
            key=_always(key) if key else None,
            cost=data["cost"],
            scope=data.get("scope", "global"),
            on_store_failure=data.get("on_store_failure", "closed"),
            processes=data.get("processes"),
            share=None if share is None else GivenShare.read(share),
            adapt=None if adapt is None else (ByLatency if algorithm is Concurrency else Adapt).read(adapt),
            held_by=None if workflow is None else _always(workflow),
            show_key=data.get("show_key") is True,
            _sent=(tier, varying_us),
            **{option: data[option] for option in ("prefetch", "prefetch_for") if data.get(option) is not None},
            **{option: data[option] for option in rules.options if option not in rules.later or option in data},
        )
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise ConfigurationError(
            f"a limit in the message is not one that throttlekit wrote: {safe_repr(error)}"
        ) from None
    return limit


def load_in_force(data: Mapping[str, Any]) -> Limit:
    """
    Read a limit like `load`. If live control has set its rate, the limit uses the count of the declared limit. Do not
    use this function for data from the sender of a message: the sender could set the rate of any limit.

    Raises:
        ConfigurationError: As for `load`.
    """
    limit, declared = load(data), data.get("declared")
    if declared is None:
        return limit
    kept = ("rate", *limit.rule_type.options)
    if not isinstance(declared, Mapping) or not limit.count_with(
        load({**data, "prefetch": None, **{name: declared.get(name) for name in kept}})  # pyright: ignore[reportUnknownMemberType]
    ):
        raise ConfigurationError("a limit in the message is not one that throttlekit wrote: 'declared'")
    return limit


def _always(key: str) -> Callable[[Job], str]:
    return lambda job: key
