"""
Count the decisions of this process, and report them to the fleet once a second. `throttlekit top` shows the result.

Rule 1: a decision costs one count in memory. A background thread sends each report in one round trip.
Rule 2: memory is bounded, in the process and in the store. Of many keys, only the most pressing have separate reports.
The sum of a limit includes all its keys.
Rule 3: a report without a reply is dropped, because it may have been counted. Definitions are sent again.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import throttlekit_lua
from throttlekit._core.answer import Answer, Waited
from throttlekit._core.decision import Decision
from throttlekit._core.job import Job
from throttlekit._core.limit.base import Limit
from throttlekit._core.serialize import plain
from throttlekit._core.storage_keys import fleet_name, limit_id
from throttlekit._engine.claims import Claim
from throttlekit._util.fork_safety import renew_lock_after_fork
from throttlekit.fleet.downstream import COUNT_429S, DOWNSTREAM_429S
from throttlekit.fleet.history import Moment, report_history
from throttlekit.fleet.shares import report_shares
from throttlekit.fleet.tenants import TenantCounts, report_tenants
from throttlekit.stores.base import SupportsCommands

__all__ = ["JOBS_KNOWN", "KEYS", "REASON_CODES", "Activity", "Counts", "reported_id", "reported_rate"]

_STEPS = 5
JOBS_KNOWN = fleet_name("jobs:known")
KEYS = (
    *(fleet_name(what) for what in ("keys", "lines", "limits", "processes", "jobs")),
    JOBS_KNOWN,
    *(fleet_name(f"{what}:{step}") for step in range(_STEPS) for what in ("passed", "denied", "counts")),
)
"""The keys of the report, in the order of fleet_report.lua."""

REASON_CODES = {"exhausted": "e", "in line": "l", "queue full": "f", "paused": "p"}
"""The reasons for denials by a store, and the codes under which the fleet counts them."""

_FRAMEWORKS = ("dramatiq", "rq", "celery", "taskiq", "huey")
_MOST_KEPT = 10_000
_MOST_REPORTED = 100
_ALIVE_EVERY = 5.0
_SHORT_LIFE = 2.0
_DEFINED_EVERY = 60.0
_LONGEST_JOB_ID = 200


_REPORT = throttlekit_lua.script("fleet_report")


@dataclass(slots=True, eq=False)
class _Seen:
    """Decisions on one key since the last report, or on all keys of a limit that are not counted separately."""

    limit: Limit
    bucket: str
    allowed: int = 0
    arrived: int = 0
    """Jobs that requested units for the first time."""
    units: int = 0
    settled: int = 0
    denied: Counter[str] = field(default_factory=Counter[str])
    due_us: int = 0
    wait_us: int = 0

    @property
    def denials(self) -> int:
        return self.denied.total()

    def add(self, other: _Seen) -> None:
        self.allowed += other.allowed
        self.arrived += other.arrived
        self.units += other.units
        self.settled += other.settled
        self.denied.update(other.denied)
        self.wait_us = max(self.wait_us, other.wait_us)

    def reasons(self) -> list[tuple[str, int]]:
        coded = [(REASON_CODES.get(reason), count) for reason, count in self.denied.items()]
        return [(f"{code} {self.bucket}", count) for code, count in coded if code]


class Counts:
    """
    Decisions since the last report. After 10 000 keys, further keys are counted only in their limit's sum.

    Counts are exact, for any number of threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.tenants = TenantCounts()
        self._seen: dict[str, _Seen] = {}
        self._jobs: dict[str, tuple[str, str, int, int, int, int]] = {}
        """The last decision on each job: bucket, reason, first denial, denials, estimated turn, and now, in µs."""
        self._partner_429s: dict[str, int] = {}

    def record_decision(
        self, decision: Decision, claims: Sequence[Claim], answer: Answer, waited: Waited, job: Job | None
    ) -> None:
        """
        Count the store's decision on *claims*.

        Args:
            waited: How long the job has waited, and how often it was denied, including this denial.
        """
        now_us, reason, binding = answer.now_us, decision.reason, claims[answer.claim]
        held_by = None if waited.claim is None or not waited.denials else claims[waited.claim].claim.bucket
        for claim in claims if decision.allowed else [binding]:
            if claim.limit.share is not None:
                waits = not decision.allowed or claim.claim.bucket == held_by
                self.tenants.record_decision(claim, allowed=decision.allowed, waited_us=waited.for_us if waits else 0)
        with self._lock:
            if decision.allowed:
                for each in decision.charged:
                    seen = self._seen.get(each.bucket) or self._seen_of(each.bucket, each.limit)
                    seen.allowed += 1
                    # A job that waited was counted at one limit with its first denial, and now at the others.
                    seen.arrived += not waited.denials or (held_by is not None and each.bucket != held_by)
                    seen.units += each.cost
                    if each.bucket == held_by:
                        seen.wait_us = max(seen.wait_us, waited.for_us)
                if not waited.denials or job is None:
                    return
                bucket, due_us = "", 0
            else:
                bucket = binding.claim.bucket
                seen = self._seen.get(bucket) or self._seen_of(bucket, decision.limit)
                seen.denied[reason] += 1
                if job is None or reason == "queue full":
                    return
                seen.arrived += waited.denials == 1
                due_us = answer.retry_us
                if due_us > seen.due_us:
                    seen.due_us = due_us
                seen.wait_us = max(seen.wait_us, waited.for_us)
            jobs = self._jobs
            if job.id and (len(jobs) < _MOST_REPORTED or job.id in jobs):
                jobs[job.id] = (bucket, reason, now_us - waited.for_us, waited.denials, due_us, now_us)

    def record_prefetched(self, limit: Limit, bucket: str, jobs: int, units: int) -> None:
        """Count jobs that were granted from prefetched units."""
        with self._lock:
            seen = self._seen.get(bucket) or self._seen_of(bucket, limit)
            seen.allowed += jobs
            seen.arrived += jobs
            seen.units += units

    def record_settled(self, limit: Limit, bucket: str, extra: int) -> None:
        """Count a correction by `settle`: *extra* more units were charged, or, if negative, refunded."""
        with self._lock:
            seen = self._seen.get(bucket) or self._seen_of(bucket, limit)
            seen.settled += extra

    def downstream_429(self, limit: Limit) -> None:
        """Count a 429 from the partner that paused *limit*, or one of its keys."""
        id = limit_id(limit.name, limit.fingerprint)
        with self._lock:
            if limit.scope != "process" and (id in self._partner_429s or len(self._partner_429s) < _MOST_REPORTED):
                self._partner_429s[id] = self._partner_429s.get(id, 0) + 1

    def take(self) -> tuple[list[_Seen], list[list[str]], dict[str, int]]:
        """Return the counts, the reports on jobs, and the 429s by limit, and reset them."""
        with self._lock:
            seen, self._seen = self._seen, {}
            jobs, self._jobs = self._jobs, {}
            partner_429s, self._partner_429s = self._partner_429s, {}
        return list(seen.values()), [[reported_id(id), _json(report)] for id, report in jobs.items()], partner_429s

    def _seen_of(self, bucket: str, limit: Limit) -> _Seen:
        if len(self._seen) >= _MOST_KEPT:
            bucket = limit_id(limit.name, limit.fingerprint)
            if bucket in self._seen:
                return self._seen[bucket]
        seen = self._seen[bucket] = _Seen(limit, bucket)
        return seen


