"""A limit with another rate, and otherwise the same."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from throttlekit._core.limit.base import Limit
from throttlekit.errors import ConfigurationError

__all__ = ["altered"]


def altered(limit: Limit, rate: Any, burst: int | None = None) -> Limit:
    """
    *limit* with another *rate*; a concurrency limit, with another amount. It counts where *limit* counts, if the
    algorithm can count both together (`Limit.count_with`).

    Args:
        burst: The new burst. Default: as declared. If the declared burst is the default of the declared rate: the
            default of the new rate.

    Raises:
        ConfigurationError: The limit cannot take it: not a rate of its kind, a burst where it has none, tiers, or a
            cost that would never pass.
    """
    limit = limit.declared or limit
    if limit.varying_us is not None:
        if burst is not None:
            raise ConfigurationError(f"limit {limit.name!r} has no burst of its own: it follows from the rate")
        return limit.at(rate)
    if limit.tiers is not None:
        raise ConfigurationError(f"limit {limit.name!r} has tiers: name the one whose rate is meant")
    options: dict[str, Any] = {option: getattr(limit, option) for option in limit.options}
    make: Any = type(limit)
    if "burst" in options:
        if burst is not None or make(limit.name, limit.rate).burst == options["burst"]:
            options["burst"] = burst
    elif burst is not None:
        raise ConfigurationError(f"limit {limit.name!r} is a {type(limit).__name__}, which has no burst")
    options.update(
        key=limit.key, cost=limit.cost, scope=limit.scope, on_store_failure=limit.on_store_failure,
        processes=limit.processes, share=limit.share, adapt=limit.adapt, _of_tier=limit.of_tier, _by_value=True,
    )  # fmt: skip
    made: Limit = make(limit.name, rate, **options)
    if limit.prefetch is not None:
        with suppress(ConfigurationError):  # a lease that does not fit the new rate: nothing is taken ahead
            made = make(limit.name, rate, prefetch=limit.prefetch, prefetch_for=limit.prefetch_for, **options)
    if made.fingerprint != limit.fingerprint:
        made.count_with(limit)
    return made
