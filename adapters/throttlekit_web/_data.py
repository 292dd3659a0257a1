"""The content of the page as plain data: limits, keys, jobs, rules and changes. Durations are in seconds."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from throttlekit._core.storage_keys import bucket_name, parts_of
from throttlekit.fleet.browse import Holder, Tenant, keys_by_limit
from throttlekit.fleet.changes import Change
from throttlekit.fleet.definitions import has_keys, has_share, reported_within, share_of_minute, why_ignored
from throttlekit.fleet.downstream import total
from throttlekit.fleet.history import Bar, Range
from throttlekit.fleet.list_now import SlowNow
from throttlekit.fleet.outlook import outlook_of
from throttlekit.fleet.rules import Rule, field_of
from throttlekit.fleet.snapshot import Fleet, Key, Known
from throttlekit.fleet.waiting_job import Found
from throttlekit_cli.formatting import format_key, format_limit, format_pace
from throttlekit_cli.top.explain import job_data as explained

__all__ = [
    "ORDERS",
    "bars_data",
    "change_data",
    "fleet_data",
    "holder_data",
    "job_data",
    "key_data",
    "limit_data",
    "limits_data",
    "rule_data",
    "rule_id",
    "shown_part",
    "tenants_data",
]

_Data = dict[str, Any]
_MAX_TENANTS = 30

ORDERS: Mapping[str, Callable[[_Data], Any]] = {
    "wait": lambda row: (-max(row["starts"] or 0, row["paused"] or 0), -row["wait"], -(row["denials"] or 0)),
    "use": lambda row: (-(row["used"] or 0) / (row["capacity"] or 1), -(row["units"] or 0)),
    "denied": lambda row: -(row["denials"] or 0),
    "name": lambda row: 0,
}
"""The sort key of each order. Limits without decisions are always last."""


def fleet_data(fleet: Fleet) -> _Data:
    """The store's clock, and the processes that were reported."""
    kinds = [each.framework for each in fleet.processes]
    return {
        "now": fleet.now,
        "latency": fleet.latency,
        "processes": len(kinds),
        "frameworks": {kind: kinds.count(kind) for kind in sorted(set(kinds)) if kind != "-"},
    }


def limits_data(fleet: Fleet, *, order: str, show_keys: bool) -> list[_Data]:
    """A row for each definition that is in use, the most pressing first."""
    in_use = {each.id for each in reported_within(fleet.limits)}
    keys = keys_by_limit(fleet)
    rows = [
        limit_data(
            known,
            keys.get(known.id, []),
            _rules_for(known, fleet.rules),
            fleet.partner_429s.get(known.id, {}),
            show_keys=show_keys,
        )
        for known in fleet.limits
        if known.id in in_use or known.minute.allowed or known.minute.denials
    ]
    return sorted(rows, key=lambda row: (row["idle"], ORDERS[order](row), row["name"], row["id"]))


def limit_data(
    known: Known, keys: Sequence[Key], rules: Iterable[Rule], partner_429s: Mapping[int, int], *, show_keys: bool
) -> _Data:
    """
    One limit: its decisions of the last minute, and the current counts of its most pressing keys. If it has several
    keys, the use is that of the fullest key, and the waiting jobs are the sum.

    Args:
        partner_429s: The limit's 429s of the last 15 minutes, by step of 20 s.
    """
    limit, minute = known.limit, known.minute
    clear = show_keys or limit.show_key
    keyed = has_keys(known)
    fullest = max(keys, key=lambda key: (key.used / (key.capacity or 1), key.waiting), default=None)
    waiting, units = sum(key.waiting for key in keys), sum(key.waiting_units for key in keys)
    share = None if keyed else share_of_minute(limit, minute)
    in_use = minute.allowed or minute.denials or waiting or any(key.used or key.paused for key in keys)
    return {
        "id": known.id,
        "name": limit.name,
        "definition": format_limit(limit),
        "keyed": keyed,
        "digests": (known.keyed or bool(known.shared)) and not clear,
        "slots": not limit.period_us,
        "comparable": has_share(limit) and not keyed,
        "used": None if fullest is None else fullest.used,
        "capacity": limit.capacity if fullest is None else fullest.capacity,
        "waiting": units,
        "jobs": waiting,
        "starts": _most(key.last_starts for key in keys),
        "paused": _most(key.paused for key in keys),
        "slowed": _slowed(min((key.slowed for key in keys if key.slowed is not None), default=None)),
        "mean_hold": None if fullest is None else fullest.mean_hold,
        "oldest_hold": _most(key.oldest_hold for key in keys),
        "allowed": minute.allowed if minute.is_known else None,
        "units": minute.used if minute.is_known else None,
        "share": share,
        "denied": dict(minute.denied or {}),
        "denials": minute.denials if minute.is_known else None,
        "downstream_429": total(partner_429s),
        "wait": max([minute.longest_wait, *(key.oldest_wait or 0.0 for key in keys)]),
        "idle": not in_use,
        "outlook": None if (outlook := outlook_of(known, keys)) is None else {**asdict(outlook), "text": str(outlook)},
        "rules": [rule_data(rule, [known], show_keys=clear) for rule in rules],
    }


