"""Format values for the terminal: durations, limits, keys, rules and changes."""

from __future__ import annotations

import time
from urllib.parse import unquote

from throttlekit import Limit
from throttlekit._core.storage_keys import digest_of, digest_of_key
from throttlekit.fleet.changes import Change
from throttlekit.fleet.list_now import SlowNow
from throttlekit.fleet.rules import Rule

__all__ = [
    "format_active_rule",
    "format_change",
    "format_date",
    "format_duration",
    "format_effect",
    "format_key",
    "format_limit",
    "format_pace",
    "format_rule",
    "format_slowed",
    "format_time",
    "printable",
    "shown_part",
]

_PARTS = {"set": "tier", "unset": "tier", "weight": "tenant"}
_ACTIVE = {"set": "set", "pause": "paused", "shadow": "shadow mode", "weight": "weight", "scale": "scaled"}
_RECORDED = {"set": "", "pause": "paused", "shadow": "shadow", "weight": "weight ", "scale": "scaled to "}
_PACES = (("s", 1), ("minute", 60), ("hour", 3600), ("day", 86_400))
_PACE_FROM = 2
"""The minimum number of a pace, such as 2/s. A pace is written in the smallest unit in which it reaches this number."""
_PERIODS = {1_000_000: "s", 60_000_000: "minute", 3_600_000_000: "hour", 86_400_000_000: "day", 604_800_000_000: "week"}


def printable(text: str) -> str:
    """Return *text*, such as a name or key, without control characters, which a terminal would execute."""
    return text if text.isprintable() else "".join(each if each.isprintable() else "?" for each in text)


def format_duration(seconds: float | None) -> str:
    """Format seconds for people: 0.4 s, 42 s, 3 m 12 s, 2 h 05 m, 3 d 4 h. "" for None."""
    if seconds is None:
        return ""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} m"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def format_time(seconds: float) -> str:
    """Format the time of day in UTC, which all tools use, so that people in different time zones can compare times."""
    return time.strftime("%H:%M:%S UTC", time.gmtime(seconds))


def format_date(seconds: float) -> str:
    """Format the date and the time of day in UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def format_slowed(slowed: SlowNow) -> str:
    """Format the slow-down of a limit, such as "to 12/minute by its adapt=, for another 42 s"."""
    by = {"adapt": "its adapt=", "headers": "the partner's response headers"}[slowed.by]
    return f"to {format_pace(slowed.rate)} by {by}, for another {format_duration(slowed.ends)}"


def format_pace(rate: float) -> str:
    """Format units per second for people: 12/s, 7.5/minute, 2/day."""
    unit, seconds = next((each for each in _PACES if rate * each[1] >= _PACE_FROM), _PACES[-1])
    return f"{rate * seconds:.{1 if rate * seconds < 9.95 else 0}f}".removesuffix(".0") + f"/{unit}"


def format_limit(limit: Limit) -> str:
    """Format the definition of *limit*, such as token-bucket 100/minute burst 20."""
    if limit.period_us:
        period = _PERIODS.get(limit.period_us) or f"{limit.period_us / 1_000_000:g} s"
        written = limit.rate_from(limit.amount, limit.period_us)
        rate = written if isinstance(written, str) else f"{limit.amount}/{period}"
    else:
        rate = str(limit.amount)
    options = [
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in limit.own_options().items()
        if value is not None
    ]
    tier = [] if limit.of_tier is None else [f"tier {limit.of_tier}"]
    return " ".join([limit.algorithm, rate, *options, *tier])


def format_key(key: str, part: str | None, *, clear: bool) -> str:
    """
    Format a key for the screen: as a digest, or the key itself if *clear*.

    Args:
        part: The part of the key that the limit's scope adds: the name of a queue or a job. It is always shown.
    """
    text = unquote(key) if clear else digest_of(key)
    return text if part is None else f"{unquote(part)} {text}".rstrip()


def shown_part(of: Rule | Change, *, clear: bool) -> str | None:
    """Return the tier or the key to which a rule or a change is restricted. A key is a digest unless *clear*."""
    is_tier = (of.what if isinstance(of, Rule) else of.verb) in ("set", "unset")
    return of.part if of.part is None or is_tier or clear else digest_of_key(of.part)


def format_active_rule(rule: Rule, now: float | None, *, clear: bool) -> str:
    """Format a rule in force as a note below its limit: its effect, who set it, and the time from *now* to its end."""
    shown = shown_part(rule, clear=clear)
    part = "" if shown is None else f" of {_PARTS.get(rule.what, 'key')} {shown}"
    if rule.is_pattern:
        part = f" of {rule.name}"
    value = _value_of(rule)
    to = f" to {value}" if value else ""
    left = f", for another {format_duration(rule.until_us / 1e6 - now)}" if rule.until_us and now else ""
    return f"{_ACTIVE[rule.what]}{part}{to} by {rule.by}{left}"


def format_rule(rule: Rule) -> str:
    """Format a rule in force as one line."""
    name = _format_name(rule.name, rule.part, rule.what)
    return printable(f"{name}: {_format_rule(rule)}, since {format_date(rule.since_us / 1_000_000)}, by {rule.by}")


def format_change(change: Change, *, when: bool = False) -> str:
    """Format a change as one line, with the old and the new value. With *when*, add the time and the operator."""
    name = _format_name(change.name, change.part, change.verb)
    begin = f"{format_date(change.at)}  {change.by}  " if when else ""
    return printable(f"{begin}{name}: {format_effect(change)}")


def format_effect(change: Change) -> str:
    """Format the effect of *change*: the old and the new value."""
    if change.verb == "reset":
        return f"reset: {change.forgotten} stored values deleted"
    if change.verb == "clear-waitlist":
        return f"clear-waitlist: {change.forgotten} waitlists emptied"
    return f"{_format_rule(change.before)} -> {_format_rule(change.after)}"


def _format_rule(rule: Rule | None) -> str:
    if rule is None:
        return "as declared"
    until = f" until {format_date(rule.until_us / 1_000_000)}" if rule.until_us else ""
    return f"{_RECORDED[rule.what]}{_value_of(rule)}{until}"


def _value_of(rule: Rule) -> str:
    """Format the rate, the weight or the factor that *rule* sets; "" for a pause, and for shadow mode."""
    if rule.what == "set":
        return f"{rule.rate}" if rule.burst is None else f"{rule.rate} burst {rule.burst}"
    number = rule.weight if rule.what == "weight" else rule.factor
    return "" if number is None else f"{number:g}"


def _format_name(name: str, part: str | None, what: str) -> str:
    return name if part is None else f"{name} ({_PARTS.get(what, 'key')} {part})"
