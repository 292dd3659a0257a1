"""
Read the keys, tenants, holders and first waiting jobs of one limit, for pages that show more than `snapshot.look`.

The work is bounded: each function sends a few commands with some hundred names, and scans keys in pages.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from throttlekit._core.algorithms.concurrency import Concurrency
from throttlekit._core.claim import StoreClaim
from throttlekit._core.storage_keys import (
    bucket_name,
    held_since,
    is_workflow,
    parts_of,
    patterns_of,
    slots_of_holder,
)
from throttlekit.fleet.activity import KEYS
from throttlekit.fleet.downstream import STEP_S
from throttlekit.fleet.last_minute import READ_STEPS, weight_of
from throttlekit.fleet.list_now import Entry, entries_question, entry_from
from throttlekit.fleet.replies import TIME, pairs, seconds_of, text_of, time_of
from throttlekit.fleet.snapshot import Fleet, FleetStore, Key, Known, holders_question, read_keys
from throttlekit.fleet.tenants import TENANTS

__all__ = [
    "Holder",
    "Page",
    "Tenant",
    "browse_keys",
    "find_key",
    "first_waiting",
    "holders_of",
    "keys_by_limit",
    "tenants_of",
]

_SCANNED_AT_ONCE = 100
_SCANS = 20
_FULL_PAGE = 50
_MOST_SHOWN = 50
_FIRST_WAITING = 20
_TOKEN = re.compile(r"#[0-9a-f]+\.[0-9a-f]+(?:\*\d+)?$", re.ASCII)


@dataclass(frozen=True, slots=True)
class Page:
    """
    Some keys of a limit, in no order.

    Attributes:
        cursor: The cursor of the next page; "" on the last page.
        looked, of: The number of keys of all limits that were scanned for this page, and the number that are stored.
    """

    keys: tuple[Key, ...]
    cursor: str
    looked: int
    of: int


@dataclass(frozen=True, slots=True)
class Holder:
    """
    A job or a workflow that holds slots.

    Attributes:
        job_id: The job; "" for a workflow.
        since: The time of the request by the requester's clock, in seconds since 1970; None if not known.
        workflow: The workflow whose jobs share the slot, as it is stored: quoted, or a digest. "" if a job holds it.
    """

    job_id: str
    since: float | None
    slots: int = 1
    workflow: str = ""


@dataclass(frozen=True, slots=True)
class Tenant:
    """
    One tenant of a shared limit, in the last minute, summed over all processes.

    Attributes:
        name: The name as it is stored: quoted, or a digest.
        weight: The weight when the tenant was last counted; 1 for a limit with priorities.
        units: The granted units.
        longest_wait: The longest wait of a job that requested units, in seconds, from its first denial.
    """

    name: str
    weight: float
    units: int
    longest_wait: float


def keys_by_limit(fleet: Fleet) -> dict[str, list[Key]]:
    """Return the keys of *fleet* by the id of their limit, the most pressing first."""
    keys: dict[str, list[Key]] = {}
    for each in fleet.keys:
        keys.setdefault(each.id, []).append(each)
    return keys


def browse_keys(
    store: FleetStore, known: Known, cursor: str, wanted: Callable[[str, str | None], bool] = lambda key, part: True
) -> Page:
    """
    Return one page of a limit's keys: at most 150, found by a scan of about 2 000 keys of all limits. A key that stays
    stored during the whole scan is on one page. The store keeps the keys of the last hour, up to 100 000 for the fleet;
    see `Activity`.

    Args:
        cursor: "" for the first page, then the cursor of the previous page.
        wanted: A filter, called with a key as it is stored, and with the part of its scope.

    Raises:
        StoreUnavailable: The store did not answer.
    """
    (pattern,) = patterns_of(known.limit.name)
    names: dict[str, None] = {}
    looked, (clock, of) = 0, store.commands([TIME, ("ZCARD", KEYS[0])])
    cursor = cursor or "0"
    for _ in range(_SCANS):
        (scanned,) = store.commands([("ZSCAN", KEYS[0], cursor, "MATCH", pattern, "COUNT", _SCANNED_AT_ONCE)])
        cursor, found = _read_scan(scanned)
        looked += _SCANNED_AT_ONCE
        for name in found:
            parts = parts_of(name)
            if parts is not None and parts[0] == known.id and wanted(parts[1], parts[2]):
                names[name] = None
        if cursor == "0" or len(names) >= _FULL_PAGE:
            break
    keys = read_keys(store, known, list(names), seconds_of(clock))
    return Page(keys, "" if cursor == "0" else cursor, min(looked, of), of)


def find_key(store: FleetStore, known: Known, key: str) -> Key | None:
    """
    Return the stored key for which the limit's template or callable returns *key*, or None if nothing is stored for it.

    Raises:
        StoreUnavailable: The store did not answer.
    """
    name = bucket_name(known.limit.name, key, known.limit.fingerprint)
    clock, score = store.commands([TIME, ("ZSCORE", KEYS[0], name)])
    (found,) = read_keys(store, known, [name], seconds_of(clock))
    return found if score is not None or found.used or found.waiting or found.paused else None


def holders_of(store: FleetStore, key: Key) -> tuple[Holder, ...]:
    """
    Return up to 50 holders of slots of *key*, the oldest first. Empty unless its limit is a concurrency limit.

    Raises:
        StoreUnavailable: The store did not answer.
    """
    if not isinstance(key.limit, Concurrency):
        return ()
    now_us = round(time_of(store) * 1_000_000)
    (names,) = store.commands([holders_question(key.bucket, now_us)])
    holders = [
        Holder("", None, 1, name[:-1])
        if is_workflow(name)
        else Holder(unquote(_TOKEN.sub("", name)), held_since(name), slots_of_holder(name))
        for name in map(text_of, names)
    ]
    return tuple(sorted(holders, key=lambda each: each.since or 0.0)[:_MOST_SHOWN])


def first_waiting(store: FleetStore, key: Key) -> tuple[tuple[str, Entry], ...]:
    """
    Return the ids and entries of the first jobs that wait for *key*, in order: at most 20, without woken jobs.

    Raises:
        StoreUnavailable: The store did not answer.
    """
    claim = StoreClaim(key.bucket, key.limit.bind(0, time.time_ns() // 1000))
    ids = tuple(id for _, id in store.list_waiting(claim, _FIRST_WAITING).first)
    if not ids:
        return ()
    (texts,) = store.commands([entries_question(key.bucket, ids)])
    entries = zip(ids, map(entry_from, texts), strict=True)
    return tuple((id, entry) for id, entry in entries if entry is not None)


def tenants_of(store: FleetStore) -> dict[str, tuple[Tenant, ...]]:
    """
    Return the tenants of the last minute by the id of their limit, those with the most units first.

    Raises:
        StoreUnavailable: The store did not answer.
    """
    clock, *kept = store.commands([TIME, *(("HGETALL", key) for key in TENANTS)])
    now = seconds_of(clock)
    found: dict[str, dict[str, list[float]]] = {}
    for back in range(READ_STEPS):
        number = int(now // STEP_S) - back
        for field, value in pairs(kept[number % len(TENANTS)]):
            limit, _, tenant = text_of(field).partition(" ")
            try:
                units, wait_us, weight = map(int, value.split(b" "))
            except ValueError:
                continue
            seen = found.setdefault(limit, {}).setdefault(tenant, [0.0, 0.0, weight])
            seen[0] += units * weight_of(number, now)
            seen[1] = max(seen[1], wait_us)
    return {limit: _by_units(tenants) for limit, tenants in found.items()}


def _read_scan(reply: Any) -> tuple[str, list[str]]:
    """Return the cursor and the names of a ZSCAN reply, which a cluster's client returns as pairs."""
    after, found = reply
    names = [each[0] for each in found] if found and isinstance(found[0], tuple) else found[::2]
    return after.decode() if isinstance(after, bytes) else str(after), [text_of(name) for name in names]


def _by_units(tenants: dict[str, list[float]]) -> tuple[Tenant, ...]:
    every = [Tenant(name, weight / 1000, round(units), wait / 1e6) for name, (units, wait, weight) in tenants.items()]
    return tuple(sorted(every, key=lambda each: (-each.units, -each.longest_wait, each.name)))