@dataclass(slots=True, eq=False)
class _ProcessState:
    """The state of this process. A forked child begins with a new one."""

    counts: Counts = field(default_factory=Counts)
    began: float = 0.0
    alive_at: float = 0.0
    took_us: int = 0
    reported_name: str = ""
    defined: dict[str, tuple[object, float]] = field(default_factory=dict[str, "tuple[object, float]"])
    to_define: dict[str, str] = field(default_factory=dict[str, str])
    has_flushed: bool = False


class Activity:
    """
    Counts the decisions of this process, and reports them. The module's docstring has the rules.

    Args:
        store: The store that receives the reports.
    """

    def __init__(self, store: SupportsCommands) -> None:
        self._store = store
        self._here = _ProcessState()
        renew_lock_after_fork(self, "_here", _ProcessState)

    @property
    def counts(self) -> Counts:
        """The counts since the last report."""
        return self._here.counts

    def report(self) -> None:
        """
        Report the new counts. The first call in a process reports nothing, because it precedes the first decision.

        Raises:
            StoreUnavailable: The store did not answer. The new counts are dropped, but not the definitions of limits.
        """
        here, now = self._here, time.monotonic()
        here.began = here.began or now
        seen, jobs, partner_429s = here.counts.take()
        # A process that ends at once, like a work-horse, is not listed, because it is gone when a user looks.
        lives = now - here.began > _SHORT_LIFE
        if not (seen or partner_429s or here.to_define) and not (lives and now - here.alive_at > _ALIVE_EVERY):
            return
        name = f"{socket.gethostname()}:{os.getpid()} {_framework()} {here.took_us}" if lives else ""
        definitions = here.to_define = self._definitions(here, seen, now)
        sums = _sums(seen)
        report = {
            "process": [here.reported_name, name] if name else [here.reported_name],
            "limits": [[limit, text] for limit, text in definitions.items()],
            "jobs": jobs,
            **_numbers(seen, sums),
        }
        began = time.perf_counter()
        tenants, taken = here.counts.tenants.take()
        beside = [report_tenants(tenants), *report_shares(taken)] if tenants else []
        beside += [("EVAL", COUNT_429S, 1, DOWNSTREAM_429S, _json([*partner_429s.items()]))] if partner_429s else []
        beside += report_history(_moments(sums, partner_429s))
        self._store.commands([*beside, ("EVAL", _REPORT, len(KEYS), *KEYS, _json(report))])
        if here.to_define is definitions:  # otherwise another thread reports definitions too
            here.to_define = {}
        here.took_us, here.reported_name = round((time.perf_counter() - began) * 1_000_000), name
        here.alive_at = now if lives else here.alive_at

    def last_word(self) -> None:
        """
        Call `report` if the process may end before its next report: it is young, or this is its first job.

        Raises:
            StoreUnavailable: The store did not answer. The new counts are dropped.
        """
        here = self._here
        first, here.has_flushed = not here.has_flushed, True
        if first or time.monotonic() - here.began < _SHORT_LIFE:
            self.report()

    def _definitions(self, here: _ProcessState, seen: Sequence[_Seen], now: float) -> dict[str, str]:
        """Return the definitions that were not reported in the last minute, or whose report got no reply."""
        texts = dict(here.to_define)
        for each in seen:
            limit = each.limit
            if limit.scope == "process" or len(texts) == _MOST_REPORTED:
                continue
            name = limit_id(limit.name, limit.fingerprint)
            known, at = here.defined.get(name, (None, 0.0))
            if name not in texts and (known != limit.definition or now - at > _DEFINED_EVERY):
                texts[name] = _json({**plain(limit, "", 0), "keyed": limit.key is not None, **_extra_fields(limit)})
                here.defined[name] = (limit.definition, now)
        if len(here.defined) > _MOST_KEPT:
            here.defined.clear()
        return texts


