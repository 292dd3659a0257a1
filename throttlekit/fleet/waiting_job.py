"""
Find out why one job waits, from its entry on a waitlist, and from a worker's report of its last decision.

Rule 1: an entry on a waitlist overrides a report. A report may be old, and only some jobs are reported: see `Activity`.
Rule 2: the number of commands is bounded, for any number of jobs. The waitlists are searched from the most likely to
the least likely: the reported one, those of limits without keys, those of keys that are reported to have waiting jobs,
and then every waitlist among the first `MAX_NAMES` names of the store. One more command returns the position and the
estimate.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple
from urllib.parse import unquote

from throttlekit._core.claim import StoreClaim
from throttlekit._core.storage_keys import bucket_name, bucket_of, is_encodable, parts_of, quote, wait_names
from throttlekit._core.waitlist import State
from throttlekit.fleet.activity import JOBS_KNOWN, KEYS, reported_id
from throttlekit.fleet.list_now import Entry, entries_question, entry_from, listens, owner_question
from throttlekit.fleet.replies import pairs, text_of, time_of
from throttlekit.fleet.rule_follower import read_rules
from throttlekit.fleet.rules import Rule, rules_in_force
from throttlekit.fleet.snapshot import FleetStore, Key, Known, known_of, read_keys

__all__ = ["MAX_NAMES", "Found", "Waiting", "look_up"]

MAX_NAMES = 2_000_000
"""The most names of the store that are searched for waitlists, 1 000 per command."""

_SCANNED_AT_ONCE = 1_000
_SEARCHED_AT_ONCE = 500
_MAX_LISTS = 10_000
_EVERY_LIST = wait_names("tk1:{*:*}:*")[2]


@dataclass(frozen=True, slots=True)
class Waiting:
    """
    A job that was denied.

    Attributes:
        bucket: The bucket of the limit that denied it; "" once it was granted.
        reason: The reason of its last decision; "" if neither a report nor its limit shows it.
        since, due, decided: The times of its first denial, of its estimated turn (0 if not known), and of its last
            decision (0 if not reported), in seconds of the store's clock.
        state: "waiting"; "woken" if the job may send its request, and has not; or "kept" if it keeps its position while
            something else, like another limit or an operator's pause, denies it. Of a job that is on no waitlist:
            "allowed" if it was granted, and "left" if it was denied.
        before: The number of jobs ahead of it on its waitlist; None if not known.
        owner: The worker process that has the job's message; None if the job is on no waitlist.
        owner_answers: Whether the owner listened when it was last woken. If not, its jobs are skipped.
    """

    bucket: str
    reason: str = ""
    since: float = 0.0
    deferrals: int = 0
    due: float = 0.0
    decided: float = 0.0
    state: str = "left"
    before: int | None = None
    owner: str | None = None
    owner_answers: bool | None = None

    @property
    def limit(self) -> str:
        """The name of the limit that denied the job, as it is stored."""
        parts = parts_of(self.bucket)
        return "" if parts is None else unquote(parts[0].partition(":")[0])


class Found(NamedTuple):
    """
    The result of a search for a job.

    Attributes:
        now: The time of the store's clock, in seconds.
        job: The job; None if nothing is known.
        key: The key that the job waits for; None if it waits for none, or the definition of its limit is not reported.
        rules: The rules of live control for that key's limit, without the pauses of other keys.
        searched_all: Whether every waitlist was searched. False only if the job was on no waitlist that was searched.
    """

    now: float
    job: Waiting | None = None
    key: Key | None = None
    rules: tuple[Rule, ...] = ()
    searched_all: bool = True


def look_up(store: FleetStore, job_id: str, *, max_names: int = MAX_NAMES) -> Found:
    """
    Find out why a job waits.

    Args:
        max_names: The largest number of names of the store that are searched for its waitlist.

    Raises:
        StoreUnavailable: The store did not answer.
    """
    kept, text = store.commands([("HGETALL", KEYS[2]), ("HGET", JOBS_KNOWN, reported_id(job_id))])
    known = {each.id: each for each in (known_of(*each) for each in pairs(kept)) if each is not None}
    job = _read_report(text)
    search = _Search(store, job_id, max_names)
    entry = search.find(job, known) if is_encodable(job_id) else None
    if entry is None:
        return Found(time_of(store), job, None, (), search.searched_all)
    (free,) = store.commands([owner_question(search.bucket, entry.owner)])
    reported = job if job is not None and job.bucket == search.bucket else Waiting(search.bucket)
    waiting = replace(
        reported,
        since=entry.since or reported.since,
        deferrals=entry.denials,
        state=entry.state.value,
        owner=entry.owner,
        owner_answers=listens(free),
    )
    parts = parts_of(search.bucket)
    definition = None if parts is None else known.get(parts[0])
    if definition is None:
        return Found(time_of(store), replace(waiting, due=0.0))
    now_us, ruled = read_rules(store)
    now, rules = now_us / 1e6, rules_in_force(ruled, now_us)
    (key,) = read_keys(store, definition, [search.bucket], now)
    rules = tuple(
        rule
        for rule in rules
        if rule.is_for(key.limit.name) and (rule.what != "pause" or rule.part is None or quote(rule.part) == key.key)
    )
    cost = max(1, min(entry.cost, key.limit.most))
    claim = StoreClaim(key.bucket, key.limit.bind(cost, now_us), cost)
    where = store.where([claim], job_id)
    if where is None:  # the job has left the list in the meantime
        return Found(now, job, None, rules)
    is_paused = key.paused is not None or any(rule.what == "pause" for rule in rules)
    found = replace(
        waiting,
        reason=waiting.reason or ("paused" if is_paused else "in line" if key.used < key.capacity else "exhausted"),
        # A job that keeps its position waits for something else, whose time is not known.
        due=waiting.due if where.state is State.KEPT else now + where.in_us / 1e6,
        state=where.state.value,
        before=where.position,
    )
    return Found(now, found, key, rules)


class _Search:
    """
    The search for the waitlist on which a job is waiting or woken. If there is none, the result is a waitlist on which
    the job only keeps its position.
    """

    def __init__(self, store: FleetStore, job_id: str, max_names: int) -> None:
        self._store, self._job_id, self._max_names = store, job_id, max_names
        self.bucket, self.searched_all = "", True

    def find(self, job: Waiting | None, known: Mapping[str, Known]) -> Entry | None:
        found: Entry | None = None
        for buckets in self._pages(job, known):
            answers = self._store.commands([entries_question(bucket, (self._job_id,)) for bucket in buckets])
            for bucket, (text,) in zip(buckets, answers, strict=True):
                entry = entry_from(text)
                if entry is None or (entry.state is State.KEPT and found is not None):
                    continue
                self.bucket, found = bucket, entry
                if entry.state is not State.KEPT:
                    return entry
        return found

    def _pages(self, job: Waiting | None, known: Mapping[str, Known]) -> Iterator[Sequence[str]]:
        if job is not None and job.bucket:
            yield [job.bucket]
        alone = [
            bucket_name(each.limit.name, "", each.limit.fingerprint) for each in known.values() if not each.has_keys
        ]
        for at in range(0, len(alone), _SEARCHED_AT_ONCE):
            yield alone[at : at + _SEARCHED_AT_ONCE]
        for at in range(0, _MAX_LISTS, _SEARCHED_AT_ONCE):
            (some,) = self._store.commands([("ZREVRANGE", KEYS[1], at, at + _SEARCHED_AT_ONCE - 1)])
            if not some:
                break
            yield list(map(text_of, some))
        yield from self._scan()

    def _scan(self) -> Iterator[Sequence[str]]:
        self.searched_all = False
        cursor = ""
        for _ in range(0, self._max_names, _SCANNED_AT_ONCE):
            try:
                cursor, names = self._store.scan(_EVERY_LIST, cursor)
            except TypeError:  # the store, or that of a group, does not support scans
                return
            buckets = [bucket_of(name) for name in names]
            for at in range(0, len(buckets), _SEARCHED_AT_ONCE):
                yield buckets[at : at + _SEARCHED_AT_ONCE]
            if not cursor:
                self.searched_all = True
                return


def _read_report(text: bytes | None) -> Waiting | None:
    """Parse a worker's report of the job's last decision. Return None if there is no valid report."""
    try:
        bucket, reason, since_us, deferrals, due_us, decided_us = json.loads(text or b"null")
        state = "allowed" if reason == "allowed" else "left"
        return Waiting(str(bucket), str(reason), since_us / 1e6, deferrals, due_us / 1e6, decided_us / 1e6, state)
    except (TypeError, ValueError):
        return None
