"""
A snapshot of the fleet, read only from the store: its limits, and the most pressing keys.

The commands are short for any number of keys. They read, in this order: the fleet's reports of the last minute; the
units in use for the chosen keys (a peek, by the script that decides on jobs); the waitlists of these keys; some
entries of each waitlist, and the time when its last job would start. On a cluster, all commands except the first are
sent key by key.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from throttlekit._core.algorithm import Algorithm, Use
from throttlekit._core.algorithms.concurrency import AdaptiveConcurrencyAlgorithm, ConcurrencyAlgorithm, Holders
from throttlekit._core.answer import Caller, Requester
from throttlekit._core.claim import StoreClaim
from throttlekit._core.latency import Gauge
from throttlekit._core.limit.base import Limit
from throttlekit._core.serialize import load_in_force
from throttlekit._core.storage_keys import bucket_name, held_since, limit_id, parts_of
from throttlekit.errors import ConfigurationError
from throttlekit.fleet.activity import KEYS
from throttlekit.fleet.downstream import DOWNSTREAM_429S, counts_429
from throttlekit.fleet.last_minute import Minute, minutes_of, minutes_of_keys, pressing_names
from throttlekit.fleet.list_now import (
    ListNow,
    SlowNow,
    entries_question,
    entry_from,
    list_from,
    list_questions,
)
from throttlekit.fleet.replies import TIME, pairs, seconds_of, text_of
from throttlekit.fleet.rules import RULES, Rule, rules_in_force
from throttlekit.stores.base import Request, Store, SupportsBatch, SupportsCommands, SupportsScan

__all__ = [
    "ORDERS",
    "Fleet",
    "FleetStore",
    "Key",
    "Known",
    "Process",
    "holders_question",
    "known_of",
    "look",
    "read_keys",
]

ORDERS = {"wait": "ldp", "use": "pld", "name": "ldp", "denied": "dlp"}
"""The orders in which keys are read, for each order that a user may choose; see `pressing_names`."""

_AT_ONCE = 100
_MOST_HOLDERS = 200
_FILTERED_DEPTH, _DEPTH_OF_ONE = 1_000, 300
"""The number of keys of all limits that are read to find those of limits with a given name, or of one limit."""
_PROCESS_ALIVE_S = 15
_LIMIT_REPORTED_S = 3_600


class FleetStore(Store, SupportsBatch, SupportsCommands, SupportsScan, Protocol):
    """A store that the whole fleet shares, or a `StoreAccess` of it."""


@dataclass(frozen=True, slots=True)
class Known:
    """A definition of a limit that a process of the fleet uses."""

    id: str
    limit: Limit
    keyed: bool
    """Whether the limit counts each key separately."""
    minute: Minute
    reported: float = 0.0
    """The time of its last report, in seconds of the store's clock. Each process reports it once a minute."""
    fixed_cost: int = 1
    """The cost of each job. If a callable computes the cost, this is 1."""
    shared: str = ""
    """How tenants share the limit: "weighted", "strict", or "" if they do not."""

    @property
    def has_keys(self) -> bool:
        """Whether the limit counts several keys separately: the keys of key=, or those of its scope."""
        return self.keyed or self.limit.scope != "global"


