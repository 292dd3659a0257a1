"""What `top` shows, line by line, as plain data: the table and --json are made of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from throttlekit import Limit
from throttlekit.fleet.snapshot import Fleet, Key, Known, Minute
from throttlekit_cli.top.words import definition, key_shown, rule_shown

__all__ = ["Line", "as_data", "lines_of"]


@dataclass(frozen=True, slots=True)
class Line:
    """
    A limit, or one of its keys. Durations in seconds; None: not known, or does not apply.

    Attributes:
        share: What passed in the last minute, of what the rate lets pass in one.
        starts: When the last in line starts.
        notes: Pauses, holders, and what an operator has told the fleet.
    """

    limit: str
    key: str | None
    definition: str
    minute: Minute
    share: float | None
    used: int | None = None
    capacity: int | None = None
    waiting: int | None = None
    starts: float | None = None
    paused: float | None = None
    mean_hold: float | None = None
    held: float | None = None
    oldest_hold: float | None = None
    rules: tuple[str, ...] = ()
    keys: tuple[Line, ...] = field(default=())


_ORDERS: dict[str, Callable[[Line], Any]] = {
    "wait": lambda line: (-max(line.starts or 0, line.paused or 0), -line.minute.longest_wait, -line.minute.denials),
    "use": lambda line: (-(line.used or 0) / (line.capacity or 1), -line.minute.units),
    "denied": lambda line: -line.minute.denials,
    "name": lambda line: 0,
}


def lines_of(fleet: Fleet, *, order: str, show_keys: bool) -> list[Line]:
    """One for each limit, with its most pressing keys; the most pressing first, by *order*."""
    keys: dict[str, list[Key]] = {}
    for each in fleet.keys:
        keys.setdefault(each.id, []).append(each)

    def pressing(line: Line) -> Any:
        least = min((line, *line.keys), key=_ORDERS[order])
        return _ORDERS[order](least), line.limit, line.key or ""

    found = [_limit(known, keys.get(known.id, []), fleet, pressing, show_keys) for known in fleet.limits]
    return sorted(found, key=pressing)


def _limit(known: Known, keys: list[Key], fleet: Fleet, pressing: Callable[[Line], Any], show_keys: bool) -> Line:
    limit, minute = known.limit, known.minute
    rules = tuple(rule_shown(rule, fleet.now, clear=show_keys) for rule in fleet.rules if rule.name == limit.name)
    apart = known.keyed or limit.scope != "global"
    told = tuple(sorted((_key(each, show_keys) for each in keys), key=pressing))
    if not apart and len(told) == 1:
        (only,) = told
        return Line(
            limit.name, None, definition(limit), minute, _share(known.limit, minute), only.used, only.capacity,
            only.waiting, only.starts, only.paused, only.mean_hold, only.held, only.oldest_hold, rules,
        )  # fmt: skip
    share = None if apart else _share(limit, minute)
    return Line(limit.name, None, definition(limit), minute, share, rules=rules, keys=told)


def _key(key: Key, show_keys: bool) -> Line:
    return Line(
        key.limit.name, key_shown(key.key, key.part, clear=show_keys), "", key.minute, _share(key.limit, key.minute),
        key.used, key.capacity, key.waiting, key.last_starts, key.paused, key.mean_hold, key.held, key.oldest_hold,
    )  # fmt: skip


def _share(limit: Limit, minute: Minute) -> float | None:
    if not limit.period_us:
        return None
    return minute.units / (limit.amount * 60_000_000 / limit.period_us)


def as_data(fleet: Fleet, lines: list[Line]) -> dict[str, Any]:
    """All of it for a program. Seconds."""
    return {
        "now": fleet.now,
        "store_latency": fleet.latency,
        "processes": [
            {"name": each.name, "framework": each.framework, "latency": each.latency} for each in fleet.processes
        ],
        "limits": [{**_data(line), "keys": [_data(key) for key in line.keys]} for line in lines],
    }


def _data(line: Line) -> dict[str, Any]:
    minute = line.minute
    data: dict[str, Any] = {"limit": line.limit, "definition": line.definition, "rules": list(line.rules)}
    if line.key is not None:
        data = {"key": line.key}
    return {
        **data,
        "used": line.used,
        "capacity": line.capacity,
        "last_minute": {
            "allowed": minute.allowed,
            "units": minute.units,
            "share": line.share,
            "denied": dict(minute.denied or {}),
            "longest_wait": minute.longest_wait,
        },
        "waiting": line.waiting,
        "last_starts_in": line.starts,
        "paused_for": line.paused,
        "mean_hold": line.mean_hold,
        "last_held": line.held,
        "oldest_hold": line.oldest_hold,
    }
