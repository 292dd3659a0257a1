"""A rule of live control: as a value, and as the store keeps it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, get_args

from throttlekit._core.algorithms.token_bucket import TokenBucket
from throttlekit._core.exact import LARGEST_EXACT
from throttlekit._core.limit.rate import parse_rate, parse_window
from throttlekit._core.limit.share import is_weight
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
    "plain",
    "rule_of",
    "rules_of",
]

RULES = fleet_name("control")
"""A hash of what is in force."""
HISTORY = fleet_name("history")
"""A list of what was changed, the newest first."""

_VERSION = 1

What: TypeAlias = Literal["set", "pause", "shadow", "weight"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """
    One thing that an operator set for a limit, in the whole fleet.

    Attributes:
        what: "set": another rate. "pause": no job passes. "shadow": it decides, and denies no job. "weight": a
            tenant has another weight.
        name: The limit's name.
        part: The key that is paused, the tier whose rate is set, or the tenant; None: all there is.
        since_us, until_us: By the store's clock, µs. 0: until it is ended.
        by: Who said so.
        rate: Of "set": as a limit takes it; of a concurrency limit, the amount.
        burst: Of "set"; None: as it was declared.
        weight: Of "weight".
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

    def over(self, now_us: int) -> bool:
        return 0 < self.until_us <= now_us

    def at(self, now_us: int) -> Rule:
        """The rule as it counts at *now_us*: one that a later clock began begins now, at its full length."""
        if self.since_us <= now_us:
            return self
        return replace(self, since_us=now_us, until_us=self.until_us and now_us + self.until_us - self.since_us)


@dataclass(frozen=True, slots=True)
class Rules:
    """Those of one limit: by tier, by key, by tenant."""

    set: dict[str | None, Rule] = field(default_factory=dict[str | None, Rule])
    pause: dict[str | None, Rule] = field(default_factory=dict[str | None, Rule])
    shadow: dict[str | None, Rule] = field(default_factory=dict[str | None, Rule])
    weight: dict[str | None, Rule] = field(default_factory=dict[str | None, Rule])


def field_of(what: str, name: str, part: str | None) -> str:
    """What a rule is kept under: a later one of the same field takes its place."""
    return as_text([what, name, part])


def as_text(data: object) -> str:
    import json  # a good part of what `import throttlekit` would cost, and seldom needed

    return json.dumps(data, separators=(",", ":"))


def data_of(text: bytes | str) -> Any:
    """What `as_text` wrote; None for anything else."""
    import json

    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def plain(rule: Rule) -> dict[str, Any]:
    """*rule* as plain data, as it is kept under its field."""
    data = {"v": _VERSION, "since": rule.since_us, "until": rule.until_us, "by": rule.by}
    if rule.what == "weight":
        return {**data, "weight": rule.weight}
    return {**data, "rate": rule.rate, "burst": rule.burst} if rule.what == "set" else data


def rule_of(field: Any, data: Any) -> Rule | None:
    """The rule that `plain` made, of its *field* read; None for anything else: torn, foreign, or of a later version."""
    try:
        what, name, part = field
        version, rate, burst = data["v"], data.get("rate"), data.get("burst")
        since_us, until_us, by, weight = data["since"], data["until"], data["by"], data.get("weight")
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    right = (
        version == _VERSION
        and all(isinstance(text, str) for text in (what, name, by))
        and what in get_args(What)
        and isinstance(part, (str, type(None)))
        and all(type(at) is int and 0 <= at <= LARGEST_EXACT for at in (since_us, until_us))
        and type(burst) in (int, type(None))
        and (type(rate) in (int, str) if what == "set" else rate is None)
        and (is_weight(weight) and part is not None if what == "weight" else weight is None)
    )
    if not right:
        return None
    return Rule(
        what=what, name=name, part=part, since_us=since_us, until_us=until_us, by=by, rate=rate, burst=burst,
        weight=weight,
    )  # fmt: skip


def rules_of(rules: Iterable[Rule]) -> dict[str, Rules]:
    """*rules* by the name of their limit."""
    named: dict[str, Rules] = {}
    for rule in rules:
        getattr(named.setdefault(rule.name, Rules()), rule.what)[rule.part] = rule
    return named


def check_rate(name: str, rate: str, burst: int | None) -> None:
    """
    Refuse a *rate* that no limit takes, for a limit of which only the *name* is known.

    Raises:
        ConfigurationError: It is not a rate, or no limit of that rate takes the *burst*.
    """
    try:
        parse_rate(rate)
    except ConfigurationError as error:
        try:
            parse_window(rate)  # a month or a year: only a FixedWindow takes them, and it has no burst
        except ConfigurationError:
            raise error from None
        if burst is not None:
            raise
    else:
        TokenBucket(name, rate, burst=burst)
