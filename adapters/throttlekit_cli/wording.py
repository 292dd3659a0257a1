"""Changes and rules, as a line and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime

from throttlekit.fleet.control import Change
from throttlekit.fleet.rules import Rule
from throttlekit_cli.top.words import plainly

__all__ = ["data", "rule_told", "told"]


def data(what: Sequence[Change] | Sequence[Rule]) -> str:
    """As a list of objects. Times of a rule in µs, of a change in seconds, since 1970."""
    return json.dumps([asdict(each) for each in what], indent=2)


def told(change: Change, *, when: bool = False) -> str:
    """A change as one line."""
    name = _named(change.name, change.part, "tier" if change.verb in ("set", "unset") else "key")
    if change.verb == "reset":
        what = f"reset: {change.forgotten} stored values forgotten"
    else:
        what = f"{_rule(change.before)} -> {_rule(change.after)}"
    begin = f"{_at(change.at)}  {change.by}  " if when else ""
    return plainly(f"{begin}{name}: {what}")


def rule_told(rule: Rule) -> str:
    """What is in force, as one line."""
    name = _named(rule.name, rule.part, "tier" if rule.what == "set" else "key")
    return plainly(f"{name}: {_rule(rule)}, since {_at(rule.since_us / 1_000_000)}, by {rule.by}")


def _rule(rule: Rule | None) -> str:
    if rule is None:
        return "as declared"
    until = f" until {_at(rule.until_us / 1_000_000)}" if rule.until_us else ""
    if rule.what == "pause":
        return f"paused{until}"
    if rule.what == "shadow":
        return f"shadow{until}"
    burst = f" burst {rule.burst}" if rule.burst is not None else ""
    return f"{rule.rate}{burst}{until}"


def _named(name: str, part: str | None, what: str) -> str:
    return name if part is None else f"{name} ({what} {part})"


def _at(seconds: float) -> str:
    """By the clock of whoever reads it."""
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
