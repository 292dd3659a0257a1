"""The rows of `top`, as plain data: the source of the table and of --json."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from throttlekit.fleet.browse import Tenant, keys_by_limit
from throttlekit.fleet.definitions import has_keys, reported_within, share_of_minute, why_ignored
from throttlekit.fleet.downstream import total
from throttlekit.fleet.last_minute import Minute
from throttlekit.fleet.list_now import SlowNow
from throttlekit.fleet.outlook import Outlook, outlook_of
from throttlekit.fleet.snapshot import Fleet, Key, Known
from throttlekit_cli.formatting import format_active_rule, format_key, format_limit

__all__ = ["Row", "as_data", "rows_of", "slowed_data"]


@dataclass(frozen=True, slots=True)
class Row:
    """
    A limit, or one of its keys. Durations in seconds; None: not known, or does not apply.

    Attributes:
        share: Units that were used in the last minute, as a share of what the rate allows in a minute. None also if the
            rate changed within the minute.
        waiting: How many jobs wait.
        waiting_units: About how many units they take.
        owners: How many worker processes have them.
        oldest: The longest wait of a job that was decided in the last minute, or that is first on a waitlist now.
        starts: Seconds until the last waiting job starts.
        slowed: How it is slowed down, by `adapt=` or by the partner's response headers.
        tenants: The use of a shared limit by its tenants in the last minute, the heaviest first.
        hidden: Whether its key, or the names of its tenants, are shown as digests.
        downstream_429: 429s from the partner that paused the limit in the last 15 minutes, for all its keys.
        outlook: Whether the number of waiting jobs falls; None also for a key.
        rules: Operators' changes that are in force.
        warnings: Problems for the operator: a change that workers do not apply, or two definitions of one name.
    """

    limit: str
    key: str | None
    definition: str
    minute: Minute
    share: float | None
    used: int | None = None
    capacity: int | None = None
    waiting: int | None = None
    waiting_units: int | None = None
    owners: int | None = None
    oldest: float = 0.0
    starts: float | None = None
    paused: float | None = None
    slowed: SlowNow | None = None
    mean_hold: float | None = None
    held: float | None = None
    oldest_hold: float | None = None
    tenants: tuple[Tenant, ...] = ()
    hidden: bool = False
    downstream_429: int = 0
    outlook: Outlook | None = None
    rules: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    keys: tuple[Row, ...] = field(default=())

    @property
    def use(self) -> float | None:
        """
        How much of the limit was used in the last minute: 0 is nothing, 1 is all. If the units of a minute cannot be
        compared with the rate, as for slots, it is the use now.
        """
        if self.share is not None or self.used is None:
            return self.share
        return self.used / (self.capacity or 1)


_ORDERS: dict[str, Callable[[Row], Any]] = {
    "wait": lambda row: (-max(row.starts or 0, row.paused or 0), -row.oldest, -row.minute.denials),
    "use": lambda row: (-(row.use or 0), -row.minute.units),
    "denied": lambda row: -row.minute.denials,
    "name": lambda row: 0,
}


def rows_of(fleet: Fleet, tenants: Mapping[str, tuple[Tenant, ...]], *, order: str, show_keys: bool) -> list[Row]:
    """A row for each limit, with the rows of its most pressing keys. The most pressing come first, by *order*."""
    keys = keys_by_limit(fleet)

    def pressing(row: Row) -> Any:
        return min(map(_ORDERS[order], (row, *row.keys))), row.limit, row.key or ""

    found: list[Row] = []
    for known in _in_use(fleet):
        clear, own = show_keys or known.limit.show_key, tenants.get(known.id, ())
        row = _limit_row(known, keys.get(known.id, []), fleet, pressing, clear=clear)
        named = tuple(replace(each, name=format_key(each.name, None, clear=clear)) for each in own)
        found.append(replace(row, tenants=named, hidden=bool(own) and not clear))
    return sorted(found, key=pressing)


def _in_use(fleet: Fleet) -> list[Known]:
    """The definitions that workers use now, and those of which jobs were decided in the last minute."""
    now = {each.id for each in reported_within(fleet.limits)}
    return [each for each in fleet.limits if each.id in now or each.minute.allowed or each.minute.denials]


def _warnings(known: Known, fleet: Fleet) -> Iterator[str]:
    limit = known.limit
    twins = [each for each in _in_use(fleet) if (each.limit.name, each.limit.of_tier) == (limit.name, limit.of_tier)]
    changed = False
    for rule in fleet.rules:
        if rule.is_for(limit.name) and rule.what != "shadow":
            if why := why_ignored(rule, known):
                yield f"workers do not apply {format_active_rule(rule, fleet.now, clear=False)!r}: {why}"
            changed = changed or rule.what == "set"
    if len(twins) > 1:
        yield (
            "another definition of this name is in use as well: workers are still applying the change" if changed
            else "another definition of this name is in use: each has a separate count"
        )  # fmt: skip


def _limit_row(known: Known, keys: list[Key], fleet: Fleet, pressing: Callable[[Row], Any], *, clear: bool) -> Row:
    limit, minute = known.limit, known.minute
    rules = tuple(format_active_rule(rule, fleet.now, clear=clear) for rule in fleet.rules if rule.is_for(limit.name))
    keyed = has_keys(known)
    key_rows = tuple(sorted((_key_row(each, clear=clear) for each in keys), key=pressing))
    share = None if keyed else share_of_minute(limit, minute)
    warnings = tuple(_warnings(known, fleet))
    partner_429s = total(fleet.partner_429s.get(known.id))
    oldest = max([minute.longest_wait, *(each.oldest for each in key_rows)])
    row = Row(
        limit.name, None, format_limit(limit), minute, share, oldest=oldest, downstream_429=partner_429s, rules=rules,
        outlook=outlook_of(known, keys), warnings=warnings, keys=key_rows,
    )  # fmt: skip
    if keyed or len(key_rows) != 1:
        return row
    return replace(
        key_rows[0], key=None, definition=row.definition, minute=minute, share=share, oldest=oldest,
        downstream_429=partner_429s, outlook=row.outlook, rules=rules, warnings=warnings,
    )  # fmt: skip


def _key_row(key: Key, *, clear: bool) -> Row:
    share = share_of_minute(key.limit, key.minute)
    oldest = max(key.minute.longest_wait, key.oldest_wait or 0.0)
    return Row(
        key.limit.name, format_key(key.key, key.part, clear=clear), "", key.minute, share,
        key.used, key.capacity, key.waiting, key.waiting_units, key.owners, oldest,
        key.last_starts, key.paused, key.slowed, key.mean_hold, key.held, key.oldest_hold,
        hidden=bool(key.key) and not clear,
    )  # fmt: skip


def as_data(fleet: Fleet, rows: list[Row], store: str) -> dict[str, Any]:
    """The content of the screen for programs. Durations are in seconds."""
    return {
        "store": store,
        "now": fleet.now,
        "store_latency": fleet.latency,
        "processes": [
            {"name": each.name, "framework": each.framework, "latency": each.latency} for each in fleet.processes
        ],
        "limits": [{**_row_data(row), "keys": [_row_data(key) for key in row.keys]} for row in rows],
    }


def slowed_data(slowed: SlowNow | None) -> dict[str, Any]:
    """The field of --json for a slow-down; empty if there is none."""
    if slowed is None:
        return {}
    return {"slowed": {"units_per_second": slowed.rate, "by": slowed.by, "ends_in": slowed.ends}}


def _row_data(row: Row) -> dict[str, Any]:
    minute = row.minute
    data: dict[str, Any] = {"limit": row.limit, "definition": row.definition, "rules": list(row.rules)}
    if row.warnings:
        data["warnings"] = list(row.warnings)
    if row.key is not None:
        data = {"key": row.key}
    else:
        data["downstream_429"] = row.downstream_429
        data["outlook"] = None if row.outlook is None else {**asdict(row.outlook), "text": str(row.outlook)}
    return {
        **data,
        "used": row.used,
        "capacity": row.capacity,
        "last_minute": {
            "allowed": minute.allowed,
            "units": minute.used,
            "share": row.share,
            "denied": dict(minute.denied or {}),
            "longest_wait": minute.longest_wait,
        }
        if minute.is_known
        else None,
        "waiting": row.waiting,
        "waiting_units": row.waiting_units,
        "owners": row.owners,
        "oldest_wait": row.oldest,
        "last_starts_in": row.starts,
        "paused_for": row.paused,
        **slowed_data(row.slowed),
        "mean_hold": row.mean_hold,
        "last_held": row.held,
        "oldest_hold": row.oldest_hold,
        **({"tenants": [asdict(each) for each in row.tenants]} if row.tenants else {}),
    }
