"""A rule of live control, and the form in which it is stored."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, TypeGuard, get_args

from throttlekit._core.algorithms.token_bucket import TokenBucket
from throttlekit._core.limit.rate import parse_rate, parse_window
from throttlekit._core.limit.share import is_weight
from throttlekit._core.limit.template import safe_repr
from throttlekit._core.number import LARGEST_EXACT
from throttlekit._core.pattern import matches
from throttlekit._core.storage_keys import fleet_name
from throttlekit.errors import ConfigurationError

__all__ = [
    "HISTORY",
    "RULES",
    "Rule",
    "Rules",
    "What",
    "as_text",
    "check_rate",
    "data_of",
    "field_of",
    "parse_rule",
    "plain",
    "round_factor",
    "rule_of",
    "rules_in_force",
    "rules_of",
    "thousandths",
]

RULES = fleet_name("control")
"""A hash of the rules in force."""
HISTORY = fleet_name("history")
"""A list of changes, the newest first."""

_VERSION = 1

_LEAST_FACTOR = 0.001

What: TypeAlias = Literal["set", "pause", "shadow", "weight", "scale"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """
    One rule that an operator set for a limit, in the whole fleet.

    Attributes:
        what: The kind. "set" changes the rate, "scale" reduces the rate, "pause" admits no job, "shadow" lets the limit
            decide but deny no job, and "weight" changes the weight of a tenant.
        name: The limit's name. For "scale", also a pattern for several limits, in which each `*` matches any text.
        part: The key that is paused, the tier whose rate is set, or the tenant; None for all of them.
        since_us, until_us: The begin and the end by the store's clock, in µs. If the end is 0, an operator ends it.
        by: The operator.
        rate: The rate of "set", as in a limit's declaration; for a concurrency limit, the amount.
        burst: The burst of "set"; None for the declared one.
        weight: The weight of "weight".
        factor: The factor of "scale", from 0.001 to 1.
    """

    what: What
    name: str
    part: str | None = None
    since_us: int = 0
    until_us: int = 0
    by: str = ""
    rate: str | int | None = None
    burst: int | None = None
    weight: float | None = None
    factor: float | None = None

    @property
    def is_pattern(self) -> bool:
        return self.what == "scale" and "*" in self.name

    def is_for(self, name: str) -> bool:
        """Whether the rule applies to the limit *name*."""
        return self.name == name or (self.is_pattern and matches(self.name, name))

    def over(self, now_us: int) -> bool:
        return 0 < self.until_us <= now_us

    def at(self, now_us: int) -> Rule:
        """Return the rule. If it begins after *now_us*, as the clock stepped back, let it begin now, at full length."""
        if self.since_us <= now_us:
            return self
        return replace(self, since_us=now_us, until_us=self.until_us and now_us + self.until_us - self.since_us)


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one name, by tier, by key or by tenant."""

    set: dict[str | None, Rule] = field(default_factory=dict[str | None, Rule])
    pause: dict[str | None, Rule] = field(default_factory=dict[str | None, Rule])
    shadow: dict[str | None, Rule] = field(default_factory=dict[str | None, Rule])
    weight: dict[str | None, Rule] = field(default_factory=dict[str | None, Rule])
    scale: dict[str | None, Rule] = field(default_factory=dict[str | None, Rule])


def field_of(what: str, name: str, part: str | None) -> str:
    """Return the hash field that stores a rule. A later rule with the same field replaces it."""
    return as_text([what, name, part])


def as_text(data: object) -> str:
    import json  # seldom needed, and a large part of the time of `import throttlekit`

    return json.dumps(data, separators=(",", ":"))


def data_of(text: bytes | str) -> Any:
    """Parse a text that `as_text` wrote. Return None for any other text."""
    import json

    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def plain(rule: Rule) -> dict[str, Any]:
    """Return *rule* as plain data, to store it under its field."""
    data = {"v": _VERSION, "since": rule.since_us, "until": rule.until_us, "by": rule.by}
    if rule.what == "weight":
        return {**data, "weight": rule.weight}
    if rule.what == "scale":
        return {**data, "factor": rule.factor}
    return {**data, "rate": rule.rate, "burst": rule.burst} if rule.what == "set" else data


def rule_of(field: Any, data: Any) -> Rule | None:
    """Return the rule of a stored *field* and its *data*; None if they are damaged, foreign, or of a later version."""
    try:
        what, name, part = field
        rule = Rule(
            what=what,
            name=name,
            part=part,
            since_us=data["since"],
            until_us=data["until"],
            by=data["by"],
            rate=data.get("rate"),
            burst=data.get("burst"),
            weight=data.get("weight"),
            factor=data.get("factor"),
        )
        version = data["v"]
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    is_valid = (
        version == _VERSION
        and all(isinstance(text, str) for text in (what, name, rule.by))
        and what in get_args(What)
        and isinstance(part, (str, type(None)))
        and all(type(at) is int and 0 <= at <= LARGEST_EXACT for at in (rule.since_us, rule.until_us))
        and type(rule.burst) in (int, type(None))
        and (type(rule.rate) in (int, str) if what == "set" else rule.rate is None)
        and (is_weight(rule.weight) and part is not None if what == "weight" else rule.weight is None)
        and (_is_factor(rule.factor) and part is None if what == "scale" else rule.factor is None)
    )
    return rule if is_valid else None


def parse_rule(field: bytes | str, value: bytes | str) -> Rule | None:
    """Parse a rule that is stored as *value* in *field* of the hash `RULES`. See `rule_of`."""
    return rule_of(data_of(field), data_of(value))


def rules_in_force(kept: Iterable[tuple[bytes, bytes]], now_us: int) -> tuple[Rule, ...]:
    """Parse the stored fields and values of `RULES`. Return the rules that are not over at *now_us*."""
    return tuple(rule for each in kept if (rule := parse_rule(*each)) is not None and not rule.over(now_us))


def rules_of(rules: Iterable[Rule]) -> dict[str, Rules]:
    """Group *rules* by the name of their limit."""
    named: dict[str, Rules] = {}
    for rule in rules:
        getattr(named.setdefault(rule.name, Rules()), rule.what)[rule.part] = rule
    return named


def _is_factor(factor: object) -> TypeGuard[float]:
    """Whether *factor* is a number from 0.001 to 1."""
    return not isinstance(factor, bool) and isinstance(factor, (int, float)) and _LEAST_FACTOR <= factor <= 1


def round_factor(factor: object) -> float:
    """
    Return *factor* rounded down to thousandths, the precision of a rule.

    Raises:
        ConfigurationError: *factor* is not a number from 0.001 to 1.
    """
    if not _is_factor(factor):
        raise ConfigurationError(f"the factor must be a number from {_LEAST_FACTOR} to 1, not {safe_repr(factor)}")
    return thousandths(factor) / 1000


def thousandths(factor: float) -> int:
    return int(factor * 1000 + 1e-6)  # 0.29 * 1000 is a little less than 290


def check_rate(name: str, rate: str, burst: int | None) -> None:
    """
    Reject a *rate* that no limit supports. Only the *name* of the limit is known.

    Raises:
        ConfigurationError: *rate* is not a rate, or no limit with that rate supports the *burst*.
    """
    try:
        parse_rate(rate)
    except ConfigurationError as error:
        try:
            parse_window(rate)  # a month or a year: only a FixedWindow supports them, and it has no burst
        except ConfigurationError:
            raise error from None
        if burst is not None:
            raise
    else:
        TokenBucket(name, rate, burst=burst)
