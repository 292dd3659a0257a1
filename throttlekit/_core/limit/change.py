"""Changes of a limit's rate, by live control: another rate or burst, or a part of the rate."""

from __future__ import annotations

from typing import Any

from throttlekit._core.limit.base import Limit
from throttlekit.errors import ConfigurationError

__all__ = ["change_rate", "scale_rate"]


def change_rate(limit: Limit, rate: Any, burst: int | None = None) -> Limit:
    """
    Return *limit* with another *rate*, or a concurrency limit with another amount. It uses the count of *limit*, if the
    algorithm can count both together (`Limit.count_with`).

    Args:
        burst: The new burst. Default: the declared burst, or the default of the new rate if the declared burst is the
            default of the declared rate.

    Raises:
        ConfigurationError: The change cannot work: the rate is of another kind, the limit has no burst, it has tiers,
            or its cost could never pass.
    """
    limit = limit.declared or limit
    if limit.rates is not None:
        if burst is not None:
            raise ConfigurationError(f"limit {limit.name!r} has no burst option: its burst follows from the rate")
        return limit.at(rate)
    if limit.tiers is not None:
        raise ConfigurationError(f"limit {limit.name!r} has tiers: name the one whose rate is meant")
    if burst is not None and "burst" not in limit.rule_type.options:
        raise ConfigurationError(f"limit {limit.name!r} is a {type(limit).__name__}, which has no burst")
    made = limit._change_rule(lambda rule: rule.with_rate(rate, burst), by_value=True)  # pyright: ignore[reportPrivateUsage]
    if made.fingerprint != limit.fingerprint:
        made.count_with(limit)
    return made


def scale_rate(limit: Limit, thousandths: int) -> Limit:
    """
    Return *limit*, as it applies to a job, at *thousandths* of its rate (or of its amount, for a concurrency limit). It
    uses the count of *limit*.

    The rate is never above that of *limit*, and at least one unit in 366 days. A fixed cost can still pass, and with
    `processes` also in the share of each process. The burst is not changed, unless it is the default of the rate. The
    floor of `adapt` changes in proportion.

    Raises:
        ConfigurationError: The algorithm counts each rate separately, so more units than the bound would pass.
    """
    if thousandths >= 1000:
        return limit
    least = (limit.cost if isinstance(limit.cost, int) else 1) * (limit.processes or 1)
    varies, declared = limit.rates is not None, limit.declared or limit
    by_value = limit.by_value or not varies
    made = limit._change_rule(lambda rule: rule.scale(thousandths, least), by_value=by_value)  # pyright: ignore[reportPrivateUsage]
    if not varies and made.fingerprint != declared.fingerprint and not made.count_with(declared):
        raise ConfigurationError(
            f"limit {limit.name!r} is a {type(limit).__name__}, which counts each rate separately: more units than its "
            "bound would pass"
        )
    return made
