"""A limit with another rate, or with a part of its own, and otherwise the same."""

from __future__ import annotations

from contextlib import suppress
from math import gcd
from typing import Any

from throttlekit._core.limit.base import Limit
from throttlekit._core.limit.rate import LONGEST_PERIOD_US
from throttlekit._core.limit.varying import remade_at
from throttlekit.errors import ConfigurationError

__all__ = ["altered", "scaled"]

_ONE = 1000
_LONGEST_REFILL_US = 10 * LONGEST_PERIOD_US  # as a TokenBucket has it
_MANY, _TOO_MANY = 10**9, 10**12  # units: the next whole one is near enough; no rate has as many


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
    adapt = limit.adapt and limit.adapt.as_part(limit.amount, limit.period_us)
    made = _remade(limit, rate, adapt, options)
    if made.fingerprint != limit.fingerprint:
        made.count_with(limit)
    return made


def scaled(limit: Limit, thousandths: int) -> Limit:
    """
    *limit*, as it is for a job, at so many *thousandths* of its rate; a concurrency limit, of its amount. It counts
    where *limit* counts.

    Never above the rate of *limit*, and at least one unit in 366 days. What a fixed cost needs still passes, and of a
    limit with `processes` each one's share of it. The burst stays, unless it is the default of the rate. With `adapt`,
    the rate falls to the same parts of the lower rate, the floor included.

    Raises:
        ConfigurationError: It cannot be counted together with *limit*, so more than its bound would pass.
    """
    if thousandths >= _ONE:
        return limit
    declared, adapt = limit.declared or limit, limit.adapt and limit.adapt.as_part(limit.amount, limit.period_us)
    least = (limit.cost if isinstance(limit.cost, int) else 1) * (limit.processes or 1)
    amount, period_us = limit.amount * thousandths // _ONE, limit.period_us
    if getattr(limit, "bucket", None) is not None:
        amount, period_us = _part_of(limit.amount, period_us, thousandths)
    else:
        amount = max(1, amount, min(least, limit.amount))
    rate = limit.rate_from(amount, period_us)
    options: dict[str, Any] = {option: getattr(limit, option) for option in limit.options}
    if limit.varying_us is not None:
        remade: Limit = remade_at(limit, rate, options, adapt)
        return remade
    if "burst" in options:
        make: Any = type(limit)
        default: int = make(limit.name, limit.rate_from(limit.amount, limit.period_us)).burst
        burst = make(limit.name, rate).burst if options["burst"] == default else options["burst"]
        fits = _LONGEST_REFILL_US * amount // period_us
        options["burst"] = max(1, min(burst, fits), min(least, options["burst"]))
    made = _remade(declared, rate, adapt, options)
    if made.fingerprint != declared.fingerprint and not made.count_with(declared):
        raise ConfigurationError(
            f"limit {limit.name!r} is a {type(limit).__name__}, which counts another rate by itself: more than its "
            "bound would pass"
        )
    return made


def _part_of(amount: int, period_us: int, thousandths: int) -> tuple[int, int]:
    """So many *thousandths* of a rate: exactly, or less by 1 in 30 000 at most where the period would be too long."""
    units = amount * thousandths
    common = gcd(units, _ONE)
    if period_us * (_ONE // common) <= LONGEST_PERIOD_US and units // common < _TOO_MANY:
        return units // common, period_us * (_ONE // common)
    if units >= _MANY:
        return units // _ONE, period_us
    return 1, min(LONGEST_PERIOD_US, -(-period_us * _ONE // units))


def _remade(limit: Limit, rate: Any, adapt: Any, options: dict[str, Any]) -> Limit:
    """*limit*, whose rate is fixed, with these."""
    make: Any = type(limit)
    options = {
        **options, "key": limit.key, "cost": limit.cost, "scope": limit.scope,
        "on_store_failure": limit.on_store_failure, "processes": limit.processes, "share": limit.share,
        "adapt": adapt, "held_by": limit.held_by, "_of_tier": limit.of_tier, "_by_value": True,
    }  # fmt: skip
    made: Limit = make(limit.name, rate, **options)
    if limit.prefetch is not None:
        with suppress(ConfigurationError):  # a lease that does not fit the new rate: nothing is taken ahead
            made = make(limit.name, rate, prefetch=limit.prefetch, prefetch_for=limit.prefetch_for, **options)
    return made
