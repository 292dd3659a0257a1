"""The definitions of limits that the fleet has reported, and whether a rule of live control fits them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from throttlekit._core.limit.base import Limit
from throttlekit._core.limit.change import change_rate, scale_rate
from throttlekit._core.storage_keys import fleet_name
from throttlekit.errors import ConfigurationError
from throttlekit.fleet.activity import reported_rate
from throttlekit.fleet.last_minute import Minute
from throttlekit.fleet.replies import pairs
from throttlekit.fleet.rules import Rule, data_of, thousandths
from throttlekit.fleet.snapshot import FleetStore, Known, known_of

__all__ = [
    "by_name",
    "check_rule",
    "definition_of",
    "definitions_of",
    "has_share",
    "is_of_another_tier",
    "is_steady",
    "names_of",
    "per_minute",
    "share_of_minute",
    "tiers_of",
    "why_ignored",
    "without_replaced",
]


_MINUTE_US = 60_000_000
_REPLACED_AFTER_S = 130.0
"""A definition that was not reported for this many seconds is replaced: each one in use is reported once a minute."""


def definitions_of(store: FleetStore) -> list[Known]:
    """
    Return the definitions that the fleet has used lately, at most 1 000. A limit with tiers has one for each tier.

    Raises:
        StoreUnavailable: The store did not answer.
    """
    (kept,) = store.commands([("HGETALL", fleet_name("limits"))])
    return [known for each in pairs(kept) if (known := known_of(*each)) is not None]


def by_name(definitions: Iterable[Known]) -> dict[tuple[str, str | None], list[Known]]:
    """Group *definitions* by the name and the tier of their limit."""
    found: dict[tuple[str, str | None], list[Known]] = {}
    for each in definitions:
        found.setdefault((each.limit.name, each.limit.of_tier), []).append(each)
    return found


def without_replaced(definitions: Iterable[Known]) -> list[Known]:
    """Return *definitions* without the replaced ones, which the store keeps for an hour."""
    found: list[Known] = []
    for same in by_name(definitions).values():
        newest = max(each.reported for each in same)
        found += [each for each in same if newest - each.reported < _REPLACED_AFTER_S]
    return found


def definition_of(store: FleetStore, id: str) -> Known | None:
    """
    Return the definition that the fleet reported as *id*, without its last minute, or None if it was not used in the
    last hour.

    Raises:
        StoreUnavailable: The store did not answer.
    """
    (text,) = store.commands([("HGET", fleet_name("limits"), id)])
    return known_of(id.encode("utf-8", "replace"), text or b"")


def names_of(store: FleetStore) -> tuple[str, ...]:
    """
    Return the names of the limits that the fleet has used lately, sorted.

    Raises:
        StoreUnavailable: The store did not answer.
    """
    kept: Any = store.commands([("HVALS", fleet_name("limits"))])[0]
    definitions: list[Any] = [data_of(text.partition(b" ")[2]) for text in kept]
    named: list[dict[str, Any]] = [each for each in definitions if isinstance(each, dict)]
    # Read only the name, because a definition of another release must not prevent a pause.
    return tuple(sorted({str(each["name"]) for each in named if "name" in each}))


def tiers_of(store: FleetStore, name: str) -> tuple[str, ...]:
    """
    Return the tiers of the limit *name* that the fleet has used lately, sorted.

    Raises:
        StoreUnavailable: The store did not answer.
    """
    found = {each.limit.of_tier for each in definitions_of(store) if each.limit.name == name}
    return tuple(sorted(tier for tier in found if tier is not None))


def check_rule(store: FleetStore, rule: Rule) -> None:
    """
    Reject a *rule* that no worker would follow, according to the reported definitions.

    Raises:
        ConfigurationError: The rule fits none of the definitions that the fleet has reported for its limit and tier.
        StoreUnavailable: The store did not answer.
    """
    matching = [
        each for each in definitions_of(store) if rule.is_for(each.limit.name) and not is_of_another_tier(rule, each)
    ]
    reasons = [why_ignored(rule, each) for each in matching]
    if reasons and None not in reasons:
        raise ConfigurationError(f"{str(reasons[0]).rstrip('.')}. Nothing was changed")


def why_ignored(rule: Rule, known: Known) -> str | None:
    """Return why workers with the definition *known* ignore *rule*; None if they follow it."""
    limit = known.limit
    if rule.what == "set":
        if limit.of_tier is None and rule.part is not None:
            return f"limit {limit.name!r} has no tiers"
        if limit.of_tier is not None and rule.part is None:
            return f"limit {limit.name!r} has tiers, and the change names none: name one, like {limit.of_tier!r}"
        if is_of_another_tier(rule, known):
            return None
        try:
            change_rate(limit, rule.rate, rule.burst).check_cost(known.fixed_cost)
        except ConfigurationError as error:
            return str(error)
    if rule.what == "scale":
        try:
            scale_rate(limit, thousandths(rule.factor or 1))
        except ConfigurationError as error:
            return str(error)
    if rule.what == "weight" and not known.shared:
        return f"limit {limit.name!r} has no share=: its tenants have no weights"
    if rule.what == "weight" and known.shared == "strict":
        return f"the weights of limit {limit.name!r} are priorities, which only its share= can change"
    if rule.what == "pause" and rule.part is not None and not known.has_keys:
        return f"limit {limit.name!r} has no key: pause the whole limit"
    return None


def per_minute(limit: Limit) -> float:
    """Return the units per minute of the rate; 0 for a concurrency limit, which has no rate."""
    return limit.amount * 60_000_000 / limit.period_us if limit.period_us else 0.0


def is_of_another_tier(rule: Rule, known: Known) -> bool:
    """Return whether *rule* sets the rate of another tier than that of *known*."""
    return rule.what == "set" and rule.part is not None and known.limit.of_tier not in (None, rule.part)


def has_share(limit: Limit) -> bool:
    """
    Whether the units of a minute can be compared with the rate. They cannot if there is no rate, if it is less than
    one unit per minute, or if its window is longer than a minute.
    """
    is_window = limit.algorithm in ("fixed-window", "sliding-window", "sliding-log")
    return per_minute(limit) >= 1 and not (is_window and limit.period_us > _MINUTE_US)


def share_of_minute(limit: Limit, minute: Minute) -> float | None:
    """
    Return the units of *minute* as a share of the units that the rate allows in a minute. None if they cannot be
    compared, if the rate changed within the minute, or if the minute is not known.
    """
    if not minute.is_known or not is_steady(limit, minute) or not has_share(limit):
        return None
    return minute.used / per_minute(limit)


def is_steady(limit: Limit, minute: Minute) -> bool:
    """Whether *limit* had its rate throughout *minute*, as far as that is known."""
    return minute.rates <= {reported_rate(limit)}