def bars_data(bars: Sequence[Bar], of: Range, *, comparable: bool) -> list[list[float | None]]:
    """
    The bars of a chart, each as a row: start time, units, denied, paused, longest wait, waiting jobs, the units that
    the rate allowed, arrivals, grants, and 429s. None: not known. The rate is also None if it changed within the bar.

    Args:
        comparable: Whether the units of a minute can be compared with the rate.
    """
    return [
        [
            bar.at, bar.units, bar.denied, bar.paused, bar.longest_wait, bar.waiting,
            bar.rate / 1000 * of.bar_s / 60 if comparable and bar.rate else None,
            bar.arrived, bar.granted, bar.partner_429s,
        ]
        for bar in bars
    ]  # fmt: skip


def key_data(key: Key, *, show_keys: bool) -> _Data:
    return {
        "key": format_key(key.key, key.part, clear=show_keys or key.limit.show_key),
        "used": key.used,
        "capacity": key.capacity,
        "waiting": key.waiting_units,
        "jobs": key.waiting,
        "starts": key.last_starts,
        "paused": key.paused,
        "slowed": _slowed(key.slowed),
        "mean_hold": key.mean_hold,
        "oldest_hold": key.oldest_hold,
        "units": key.minute.units if key.minute.is_known else None,
        "denials": key.minute.denials if key.minute.is_known else None,
    }


def holder_data(holder: Holder, now: float, *, show_keys: bool) -> _Data:
    held = None if holder.since is None else max(0.0, now - holder.since)
    workflow = f"workflow {format_key(holder.workflow, None, clear=show_keys)}" if holder.workflow else ""
    return {"job": workflow or holder.job_id, "held": held, "slots": holder.slots}


def tenants_data(tenants: Sequence[Tenant], *, show_keys: bool) -> list[_Data]:
    """The tenants of a shared limit with the most units in the last minute, and the one with the longest wait."""
    units = sum(each.units for each in tenants)
    longest = sorted(tenants, key=lambda each: -each.longest_wait)[:1]
    shown = [*tenants[:_MAX_TENANTS], *(each for each in longest if each not in tenants[:_MAX_TENANTS])]
    return [
        {
            "tenant": format_key(each.name, None, clear=show_keys),
            "weight": each.weight,
            "units": each.units,
            "part": each.units / units if units else 0.0,
            "wait": each.longest_wait,
        }
        for each in shown
    ]


def rule_id(rule: Rule) -> str:
    """An id of *rule* for URLs and forms, which does not reveal its key."""
    return hashlib.blake2b(field_of(rule.what, rule.name, rule.part).encode(), digest_size=8).hexdigest()


def rule_data(rule: Rule, known: Iterable[Known] = (), *, show_keys: bool) -> _Data:
    """
    Args:
        known: The definitions of its limit.
    """
    return {
        "id": rule_id(rule),
        "what": rule.what,
        "name": rule.name,
        "part": shown_part(rule.part, is_key=rule.what != "set", show_keys=show_keys),
        "rate": rule.rate,
        "burst": rule.burst,
        "weight": rule.weight,
        "factor": rule.factor,
        "since": rule.since_us / 1e6,
        "until": rule.until_us / 1e6 or None,
        "by": rule.by,
        "refused": _refused(rule, [each for each in known if rule.is_for(each.limit.name)]),
    }


def change_data(change: Change, *, show_keys: bool) -> _Data:
    is_key = change.verb not in ("set", "unset")
    return {
        "at": change.at,
        "by": change.by,
        "verb": change.verb,
        "name": change.name,
        "part": shown_part(change.part, is_key=is_key, show_keys=show_keys),
        "before": None if change.before is None else rule_data(change.before, show_keys=show_keys),
        "after": None if change.after is None else rule_data(change.after, show_keys=show_keys),
        "forgotten": change.forgotten,
    }


def job_data(job_id: str, found: Found, *, show_keys: bool) -> _Data:
    """Why a job waits, as in `throttlekit explain --json`, but with slow-downs and rules in the format of this page."""
    data, key = explained(job_id, found, show_keys=show_keys), found.key
    if key is None:
        return data
    clear = show_keys or key.limit.show_key
    rules = [rule_data(rule, show_keys=clear) for rule in found.rules]
    return {**data, "id": key.id, "slowed": _slowed(key.slowed), "rules": rules}


def shown_part(part: str | None, *, is_key: bool, show_keys: bool) -> str | None:
    """The part of a limit to which a rule applies: a tier or a key. A key is shown as a digest, as in its own row."""
    if part is None or not is_key or show_keys:
        return part
    stored = parts_of(bucket_name("", part, "0"))
    return None if stored is None else format_key(stored[1], None, clear=False)


def _rules_for(known: Known, rules: Iterable[Rule]) -> list[Rule]:
    """The rules for the limit's name, without the rates of its other tiers."""
    return [
        rule
        for rule in rules
        if rule.is_for(known.limit.name)
        and (rule.what != "set" or None in (rule.part, known.limit.of_tier) or rule.part == known.limit.of_tier)
    ]


def _refused(rule: Rule, known: Sequence[Known]) -> str | None:
    """Why no worker applies the rule. None: workers apply it."""
    reasons = [why_ignored(rule, each) for each in known]
    return None if not reasons or None in reasons else reasons[0]


def _slowed(slowed: SlowNow | None) -> _Data | None:
    """The reduced rate in words, its cause, and its remaining time."""
    return None if slowed is None else {"to": format_pace(slowed.rate), "by": slowed.by, "ends": slowed.ends}


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