def _extra_fields(limit: Limit) -> dict[str, Any]:
    """Return the fields that `plain` omits, but that the check of operators' rules needs: fixed cost and share."""
    fixed: dict[str, Any] = {"fixed_cost": limit.cost} if isinstance(limit.cost, int) and limit.cost != 1 else {}
    return fixed if limit.share is None else {**fixed, "shared": "strict" if limit.share.strict else "weighted"}


def _sums(seen: Sequence[_Seen]) -> dict[str, _Seen]:
    """Return the sum of each limit that the fleet shares, by its id."""
    sums: dict[str, _Seen] = {}
    for each in seen:
        if each.limit.scope != "process":
            name = limit_id(each.limit.name, each.limit.fingerprint)
            sums.setdefault(name, _Seen(each.limit, name)).add(each)
    return sums


def _numbers(seen: Sequence[_Seen], sums: Mapping[str, _Seen]) -> dict[str, list[Any]]:
    """Return the counts of a report: the sum of each limit, and the most pressing keys."""
    keys = [each for each in seen if each.limit.scope != "process" and each.bucket not in sums]
    keys.sort(key=lambda each: (each.due_us, each.denials, each.units), reverse=True)
    limits, keys = list(sums.values())[:_MOST_REPORTED], keys[:_MOST_REPORTED]
    passed = [
        (f"{code} {each.bucket}", n)
        for each in limits
        for code, n in (("a", each.allowed), ("n", each.arrived), ("u", each.units))
    ]
    reported = [*limits, *keys]
    passed += [(f"s {each.bucket}", each.settled) for each in reported if each.settled]
    return {
        "keys": [[each.bucket, each.units, each.denials, each.due_us] for each in keys],
        "counts": [*passed, *(pair for each in reported for pair in each.reasons())],
        "rates": [[f"r {each.bucket}", rate] for each in limits if (rate := reported_rate(each.limit))],
        "waits": [[f"w {each.bucket}", each.wait_us] for each in reported if each.wait_us],
    }


def _moments(sums: Mapping[str, _Seen], partner_429s: Mapping[str, int]) -> dict[str, Moment]:
    """Return the additions to the history of each limit, for at most 100 limits."""
    found = {id: Moment(partner_429s=count) for id, count in partner_429s.items()}
    for each in list(sums.values())[:_MOST_REPORTED]:
        paused = each.denied["paused"]
        found[each.bucket] = Moment(
            each.units + each.settled,
            each.allowed,
            each.arrived,
            each.denials - paused,
            paused,
            partner_429s.get(each.bucket, 0),
            reported_rate(each.limit),
            -(-each.wait_us // 100_000),
        )
    return dict(list(found.items())[:_MOST_REPORTED])


def reported_rate(limit: Limit) -> int:
    """Return the rate in thousandths of a unit per minute; 0 for a concurrency limit, which has no rate."""
    return round(limit.amount * 60_000_000_000 / limit.period_us) if limit.period_us else 0


def reported_id(job_id: str) -> str:
    """Return *job_id* as it is reported: its first 200 characters, with "?" for a lone surrogate."""
    return job_id[:_LONGEST_JOB_ID].encode("utf-8", "replace").decode()


def _json(value: object) -> str:
    """Return JSON that every server can read. A lone surrogate from a message is written as "?"."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace").decode()


def _framework() -> str:
    """Return the worker's framework, from its command, otherwise from the imported adapter; "-" if unknown."""
    command = os.path.normpath(sys.argv[0] if sys.argv else "").split(os.sep)[-3:]
    named = [name for name in _FRAMEWORKS if name in command]
    return (named or [name for name in _FRAMEWORKS if f"throttlekit_{name}" in sys.modules] or ["-"])[0]
