"""
The changes that the page can make.

The first response to a request only describes the effect. The change is made when the operator confirms this text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from throttlekit import ConfigurationError, Control
from throttlekit._core.limit.change import change_rate, scale_rate
from throttlekit.fleet.changes import Change
from throttlekit.fleet.definitions import definition_of, why_ignored
from throttlekit.fleet.rules import Rule, round_factor, thousandths
from throttlekit.fleet.snapshot import FleetStore, Known
from throttlekit_cli.formatting import format_duration, format_limit, shown_part
from throttlekit_cli.state import rule_id
from throttlekit_web._data import require_known
from throttlekit_web._http import Refused

__all__ = ["Plan", "plan_change"]

_MAX_FOR_S = 366 * 86_400
_COUNTS_ON = "Units that were used still count, and waiting jobs keep their order: no burst follows."
_SLOTS_CONTINUE = "Jobs that hold slots continue."


@dataclass(frozen=True, slots=True)
class Plan:
    """
    One change that was requested, but is not made yet.

    Attributes:
        effect: A description of the change's effect on the fleet.
        by: The operator, for the history.
        run: The function that makes the change, and returns the changes that were made.
    """

    effect: str
    by: str
    run: Callable[[Control], Sequence[Change | str]]


def plan_change(store: FleetStore, control: Control, form: Mapping[str, Any], *, show_keys: bool) -> Plan:
    """
    Check the change that *form* requests, so that the operator confirms only a change that can be made.

    Raises:
        Refused: A field is missing or wrong, or there is no such limit or rule.
        StoreUnavailable: The store did not answer.
    """
    by = _text_in(form, "by", "your name, for the history")
    verb = form.get("verb")
    if verb == "end":
        return _end(control, _text_in(form, "rule", "the rule to end"), by, show_keys=show_keys)
    known = require_known(definition_of(store, _text_in(form, "limit", "the id of a limit")))
    limit = known.limit
    key = form.get("key") or None
    if key is not None and not isinstance(key, str):
        raise Refused(400, "key must be text")
    duration = _seconds(form.get("for"))
    how_long = "until it is ended" if duration is None else f"for {format_duration(duration)}"
    whose = f"limit {limit.name!r}" if key is None else f"key {key!r} of limit {limit.name!r}"
    name = limit.name
    if verb == "pause":
        _check(Rule(what="pause", name=name, part=key), known)
        effect = (
            f"Pause {whose} in the whole fleet, {how_long}. None of its jobs starts in this time. "
            "They wait, use no retry and keep their positions."
        )
        return Plan(effect, by, lambda control: control.pause(name, key=key, duration=duration))
    if verb == "reset":
        effect = (
            f"Delete the counts of {whose}: full buckets, empty waitlists, no held slots, no pause after a 429. "
            "A full burst can start at once, in addition to the running jobs."
        )
        return Plan(effect, by, lambda control: control.reset(name, key=key))
    if key is not None:
        raise Refused(400, f"{verb} is for a whole limit: leave the key out")
    if verb == "shadow":
        effect = (
            f"Put {whose} into shadow mode in the whole fleet, {how_long}. It denies no job, so every waiting job "
            "can start at once."
        )
        return Plan(effect, by, lambda control: control.shadow(name, duration=duration))
    if verb == "set":
        return _set(known, form, duration, how_long, by)
    if verb == "scale":
        return _scale(known, form, duration, how_long, by)
    raise Refused(400, "verb must be pause, set, scale, shadow, reset, end or release")


def _set(known: Known, form: Mapping[str, Any], duration: float | None, how_long: str, by: str) -> Plan:
    rate, burst = _text_in(form, "rate", "a rate like 50/s, or a number of slots").strip(), form.get("burst")
    if burst is not None and (type(burst) is not int or burst < 1):
        raise Refused(400, "burst must be a whole number of at least 1")
    limit, name, tier = known.limit, known.limit.name, known.limit.of_tier
    amount = int(rate) if rate.isascii() and rate.isdigit() else rate
    _check(Rule(what="set", name=name, part=tier, rate=amount, burst=burst), known)
    new = change_rate(limit, amount, burst)
    whose = f"limit {name!r}" if tier is None else f"tier {tier!r} of limit {name!r}"
    if not limit.period_us:
        then = _SLOTS_CONTINUE
    elif new.fingerprint == (limit.declared or limit).fingerprint:
        then = _COUNTS_ON
    else:
        then = "It has a new count: a full burst can start at once, and waiting jobs join a new waitlist."
    change = f"from {format_limit(limit)} to {format_limit(new)}"
    effect = f"Change {whose} in the whole fleet, {how_long}: {change}. {then}"
    return Plan(effect, by, lambda control: control.set(name, rate, burst=burst, tier=tier, duration=duration))


def _scale(known: Known, form: Mapping[str, Any], duration: float | None, how_long: str, by: str) -> Plan:
    try:
        factor = round_factor(form.get("factor"))
    except ConfigurationError as error:
        raise Refused(400, str(error)) from error
    limit, name = known.limit, known.limit.name
    if "*" in name:
        raise Refused(400, "a name with a * is a pattern for several limits: use the command throttlekit scale")
    _check(Rule(what="scale", name=name, factor=factor), known)
    new = scale_rate(limit, thousandths(factor))
    effect = (
        f"Scale limit {name!r} to {factor:g} of its rate in the whole fleet, for all its keys and tiers, {how_long}: "
        f"from {format_limit(limit)} to {format_limit(new)}. "
    ) + (_COUNTS_ON if limit.period_us else _SLOTS_CONTINUE)
    return Plan(effect, by, lambda control: control.scale(name, factor, duration=duration))


def _end(control: Control, id: str, by: str, *, show_keys: bool) -> Plan:
    rule = next((rule for rule in control.rules() if rule_id(rule) == id), None)
    if rule is None:
        raise Refused(404, "this rule is no longer in force")
    name, part, shown = rule.name, rule.part, shown_part(rule, clear=show_keys)
    ends: dict[str, Callable[[Control], Sequence[Change]]] = {
        "pause": lambda control: control.resume(name, key=part),
        "set": lambda control: control.unset(name, tier=part),
        "shadow": lambda control: control.enforce(name),
        "weight": lambda control: control.weight(name, part or "", None),
        "scale": lambda control: control.scale(name, None),
    }
    return Plan(_end_of(rule, shown), by, ends[rule.what])


def _end_of(rule: Rule, part: str | None) -> str:
    if rule.what == "pause":
        whose = f"every pause of limit {rule.name!r}" if part is None else f"the pause of key {part!r} of {rule.name!r}"
        return (
            f"End {whose} in the whole fleet, set by {rule.by}. Its jobs start again, up to a full burst at once. "
            "A pause after a 429 does not end."
        )
    if rule.what == "shadow":
        return f"End the shadow mode of limit {rule.name!r} in the whole fleet, set by {rule.by}. It denies jobs again."
    if rule.what == "weight":
        return (
            f"Restore the declared weight of tenant {part!r} of limit {rule.name!r}, instead of {rule.weight:g}, set "
            f"by {rule.by}. Waiting jobs keep their positions."
        )
    if rule.what == "scale":
        whose = f"every limit that {rule.name!r} matches" if rule.is_pattern else f"limit {rule.name!r}"
        return f"Restore the full rate of {whose} in the whole fleet, instead of {rule.factor:g}, set by {rule.by}."
    whose = f"limit {rule.name!r}" if part is None else f"tier {part!r} of limit {rule.name!r}"
    return f"Restore the declared rate of {whose} in the whole fleet, instead of {rule.rate}, set by {rule.by}."


def _check(rule: Rule, known: Known) -> None:
    """
    Check that workers would apply *rule*.

    Raises:
        Refused: No worker would apply *rule*.
    """
    if reason := why_ignored(rule, known):
        raise Refused(400, reason)


def _text_in(form: Mapping[str, Any], name: str, what: str) -> str:
    """
    Return the text *name* of *form*. *what* describes the text in an error message.

    Raises:
        Refused: *form* has no text with this name, or the text is too long.
    """
    text = form.get(name)
    if not isinstance(text, str) or not text.strip() or len(text) > 300:
        raise Refused(400, f"{name} must be {what}, at most 300 characters")
    return text


def _seconds(duration: object) -> float | None:
    if duration is None:
        return None
    if isinstance(duration, bool) or not isinstance(duration, (int, float)) or not 1 <= duration <= _MAX_FOR_S:
        raise Refused(400, "for must be a number of seconds from 1 to a year, or null: until it is ended")
    return float(duration)