@dataclass(frozen=True, slots=True)
class Key:
    """
    The current state of one key of a limit. Durations are in seconds, or None if there is no job, or they are unknown.

    Attributes:
        key: The key as it is stored: quoted, or a digest. "" if the limit has no key.
        part: The part that the limit's scope adds: the name of the queue or of the job.
        used, capacity: The units in use now, and the most that can be in use; for slots that adapt, the most now.
        waiting: The number of waiting jobs.
        waiting_units: The estimated units that the waiting jobs need.
        owners: The number of owners of the waiting jobs.
        oldest_wait: The time since the first denial of the first job of the waitlist.
        last_starts: The time until the last job of the waitlist starts.
        paused: The time for which no job is admitted from now on.
        slowed: The temporary slow-down of the key, by `adapt=` or by the partner's headers.
        mean_hold, held: The mean time for which a slot is held, and the time since the last grant of one, for a
            concurrency limit.
        oldest_hold: The time for which the oldest holder has had its slot, by the clock of its process. Of more than
            200 holders, only those whose leases end first are compared.
    """

    bucket: str
    id: str
    limit: Limit
    key: str
    part: str | None
    minute: Minute
    used: int
    capacity: int
    waiting: int = 0
    waiting_units: int = 0
    owners: int = 0
    oldest_wait: float | None = None
    last_starts: float | None = None
    paused: float | None = None
    slowed: SlowNow | None = None
    mean_hold: float | None = None
    held: float | None = None
    oldest_hold: float | None = None


