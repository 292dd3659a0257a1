"""One limit for each tier of a limit that has several rates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from throttlekit._core.limit.rate import Rate
from throttlekit._core.limit.template import check_source, plain, safe_repr
from throttlekit.errors import ConfigurationError

__all__ = ["listed", "tiers_of"]


def tiers_of(limit: Any, rates: Mapping[str, Rate], options: Mapping[str, Any]) -> dict[str, Any]:
    """
    A limit of the same kind as *limit* for each of *rates*.

    Args:
        options: The algorithm's own. One value for all tiers, or a mapping with one for each.

    Raises:
        ConfigurationError: A value that can never work.
    """
    if not rates or not all(isinstance(name, str) and name for name in rates):
        raise ConfigurationError('the rates of tiers must be named by some text, like {"free": "10/m"}')
    if limit.tier is None:
        raise ConfigurationError("a rate for each tier needs tier=: which tier is a job's?")
    check_source("tier", limit.tier)
    if limit.default_tier is not None and limit.default_tier not in list(rates):
        raise ConfigurationError(
            f"default_tier={safe_repr(limit.default_tier)} is not one of its tiers {listed(rates)}"
        )
    for option, value in options.items():
        if isinstance(value, Mapping) and {*map(plain, value)} != {*rates}:  # pyright: ignore[reportUnknownArgumentType]
            raise ConfigurationError(f"{option}= must have a value for each of the tiers {listed(rates)}")
    return {tier: _tier_of(limit, tier, rate, options) for tier, rate in rates.items()}


def listed(tiers: Mapping[str, object]) -> str:
    """The names of *tiers*, as an error message shows them."""
    return ", ".join(repr(name) for name in tiers)


def _tier_of(limit: Any, tier: str, rate: Rate, options: Mapping[str, Any]) -> Any:
    if isinstance(rate, Mapping):
        raise ConfigurationError(f"the rate of tier {tier!r} must be a rate, not {safe_repr(rate)}")
    return type(limit)(
        limit.name,
        rate,
        key=limit.key,
        cost=limit.cost,
        scope=limit.scope,
        on_store_failure=limit.on_store_failure,
        processes=limit.processes,
        share=limit.share,
        adapt=limit.adapt,
        held_by=limit.held_by,
        _of_tier=tier,
        **{option: _value_of(value, tier) for option, value in options.items()},
    )


def _value_of(option: Any, tier: str) -> Any:
    """The value that *option* has for *tier*: there may be one for all."""
    if not isinstance(option, Mapping):
        return option
    return next(value for name, value in option.items() if plain(name) == tier)  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
