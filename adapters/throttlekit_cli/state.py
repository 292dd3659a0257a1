"""
The state of the fleet as plain data. `top`, `explain`, the web page and their JSON all use these classes.

Rule 1: each value has one name, and the name of a number ends with its unit. docs/top.md explains each name.
Rule 2: durations are in seconds, points in time are seconds since 1970 by the store's clock. None means that a value is
unknown, or does not apply.
Rule 3: keys and tenants are digests unless the operator or the limit shows them.

`dataclasses.asdict` turns each of these values into JSON.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from throttlekit.fleet.browse import Tenant, keys_by_limit
from throttlekit.fleet.changes import Change
from throttlekit.fleet.definitions import (
    has_share,
    is_of_another_tier,
    share_of_minute,
    why_ignored,
    without_replaced,
)
from throttlekit.fleet.last_minute import Minute
from throttlekit.fleet.list_now import SlowNow
from throttlekit.fleet.outlook import Outlook, outlook_of
from throttlekit.fleet.rules import Rule, field_of
from throttlekit.fleet.snapshot import Fleet, Key, Known, Process
from throttlekit.fleet.waiting_job import Found
from throttlekit_cli.formatting import (
    format_active_rule,
    format_effect,
    format_key,
    format_limit,
    format_slowed,
    shown_part,
)

__all__ = [
    "ORDERS",
    "ChangeState",
    "Counts",
    "FleetState",
    "JobState",
    "KeyState",
    "LastMinute",
    "LimitState",
    "RuleState",
    "Slowed",
    "TenantState",
    "change_state",
    "fleet_state",
    "job_state",
    "key_state",
    "rule_id",
    "rule_state",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LastMinute:
    """The decisions of the last minute."""

    allowed: int | None
    units: int
    rate_used_ratio: float | None
    denied: dict[str, int]
    denials: int
    longest_wait_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowed:
    """The slow-down of a key, as numbers and as text."""

    units_per_second: float
    by: str
    ends_in_seconds: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The counts of one key or of a whole limit. `last_minute` is None if no process reported in that minute."""

    used: int | None = None
    capacity: int | None = None
    waiting_jobs: int | None = None
    waiting_units: int | None = None
    owners: int | None = None
    oldest_wait_seconds: float | None = None
    last_starts_in_seconds: float | None = None
    paused_for_seconds: float | None = None
    slowed: Slowed | None = None
    mean_hold_seconds: float | None = None
    last_slot_ago_seconds: float | None = None
    oldest_hold_seconds: float | None = None
    last_minute: LastMinute | None = None

    @property
    def use(self) -> float | None:
        """
        The used share of the rate in the last minute. It is 1 if all units were used that the rate allows, and may be
        higher. If the units of a minute cannot be compared with the rate, as for slots, it is the share in use now.
        """
        if self.last_minute is not None and self.last_minute.rate_used_ratio is not None:
            return self.last_minute.rate_used_ratio
        return None if self.used is None else self.used / (self.capacity or 1)

    @property
    def denials(self) -> int:
        return self.last_minute.denials if self.last_minute is not None else 0

    @property
    def units(self) -> int:
        return self.last_minute.units if self.last_minute is not None else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyState(Counts):
    """One key of a limit. A limit without keys has one key, whose name is ""."""

    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleState:
    """A rule of live control, with the fields of `Rule`. `limit` is the name of the rule's limit, or a pattern."""

    id: str
    what: str
    limit: str
    part: str | None
    rate: str | int | None
    burst: int | None
    weight: float | None
    factor: float | None
    since: float
    until: float | None
    by: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantState:
    """The units and the longest wait of a tenant of a shared limit in the last minute."""

    tenant: str
    weight: float
    units: int
    units_ratio: float
    longest_wait_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitState(Counts):
    """
    One definition in use, with its most pressing keys. `used` and `capacity` are those of the fullest key,
    `waiting_jobs`, `waiting_units` and `owners` are sums over all keys, and each duration is the longest.
    """

    limit: str
    id: str
    definition: str
    has_keys: bool
    has_digests: bool
    is_concurrency: bool
    is_comparable: bool
    is_idle: bool
    downstream_429: int
    outlook: Outlook | None
    rules: tuple[RuleState, ...]
    warnings: tuple[str, ...]
    tenants: tuple[TenantState, ...]
    keys: tuple[KeyState, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetState:
    """The limits of the whole fleet."""

    now: float
    store_latency_seconds: float | None
    frameworks: dict[str, int]
    processes: tuple[Process, ...]
    limits: tuple[LimitState, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState(Counts):
    """The reason why a job waits, and the counts of its key. If no worker reports its limit, only `limit` is set."""

    job: str
    now: float
    known: bool
    state: str
    searched_all: bool
    limit: str | None = None
    id: str | None = None
    definition: str | None = None
    key: str | None = None
    reason: str | None = None
    since: float | None = None
    deferrals: int | None = None
    decided_at: float | None = None
    starts_at: float | None = None
    jobs_before: int | None = None
    owner: str | None = None
    owner_answers: bool | None = None
    rules: tuple[RuleState, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeState:
    """A change by an operator, with the fields of `Change`. `text` describes the change in words."""

    at: float
    by: str
    verb: str
    limit: str
    part: str | None
    before: RuleState | None
    after: RuleState | None
    forgotten: int
    text: str


ORDERS: Mapping[str, Callable[[Counts], Any]] = {
    "wait": lambda row: (
        -max(row.last_starts_in_seconds or 0, row.paused_for_seconds or 0),
        -(row.oldest_wait_seconds or 0),
        -row.denials,
    ),
    "use": lambda row: (-(row.use or 0), -row.units),
    "name": lambda row: 0,
    "denied": lambda row: -row.denials,
}
"""The sort key of limits and keys, for each order. Idle limits are last."""


def fleet_state(
    fleet: Fleet,
    *,
    order: str,
    show_keys: bool,
    tenants: Mapping[str, Sequence[Tenant]] | None = None,
    only: str | None = None,
) -> FleetState:
    """
    Return the limits in use, each with its most pressing keys, sorted by *order*, one of `ORDERS`.

    Args:
        only: The id of a limit. Only this limit is returned, also if it is not in use.
    """
    keys, in_use = keys_by_limit(fleet), _in_use(fleet.limits)
    limits = (
        _limit_state(
            fleet,
            known,
            keys.get(known.id, ()),
            in_use,
            show_keys=show_keys,
            order=order,
            tenants=(tenants or {}).get(known.id, ()),
        )
        for known in (in_use if only is None else fleet.limits)
        if only in (None, known.id)
    )

    def pressing(row: LimitState) -> Any:
        return row.is_idle, min(map(ORDERS[order], (row, *row.keys))), row.limit, row.id

    kinds = [each.framework for each in fleet.processes]
    return FleetState(
        now=fleet.now,
        store_latency_seconds=fleet.latency,
        frameworks={kind: kinds.count(kind) for kind in sorted(set(kinds))},
        processes=fleet.processes,
        limits=tuple(sorted(limits, key=pressing)),
    )


def _limit_state(
    fleet: Fleet,
    known: Known,
    keys: Sequence[Key],
    in_use: Sequence[Known],
    *,
    show_keys: bool,
    order: str,
    tenants: Sequence[Tenant],
) -> LimitState:
    limit, keyed, minute = known.limit, known.has_keys, known.minute
    clear = show_keys or limit.show_key
    own = [rule for rule in fleet.rules if rule.is_for(limit.name) and not is_of_another_tier(rule, known)]
    shown = tuple(rule_state(rule, fleet.now, clear=clear) for rule in own)
    rows = tuple(
        sorted((key_state(key, show_keys=show_keys) for key in keys), key=lambda row: (ORDERS[order](row), row.key))
    )
    fullest = max(
        rows, key=lambda row: ((row.used or 0) / (row.capacity or 1), row.waiting_jobs or 0), default=Counts()
    )
    waiting = sum(key.waiting for key in keys)
    is_busy = minute.allowed or minute.denials or waiting or any(key.used or key.paused for key in keys)
    units = sum(each.units for each in tenants)
    return LimitState(
        limit=limit.name,
        id=known.id,
        definition=format_limit(limit),
        has_keys=keyed,
        has_digests=(known.keyed or bool(known.shared)) and not clear,
        is_concurrency=not limit.period_us,
        is_comparable=has_share(limit) and not keyed,
        is_idle=not is_busy,
        used=fullest.used,
        capacity=limit.capacity if fullest.capacity is None else fullest.capacity,
        waiting_jobs=waiting,
        waiting_units=sum(key.waiting_units for key in keys),
        owners=sum(key.owners for key in keys),
        oldest_wait_seconds=max([minute.longest_wait, *(row.oldest_wait_seconds or 0.0 for row in rows)]),
        last_starts_in_seconds=_most(key.last_starts for key in keys),
        paused_for_seconds=_most(key.paused for key in keys),
        slowed=min((row.slowed for row in rows if row.slowed), key=lambda each: each.units_per_second, default=None),
        mean_hold_seconds=fullest.mean_hold_seconds,
        last_slot_ago_seconds=fullest.last_slot_ago_seconds,
        oldest_hold_seconds=_most(key.oldest_hold for key in keys),
        last_minute=_last_minute(minute, None if keyed else share_of_minute(limit, minute)),
        downstream_429=fleet.partner_429s.get(known.id, 0),
        outlook=outlook_of(known, keys),
        rules=shown,
        warnings=tuple(_warnings(known, in_use, list(zip(own, shown, strict=True)))),
        tenants=tuple(
            TenantState(
                tenant=format_key(each.name, None, clear=clear),
                weight=each.weight,
                units=each.units,
                units_ratio=each.units / units if units else 0.0,
                longest_wait_seconds=each.longest_wait,
            )
            for each in tenants
        ),
        keys=rows,
    )


def key_state(key: Key, *, show_keys: bool) -> KeyState:
    shown = format_key(key.key, key.part, clear=show_keys or key.limit.show_key)
    return KeyState(key=shown, **_counts(key))


def job_state(job_id: str, found: Found, *, show_keys: bool) -> JobState:
    job, key = found.job, found.key
    about: dict[str, Any] = {}
    if job is not None:
        about = {
            "limit": job.limit or None,
            "reason": job.reason,
            "since": job.since or None,
            "deferrals": job.deferrals,
            "decided_at": job.decided or None,
            "starts_at": None if job.owner is None else job.due or None,
            "jobs_before": job.before,
            "owner": job.owner,
            "owner_answers": job.owner_answers,
        }
    if key is not None:
        clear = show_keys or key.limit.show_key
        about |= _counts(key)
        about |= {
            "id": key.id,
            "definition": format_limit(key.limit),
            "key": format_key(key.key, key.part, clear=clear),
            "rules": tuple(rule_state(rule, found.now, clear=clear) for rule in found.rules),
        }
    return JobState(
        job=job_id,
        now=found.now,
        known=job is not None,
        state="unknown" if job is None else job.state,
        searched_all=found.searched_all,
        **about,
    )


def rule_id(rule: Rule) -> str:
    """Return an id of *rule* for URLs and forms, which does not show the rule's key."""
    return hashlib.blake2b(field_of(rule.what, rule.name, rule.part).encode(), digest_size=8).hexdigest()


def rule_state(rule: Rule, now: float | None = None, *, clear: bool) -> RuleState:
    """
    Return the state of *rule*.

    Args:
        now: The present time. If given, the text contains the time until the rule ends.
    """
    return RuleState(
        id=rule_id(rule),
        what=rule.what,
        limit=rule.name,
        part=shown_part(rule, clear=clear),
        rate=rule.rate,
        burst=rule.burst,
        weight=rule.weight,
        factor=rule.factor,
        since=rule.since_us / 1e6,
        until=rule.until_us / 1e6 or None,
        by=rule.by,
        text=format_active_rule(rule, now, clear=clear),
    )


def change_state(change: Change, *, clear: bool) -> ChangeState:
    before, after = (None if rule is None else rule_state(rule, clear=clear) for rule in (change.before, change.after))
    return ChangeState(
        at=change.at,
        by=change.by,
        verb=change.verb,
        limit=change.name,
        part=shown_part(change, clear=clear),
        before=before,
        after=after,
        forgotten=change.forgotten,
        text=format_effect(change),
    )


def _in_use(definitions: Sequence[Known]) -> list[Known]:
    """Return the definitions that workers use now, and those with a decision in the last minute."""
    now = {each.id for each in without_replaced(definitions)}
    return [each for each in definitions if each.id in now or each.minute.allowed or each.minute.denials]


def _counts(key: Key) -> dict[str, Any]:
    return {
        "used": key.used,
        "capacity": key.capacity,
        "waiting_jobs": key.waiting,
        "waiting_units": key.waiting_units,
        "owners": key.owners,
        "oldest_wait_seconds": max(key.minute.longest_wait, key.oldest_wait or 0.0),
        "last_starts_in_seconds": key.last_starts,
        "paused_for_seconds": key.paused,
        "slowed": _slow_down(key.slowed),
        "mean_hold_seconds": key.mean_hold,
        "last_slot_ago_seconds": key.held,
        "oldest_hold_seconds": key.oldest_hold,
        "last_minute": _last_minute(key.minute, share_of_minute(key.limit, key.minute)),
    }


def _last_minute(minute: Minute, share: float | None) -> LastMinute | None:
    if not minute.is_known:
        return None
    return LastMinute(
        allowed=minute.allowed,
        units=minute.used,
        rate_used_ratio=share,
        denied=dict(minute.denied),
        denials=minute.denials,
        longest_wait_seconds=minute.longest_wait,
    )


def _slow_down(slowed: SlowNow | None) -> Slowed | None:
    if slowed is None:
        return None
    return Slowed(units_per_second=slowed.rate, by=slowed.by, ends_in_seconds=slowed.ends, text=format_slowed(slowed))


def _warnings(known: Known, definitions: Iterable[Known], rules: Sequence[tuple[Rule, RuleState]]) -> Iterator[str]:
    for rule, shown in rules:
        if why := why_ignored(rule, known):
            yield f"workers do not apply {shown.text!r}: {why}"
    limit, changed = known.limit, any(rule.what == "set" for rule, _ in rules)
    twins = [each for each in definitions if (each.limit.name, each.limit.of_tier) == (limit.name, limit.of_tier)]
    if len(twins) > 1:
        yield "another definition of this name is in use" + (
            " as well: the change takes a moment" if changed else ": each counts by itself"
        )


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