@dataclass(frozen=True, slots=True)
class Process:
    """A process that reported in the last 15 s."""

    name: str
    framework: str
    latency_seconds: float
    """The seconds that the last report to the store took."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """
    A snapshot of the fleet. Times are in seconds.

    Attributes:
        now: The time of the store's clock.
        rules: The rules of live control that are in force.
        partner_429s: The number of 429s in the last 15 minutes, by the id of the limit.
    """

    now: float
    processes: tuple[Process, ...]
    limits: tuple[Known, ...]
    keys: tuple[Key, ...]
    rules: tuple[Rule, ...]
    partner_429s: Mapping[str, int]

    @property
    def latency(self) -> float | None:
        """The time for a report to the store: the median over the processes."""
        return statistics.median(each.latency_seconds for each in self.processes) if self.processes else None


def look(store: FleetStore, *, order: str = "wait", most: int = 50, name: str = "", id: str = "") -> Fleet:
    """
    Take a snapshot of the fleet.

    Args:
        order: One of `ORDERS`.
        most: The most keys to return.
        name: A text. Only limits whose name, as it is stored, contains it are returned.
        id: The id of a limit. Only its keys and its last minute are read. If it has no keys, its state is always read,
            and it is returned also if no worker has reported it in the last hour.

    Raises:
        StoreUnavailable: The store did not answer.
    """
    clock, processes, definitions, ruled, partner_429s = store.commands(
        [
            TIME,
            ("ZRANGE", KEYS[3], 0, -1, "WITHSCORES"),
            ("HGETALL", KEYS[2]),
            ("HGETALL", RULES),
            ("HGETALL", DOWNSTREAM_429S),
        ]
    )
    now = seconds_of(clock)
    known = [known_of(*each) for each in pairs(definitions) if name in text_of(each[0]).partition(":")[0]]
    first = now - _LIMIT_REPORTED_S
    recent = [each for each in known if each is not None and (each.reported >= first or each.id == id)]
    minutes = minutes_of(store, [each.id for each in recent if id in ("", each.id)], now)
    limits = {each.id: replace(each, minute=minutes.get(each.id, Minute(is_known=False))) for each in recent}

    def is_wanted(limit: str) -> bool:
        return name in limit.partition(":")[0] and id in ("", limit)

    only = limits.get(id)
    if only is not None and not only.has_keys:
        names = [bucket_name(only.limit.name, "", only.limit.fingerprint)]
    else:
        depth = max(most, _DEPTH_OF_ONE if id else _FILTERED_DEPTH if name else 0)
        names = pressing_names(store, ORDERS[order], depth, now, is_wanted)[:most] if most else []
    keys = _read_keys(store, names, limits, minutes_of_keys(store, names, now))
    alive = [_process(text_of(each)) for each, alive_s in pairs(processes) if float(alive_s) >= now - _PROCESS_ALIVE_S]
    living = {each.name: each for each in alive}  # one entry for a process with several limiters
    rules = rules_in_force(pairs(ruled), round(now * 1_000_000))
    by_limit = counts_429(pairs(partner_429s), now)
    return Fleet(now, tuple(living.values()), tuple(limits.values()), keys, rules, by_limit)


def read_keys(store: FleetStore, known: Known, names: Sequence[str], now: float) -> tuple[Key, ...]:
    """Return the state of those keys, with the stored *names*, that belong to *known*. Raises like `look`."""
    if not names:
        return ()
    minutes = minutes_of_keys(store, [known.id, *names], now)
    return _read_keys(store, names, {known.id: replace(known, minute=minutes[known.id])}, minutes)


def known_of(named: bytes, text: bytes) -> Known | None:
    """Parse a stored definition. Return None if another release wrote it."""
    name = text_of(named)
    try:
        reported, _, definition = text.partition(b" ")
        data = json.loads(definition)
        limit = load_in_force(data)
        cost, shared = data.get("fixed_cost", 1), data.get("shared")
        known = Known(
            name,
            limit,
            bool(data["keyed"]),
            Minute(),
            float(reported),
            cost if type(cost) is int else 1,
            shared if shared in ("weighted", "strict") else "",
        )
    except (ConfigurationError, KeyError, TypeError, ValueError):
        return None
    return known if limit_id(limit.name, limit.fingerprint) == name else None


def _key(bucket: str, limits: Mapping[str, Known], minute: Minute) -> Key | None:
    parts = parts_of(bucket)
    known = None if parts is None else limits.get(parts[0])
    if parts is None or known is None:
        return None
    minute = replace(minute, rates=known.minute.rates)
    return Key(bucket, known.id, known.limit, parts[1], parts[2], minute, 0, known.limit.capacity)


def _read_keys(
    store: FleetStore, names: Sequence[str], limits: Mapping[str, Known], minutes: Mapping[str, Minute]
) -> tuple[Key, ...]:
    """Return the state of those keys, with the stored *names*, that belong to *limits*."""
    keys = [key for bucket in names if (key := _key(bucket, limits, minutes[bucket])) is not None]
    found: list[Key] = []
    for at in range(0, len(keys), _AT_ONCE):
        some, around_us = keys[at : at + _AT_ONCE], time.time_ns() // 1000
        claims = [StoreClaim(each.bucket, each.limit.bind(0, around_us)) for each in some]
        answer = store.decide(claims, Requester(Caller.PEEK))
        asked_us = answer.asked_us or (answer.now_us,) * len(some)
        questions = [
            each
            for claim, now_us in zip(claims, asked_us, strict=True)
            for each in (*_slot_questions(claim, now_us), *list_questions(claim.bucket))
        ]
        answers = iter(store.commands(questions))
        lists: list[ListNow] = []
        for key, claim, use, now_us in zip(some, claims, answer.uses, asked_us, strict=True):
            used = key.limit.capacity - key.limit.remaining(use or Use(0, now_us), now_us)
            found.append(_with_slots(replace(key, used=used), claim.algorithm, answers, now_us))
            lists.append(list_from(answers, now_us, claim.algorithm.mark))
        found[at:] = _with_lists(store, found[at:], lists, asked_us)
    return tuple(found)


def holders_question(bucket: str, now_us: int) -> tuple[str | int, ...]:
    """Return the command that reads up to 200 holders of slots, those first whose leases end first."""
    return ("ZRANGEBYSCORE", bucket, f"({now_us}", "+inf", "LIMIT", 0, _MOST_HOLDERS)


def _slot_questions(claim: StoreClaim, now_us: int) -> list[tuple[str | int, ...]]:
    """Return the commands whose replies `_with_slots` reads. For a limit without slots there are none."""
    if not isinstance(claim.algorithm, ConcurrencyAlgorithm):
        return []
    adapts = isinstance(claim.algorithm, AdaptiveConcurrencyAlgorithm)
    names = [":mean", ":granted", *([":slots", ":rounds"] if adapts else [])]
    return [*(("ZSCORE", claim.bucket, name) for name in names), holders_question(claim.bucket, now_us)]


def _with_slots(key: Key, algorithm: Algorithm, answers: Iterator[Any], now_us: int) -> Key:
    """Add to *key* how many slots there are, and how long they are held, from the next *answers*, if it has slots."""
    if not isinstance(algorithm, ConcurrencyAlgorithm):
        return key
    mean_us, granted_us = _stored_number(next(answers)), _stored_number(next(answers))
    gauge = None
    if isinstance(algorithm, AdaptiveConcurrencyAlgorithm):
        slots, rounds = _stored_number(next(answers)), _stored_number(next(answers))
        gauge = Gauge(slots, rounds=rounds) if slots else None
    since = min(filter(None, (held_since(data.decode()) for data in next(answers))), default=None)
    return replace(
        key,
        capacity=algorithm.slots(Holders(gauge=gauge)),
        mean_hold=mean_us / 1e6 if mean_us else None,
        held=max(0, now_us - granted_us) / 1e6 if granted_us else None,
        oldest_hold=None if since is None else max(0.0, now_us / 1e6 - since),
    )


def _stored_number(score: Any) -> int:
    """Return a number that a concurrency limit stores as a negative score; 0 if there is none."""
    return 0 if score is None else -int(float(score))


def _with_lists(
    store: FleetStore, keys: Sequence[Key], lists: Sequence[ListNow], asked_us: Sequence[int]
) -> Iterator[Key]:
    """
    Add the waitlists *lists*, which were read at *asked_us*, to *keys*. Units and the longest wait are estimated from
    some of the jobs.
    """
    waited = [number for number, each in enumerate(lists) if each.ids]
    questions = [entries_question(keys[number].bucket, lists[number].ids) for number in waited]
    answers = store.commands(questions) if questions else []
    entries = {
        number: [entry for entry in map(entry_from, answer) if entry is not None]
        for number, answer in zip(waited, answers, strict=True)
    }
    costs = {number: statistics.fmean(each.cost for each in some) for number, some in entries.items() if some}
    starts = _last_starts(store, {number: (keys[number], cost) for number, cost in costs.items()}) if costs else {}
    for number, (key, known, now_us) in enumerate(zip(keys, lists, asked_us, strict=True)):
        since = min((each.since for each in entries.get(number, ()) if each.since), default=None)
        yield replace(
            key,
            waiting=known.jobs,
            waiting_units=round(known.jobs * costs.get(number, 1)),
            owners=known.owners,
            oldest_wait=None if since is None else max(0.0, now_us / 1e6 - since),
            last_starts=starts.get(number),
            paused=known.paused,
            slowed=known.slowed,
        )


def _last_starts(store: FleetStore, keys: Mapping[int, tuple[Key, float]]) -> dict[int, float]:
    """
    Return the seconds until the last waiting job of each of *keys* starts. The values of *keys* include the mean cost
    of a job. The store returns when a job that arrives now would start. The time for that job's units is subtracted.
    """
    around_us, claims = time.time_ns() // 1000, list[StoreClaim]()
    for key, mean in keys.values():
        cost = max(1, min(round(mean), key.limit.most))
        claims.append(StoreClaim(key.bucket, key.limit.bind(cost, around_us), cost))
    requester, found = Requester(Caller.PEEK), dict[int, float]()
    answers = store.decide_all([Request([claim], requester) for claim in claims])
    for number, claim, answer in zip(keys, claims, answers, strict=True):
        if not isinstance(answer, Exception):
            after_ns = claim.cost * claim.algorithm.mark if claim.algorithm.overflows else 0
            found[number] = max(0.0, (answer.retry_us - answer.now_us) / 1e6 - after_ns / 1e9)
    return found


def _process(text: str) -> Process:
    name, framework, took_us = (*text.rsplit(" ", 2), "", "0")[:3]
    if not took_us.isdecimal():  # another release reported it
        return Process(text, "-", 0.0)
    return Process(name, framework, int(took_us) / 1e6)
