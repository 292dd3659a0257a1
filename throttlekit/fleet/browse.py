"""
What a page shows of the fleet beside `snapshot.look`: the last minutes step by step, and one limit's keys and holders.

Bounded for any number of keys: each function sends a few commands of some hundred names, and scans in pages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any
from urllib.parse import unquote

from throttlekit._core.algorithms.concurrency import Concurrency
from throttlekit._core.storage_keys import (
    bucket_name,
    held_since,
    is_workflow,
    parts_of,
    patterns_of,
    slots_of_holder,
)
from throttlekit.fleet.activity import KEYS, REASON_CODES
from throttlekit.fleet.downstream import STEP_S
from throttlekit.fleet.slots import MOST_HOLDERS
from throttlekit.fleet.snapshot import Fleet, FleetStore, Key, Known, Minute, look, look_at, pairs, time_of
from throttlekit.fleet.tenants import TENANTS

__all__ = [
    "Holder",
    "Page",
    "Step",
    "Tenant",
    "browse_keys",
    "find_key",
    "holders_of",
    "keys_by_limit",
    "minute_of",
    "overview",
    "pressing_keys",
    "recent_steps",
    "tenants_of",
]

_LINES, _FIRST = KEYS[1], 6
_PASSED, _DENIED, _COUNTS = KEYS[_FIRST::3], KEYS[_FIRST + 1 :: 3], KEYS[_FIRST + 2 :: 3]
_STEPS = len(_COUNTS)
_CODES = ("a", "u", "s", "w", *REASON_CODES.values())
_LAST_MINUTE = 4
"""Steps that reach into the last minute."""
_DEPTH = 300
_SCANNED_AT_ONCE = 100
_SCANS = 20
_FULL_PAGE = 50
_MOST_SHOWN = 50
_TOKEN = re.compile(r"#[0-9a-f]+\.[0-9a-f]+(?:\*\d+)?$", re.ASCII)


@dataclass(frozen=True, slots=True)
class Step:
    """
    What one limit decided in 20 seconds, all processes together.

    Attributes:
        number: Seconds since 1970 at its begin, divided by 20. The last step is still running.
        denied: Denials by reason.
        longest_wait, settled: As in `Minute`.
    """

    number: int
    allowed: int
    units: int
    denied: Mapping[str, int]
    longest_wait: float
    settled: int = 0


@dataclass(frozen=True, slots=True)
class Page:
    """
    Some keys of a limit, in no order.

    Attributes:
        cursor: Where the next page begins; "": this was the last one.
        looked, of: How many keys of all limits were looked at for this page, and how many are kept.
    """

    keys: tuple[Key, ...]
    cursor: str
    looked: int
    of: int


@dataclass(frozen=True, slots=True)
class Holder:
    """
    So many slots that are held.

    Attributes:
        job_id: "" for a workflow.
        since: By the clock of the process that asked for them, seconds since 1970; None: it is not known.
        workflow: Whose jobs hold the slot together, as it is stored: quoted, or a digest; "": a job does.
    """

    job_id: str
    since: float | None
    slots: int = 1
    workflow: str = ""


@dataclass(frozen=True, slots=True)
class Tenant:
    """
    One tenant of a shared limit, in the last minute; all processes together.

    Attributes:
        name: As it is stored: quoted, or a digest.
        weight: Its weight when it was last counted; of a limit with priorities, 1.
        units: Units that passed.
        longest_wait: The longest wait of a job that asked, in seconds, from its first denial on.
    """

    name: str
    weight: float
    units: int
    longest_wait: float


def keys_by_limit(fleet: Fleet) -> dict[str, list[Key]]:
    """The keys of *fleet* by the id of their limit, the most pressing first."""
    keys: dict[str, list[Key]] = {}
    for each in fleet.keys:
        keys.setdefault(each.id, []).append(each)
    return keys


def overview(store: FleetStore, order: str) -> tuple[Fleet, dict[str, tuple[Step, ...]]]:
    """
    What `snapshot.look` shows, and the steps of each limit, from which their last minutes are made up: where there are
    many limits that costs the store much less.

    Raises:
        StoreUnavailable: The store did not answer.
    """
    fleet = look(store, order=order, of_limits=False)
    steps = recent_steps(store, [each.id for each in fleet.limits])
    limits = (replace(each, minute=minute_of(steps[each.id], fleet.now)) for each in fleet.limits)
    return replace(fleet, limits=tuple(limits)), steps


def recent_steps(store: FleetStore, ids: Sequence[str]) -> dict[str, tuple[Step, ...]]:
    """
    The last 60 to 80 seconds of each limit of *ids*, the oldest step first.

    A step that has ended does not change. Of the five steps in the ring, the oldest is not read: its counts may have
    expired already, and would be read as zeros.

    Raises:
        StoreUnavailable: The store did not answer.
    """
    if not ids:
        return {}
    fields = [f"{code} {id}" for id in ids for code in _CODES]
    clock, *counts = store.commands([_TIME, *(("HMGET", name, *fields) for name in _COUNTS)])
    running = int(_seconds(clock)) // STEP_S
    found: dict[str, tuple[Step, ...]] = {}
    for place, id in enumerate(ids):
        begin = place * len(_CODES)
        steps: list[Step] = []
        for number in range(running - _LAST_MINUTE + 1, running + 1):
            texts = counts[number % _STEPS][begin : begin + len(_CODES)]
            count = dict(zip(_CODES, (int(text or 0) for text in texts), strict=True))
            denied = {reason: count[code] for reason, code in REASON_CODES.items() if count[code]}
            steps.append(Step(number, count["a"], count["u"], denied, count["w"] / 1e6, count["s"]))
        found[id] = tuple(steps)
    return found


def minute_of(steps: Sequence[Step], now: float) -> Minute:
    """The last minute of *steps*: of the step that begins before it, the part that reaches into it."""
    weighted = [(weight, step) for step in steps if (weight := _weight(step.number, now)) > 0]

    def total(counts: Iterable[tuple[float, int]]) -> int:
        return round(sum(weight * count for weight, count in counts))

    reasons = dict.fromkeys(reason for _, step in weighted for reason in step.denied)
    return Minute(
        allowed=total((weight, step.allowed) for weight, step in weighted),
        units=total((weight, step.units) for weight, step in weighted),
        denied={reason: total((weight, step.denied.get(reason, 0)) for weight, step in weighted) for reason in reasons},
        longest_wait=max((step.longest_wait for _, step in weighted), default=0.0),
        settled=total((weight, step.settled) for weight, step in weighted),
    )


def pressing_keys(store: FleetStore, known: Known, most: int) -> tuple[Key, ...]:
    """
    The keys of a limit with the longest lines, then the most denied, then the most used: of the 300 first of all limits
    in each of these orders.

    Raises:
        StoreUnavailable: The store did not answer.
    """
    if not known.keyed and known.limit.scope == "global":
        names = [bucket_name(known.limit.name, "", known.limit.fingerprint)]
    else:
        names = [name for name in _pressing(store) if _is_of(known, name)][:most]
    return _counted(store, look_at(store, known, names))


def browse_keys(
    store: FleetStore, known: Known, cursor: str, wanted: Callable[[str, str | None], bool] = lambda key, part: True
) -> Page:
    """
    One page of a limit's keys: at most 150 of them, found among at most some 2 000 of all limits. A key that is kept
    from the first page to the last is on one of them. Kept are those that were decided on in the last hour, 100 000 of
    the whole fleet; see `Activity`.

    Args:
        cursor: "" at first, then that of the page before.
        wanted: Whether a key, as it is stored, with its scope's part, is wanted.

    Raises:
        StoreUnavailable: The store did not answer.
    """
    (pattern,) = patterns_of(known.limit.name)
    names: dict[str, None] = {}
    looked, (of,) = 0, store.commands([("ZCARD", KEYS[0])])
    cursor = cursor or "0"
    for _ in range(_SCANS):
        (scanned,) = store.commands([("ZSCAN", KEYS[0], cursor, "MATCH", pattern, "COUNT", _SCANNED_AT_ONCE)])
        cursor, found = _scanned(scanned)
        looked += _SCANNED_AT_ONCE
        for name in found:
            parts = parts_of(name)
            if parts is not None and parts[0] == known.id and wanted(parts[1], parts[2]):
                names[name] = None
        if cursor == "0" or len(names) >= _FULL_PAGE:
            break
    keys = _counted(store, look_at(store, known, list(names)))
    return Page(keys, "" if cursor == "0" else cursor, min(looked, of), of)


def find_key(store: FleetStore, known: Known, key: str) -> Key | None:
    """
    The key itself, as the limit's template or callable gives it. None: nothing is known or counted of it.

    Raises:
        StoreUnavailable: The store did not answer.
    """
    name = bucket_name(known.limit.name, key, known.limit.fingerprint)
    (score,) = store.commands([("ZSCORE", KEYS[0], name)])
    (found,) = _counted(store, look_at(store, known, [name]))
    return found if score is not None or found.used or found.waiting or found.paused else None


def holders_of(store: FleetStore, key: Key) -> tuple[Holder, ...]:
    """
    Who holds slots of *key*, the longest first, at most 50; none unless it is a concurrency limit's.

    Raises:
        StoreUnavailable: The store did not answer.
    """
    if not isinstance(key.limit, Concurrency):
        return ()
    now_us = round(time_of(store) * 1_000_000)
    (names,) = store.commands([("ZRANGEBYSCORE", key.bucket, f"({now_us}", "+inf", "LIMIT", 0, MOST_HOLDERS)])
    holders = [
        Holder("", None, 1, name[:-1])
        if is_workflow(name)
        else Holder(unquote(_TOKEN.sub("", name)), held_since(name), slots_of_holder(name))
        for name in map(_text, names)
    ]
    return tuple(sorted(holders, key=lambda each: each.since or 0.0)[:_MOST_SHOWN])


_TIME = ("EVAL", "return redis.call('TIME')", 1, KEYS[0])


def tenants_of(store: FleetStore) -> dict[str, tuple[Tenant, ...]]:
    """
    The tenants of the last minute, of each limit by its id; those that got most first.

    Raises:
        StoreUnavailable: The store did not answer.
    """
    clock: tuple[str | int, ...] = ("EVAL", "return redis.call('TIME')", 1, TENANTS[0])
    kept: Any = store.commands([clock, *(("HGETALL", key) for key in TENANTS)])
    now = int(kept[0][0])
    found: dict[str, dict[str, list[float]]] = {}
    for back in range(_LAST_MINUTE):
        number = now // STEP_S - back
        for field, value in pairs(kept[1 + number % _STEPS]):
            limit, _, tenant = _text(field).partition(" ")
            try:
                units, wait_us, weight = map(int, value.split(b" "))
            except ValueError:
                continue
            seen = found.setdefault(limit, {}).setdefault(tenant, [0.0, 0.0, weight])
            seen[0] += units * _weight(number, now)
            seen[1] = max(seen[1], wait_us)
    return {limit: _by_units(tenants) for limit, tenants in found.items()}


def _seconds(clock: Any) -> float:
    return int(clock[0]) + int(clock[1]) / 1e6


def _pressing(store: FleetStore) -> list[str]:
    """The first keys of all limits, by the due instant of their lines, by denials, by what passed."""
    now, last = time_of(store), _DEPTH - 1
    numbers = range(int(now // STEP_S), int(now // STEP_S) - _LAST_MINUTE, -1)
    lines, *ranked = store.commands(
        [
            ("ZREVRANGEBYSCORE", _LINES, "+inf", round(now * 1_000_000), "LIMIT", 0, _DEPTH),
            *(("ZREVRANGE", of[number % _STEPS], 0, last) for of in (_DENIED, _PASSED) for number in numbers),
        ]
    )
    names = dict.fromkeys(map(_text, lines))
    for steps in (ranked[:_LAST_MINUTE], ranked[_LAST_MINUTE:]):
        for rank in zip_longest(*steps):
            names.update((_text(name), None) for name in rank if name is not None)
    return list(names)


def _is_of(known: Known, bucket: str) -> bool:
    parts = parts_of(bucket)
    return parts is not None and parts[0] == known.id


def _counted(store: FleetStore, keys: tuple[Key, ...]) -> tuple[Key, ...]:
    """*keys* with what was decided in the last minute; their denials without the reason."""
    if not keys:
        return ()
    names = [each.bucket for each in keys]
    clock, *scores = store.commands([_TIME, *(("ZMSCORE", ranked, *names) for ranked in (*_PASSED, *_DENIED))])
    now = _seconds(clock)
    last = int(now // STEP_S)
    weights = {number % _STEPS: _weight(number, now) for number in range(last - _LAST_MINUTE + 1, last + 1)}

    def total(steps: Sequence[Any], place: int) -> int:
        return round(sum(weight * float(steps[at][place] or 0) for at, weight in weights.items()))

    passed, denied = scores[:_STEPS], scores[_STEPS:]
    return tuple(
        replace(key, minute=Minute(units=total(passed, place), denied={"any": total(denied, place)}))
        for place, key in enumerate(keys)
    )


def _scanned(reply: Any) -> tuple[str, list[str]]:
    """The cursor and the names of a ZSCAN, whose reply a cluster's client reads as pairs."""
    after, found = reply
    names = [each[0] for each in found] if found and isinstance(found[0], tuple) else found[::2]
    return after.decode() if isinstance(after, bytes) else str(after), [_text(name) for name in names]


def _by_units(tenants: dict[str, list[float]]) -> tuple[Tenant, ...]:
    every = [Tenant(name, weight / 1000, round(units), wait / 1e6) for name, (units, wait, weight) in tenants.items()]
    return tuple(sorted(every, key=lambda each: (-each.units, -each.longest_wait, each.name)))


def _weight(number: int, now: float) -> float:
    """Which part of a step lies in the last minute: fleet_snapshot.lua has the same."""
    back, into = divmod(now, STEP_S)
    back -= number
    return 1.0 if 0 <= back < 3 else 1 - into / STEP_S if back == 3 else 0.0


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")
