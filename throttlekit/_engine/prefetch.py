"""Spend prefetched units, which this process took in advance, and take more with its next request."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeAlias

from throttlekit._core.algorithms.gcra import Bucket
from throttlekit._core.algorithms.token_bucket import TokenBucket
from throttlekit._core.answer import Answer, Caller, Reason, Requester
from throttlekit._core.claim import StoreClaim
from throttlekit._core.decision import Decision
from throttlekit._core.job import Job
from throttlekit._core.limit.base import Limit
from throttlekit._core.local_quota import LocalQuota, PrefetchQuota
from throttlekit._core.wait_control import Charge
from throttlekit._engine.call import Call
from throttlekit._engine.claims import Attempt, Claim, decide_parts, decision_from
from throttlekit._engine.stores import Stores
from throttlekit._util.fork_safety import renew_lock_after_fork
from throttlekit.stores.base import Request
from throttlekit.stores.parts import Part

__all__ = ["Prefetcher"]

_Name: TypeAlias = "tuple[str, PrefetchQuota, Bucket]"
# The rate (`Bucket`) is part of the name, because the demand at an earlier rate does not show how much to take now.
_NOTHING = Answer(Reason.ALLOWED, 0, 0, 0, ())

_AHEAD = Requester(Caller.WITHOUT_JOB, max_wait_us=0)

_MOST_ENTRIES = 1024
"""The most entries per process. After that, the least recently refilled entry is evicted."""
_MOST_DENIED = 10_000
"""The most denied jobs that a process remembers."""


def _clock_us() -> Callable[[], int]:
    """Return a clock that runs while the machine sleeps, if available, so that units do not outlive their lease."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        clock, name = time.clock_gettime_ns, time.CLOCK_BOOTTIME
        return lambda: clock(name) // 1000
    return lambda: time.monotonic_ns() // 1000


class _Entry:
    """
    The prefetched units of one bucket, and the decision for calls that spend them: the store's decision when the units
    were taken.
    """

    __slots__ = ("ahead", "alias", "answer", "cost", "limit", "name", "passed", "quota", "stored", "units")

    def __init__(self, name: _Name, limit: Limit) -> None:
        self.name, self.limit, self.quota = name, limit, LocalQuota(name[1])
        self.stored = _NOTHING
        self.answer: Decision | None = None
        self.alias: object = None
        self.cost = self.passed = self.units = 0
        self.ahead: tuple[int, StoreClaim] | None = None


class _Held:
    """The entries of one process. A forked child begins with none."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.entries: dict[_Name, _Entry] = {}
        self.quick: dict[object, _Entry] = {}
        self.denied: dict[str, None] = {}
        """The denied jobs that no waker holds. They may have entries on waitlists."""


class Prefetcher:
    """
    Spends prefetched units, for limits with `prefetch`, and takes more of them with its requests to *stores*.

    A decision from prefetched units is the one that the store made when they were taken, up to `prefetch_for` ago:
    `remaining`, `reset_after` and `Charged.at_us` have the values of that time.
    """

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._clock_us = _clock_us()
        self._held = _Held()
        renew_lock_after_fork(self, "_held", _Held)

    def spend(self, call: Call) -> Decision | None:
        """
        Decide a simple call without resolving its claims. Such a call has one limit with a fixed cost, one rate, and
        the scope "global", and its job has not waited. Return None if the other layers must decide.

        Raises:
            ConfigurationError: The key cannot be resolved.
        """
        limits, job, key, cost, delivery, peek = call
        if len(limits) != 1 or cost is not None or peek:
            return None
        limit = limits[0]
        if type(limit) is not TokenBucket or limit.prefetch_quota is None:
            return None
        if job is not None and (type(job) is not Job or type(job.id) is not str or job.id in self._held.denied):
            return None
        if (waits := delivery.waits) is not None and (waits.denied or waits.waker.waited_of(call.id).denials):
            return None
        alias: object = limit.name
        if key is not None:
            alias = (alias, key) if type(key) is str else None
        elif limit.key is not None:
            alias = (alias, limit.key_of(call.real_job))
        held = self._held
        with held.lock:
            entry = held.quick.get(alias)
            if entry is not None and entry.limit is limit and entry.quota.spend(entry.cost, self._clock_us()):
                entry.passed += 1
                entry.units += entry.cost
                return entry.answer
        return None

    def decide(self, attempt: Attempt) -> Answer:
        """
        Spend prefetched units for the claims that have them, and send a request for the other claims. If that is
        denied, the spent units are available again. For a job that has waited, the request has all claims, because only
        the store removes the job's entries from waitlists.
        """
        if all(claim.limit.prefetch_quota is None for claim in attempt.claims):
            return self._stores.decide_in_calendar(attempt)
        answer, requester = self._decide(attempt), attempt.request.requester
        if requester.job and requester.caller is not Caller.PEEK and attempt.call.delivery.waits is None:
            self.note(requester.job, denied=not answer.allowed)
        return answer

    def note(self, id: str, *, denied: bool) -> None:
        """Record whether a job without a waker was denied: the store decides its next request."""
        held = self._held
        with held.lock:
            held.denied.pop(id, None)
            if denied:
                held.denied[id] = None
            if len(held.denied) > _MOST_DENIED:
                del held.denied[next(iter(held.denied))]

    def _decide(self, attempt: Attempt) -> Answer:
        if self._has_waited(attempt):
            return self.refill(attempt)
        parts: list[Part] = []
        rest: list[int] = []
        now_us, held = self._clock_us(), self._held
        with held.lock:
            for number, claim in enumerate(attempt.claims):
                name = _name(claim)
                entry = held.entries.get(name) if name is not None else None
                if entry is not None and _ready(entry.quota, claim.cost, now_us, attempt.request.requester.caller):
                    parts.append(Part(_Spent(held, entry, claim.cost), [number]))
                else:
                    rest.append(number)
        if not parts:
            return self.refill(attempt)
        return decide_parts(attempt, parts, rest, self.refill)

    def _has_waited(self, attempt: Attempt) -> bool:
        requester = attempt.request.requester
        return requester.waited.denials > 0 or requester.job in self._held.denied

    def take_grants(self) -> list[tuple[Limit, str, int, int]]:
        """
        Return the grants of `spend` since the last call: limit, bucket, jobs, units. An entry that was dropped in the
        meantime is not counted.
        """
        held = self._held
        with held.lock:
            passed = [(e.limit, e.name[0], e.passed, e.units) for e in held.entries.values() if e.passed]
            for entry in held.entries.values():
                entry.passed = entry.units = 0
        return passed

    @contextmanager
    def without(self, buckets: Iterable[str]) -> Generator[None, None, None]:
        """Drop the prefetched units of *buckets*, and, at the end, also those that arrived in the meantime."""
        names = set(buckets)
        self._forget(lambda name: name[0] in names)
        try:
            yield
        finally:
            self._forget(lambda name: name[0] in names)

    def close(self) -> None:
        """Drop all prefetched units, which are lost; see `throttlekit._core.local_quota`."""
        self._forget(lambda name: True)

    def _forget(self, meant: Callable[[_Name], bool]) -> None:
        held = self._held
        with held.lock:
            for entry in [each for each in held.entries.values() if meant(each.name)]:
                _drop(held, entry)

    def refill(self, attempt: Attempt) -> Answer:
        """Send *attempt*, with units to prefetch if that saves requests. If that is denied, retry without them."""
        claims, request = attempt.claims, attempt.request
        if request.requester.caller is Caller.PEEK:
            return self._stores.decide_in_calendar(attempt)
        held, sent_us, has_waited = self._held, self._clock_us(), self._has_waited(attempt)
        entries: dict[int, _Entry] = {}
        taking: dict[int, int] = {}
        with held.lock:
            for number, claim in enumerate(claims):
                if (name := _name(claim)) is None:
                    continue
                entry = entries[number] = _entry(held, name, claim.limit)
                # A job with a position may be granted ahead of others for its own cost only, so it prefetches nothing.
                if not has_waited and (units := entry.quota.units_to_prefetch(claim.cost, sent_us)):
                    taking[number] = units
                    entry.quota.begin(sent_us)
        if taking:
            try:
                enlarged = attempt._replace(request=_enlarge(request, entries, taking))
                answer = self._stores.decide_in_calendar(enlarged)
                self._record(held, claims, entries, taking, answer, sent_us)
            finally:
                for number in taking:
                    entries[number].quota.end_request()
            if answer.allowed:
                return answer
            sent_us = self._clock_us()
        answer = self._stores.decide_in_calendar(attempt)
        if not (has_waited and answer.allowed):  # prefetched units may be left, and their record stays
            self._record(held, claims, entries, {}, answer, sent_us)
        return answer

    def _record(
        self,
        held: _Held,
        claims: Sequence[Claim],
        entries: dict[int, _Entry],
        taking: dict[int, int],
        answer: Answer,
        sent_us: int,
    ) -> None:
        now_us = self._clock_us()
        with held.lock:
            for number, entry in entries.items():
                if held.entries.get(entry.name) is not entry:
                    continue  # the entry was dropped in the meantime, so the new units are lost
                claim, quota = claims[number], entry.quota
                use, at_us = answer.uses[number], answer.asked_us[number] if answer.asked_us else answer.now_us
                remaining = claim.limit.remaining(use, at_us) if use is not None else 0
                if number in taking and answer.allowed:
                    quota.record_lease(taking[number], claim.cost, sent_us, now_us, remaining)
                    entry.stored = Answer(Reason.ALLOWED, 0, at_us, at_us, (use,))
                    _enable_quick_spend(held, entry, claim)
                elif number in taking:
                    quota.record_refusal(sent_us)
                elif not taking and (answer.allowed or answer.claim == number):
                    quota.record_request(claim.cost, answer.allowed, sent_us, remaining)


class _Spent:
    """The prefetched units for one claim of a call, with the methods of a store that decides this part of the call."""

    def __init__(self, held: _Held, entry: _Entry, cost: int) -> None:
        self._held, self._entry, self._cost = held, entry, cost
        self._answer, self._until_us = entry.stored, entry.quota.until_us

    def decide(
        self, claims: Sequence[StoreClaim], requester: Requester, now_us: int | None = None, *, attempt: str = ""
    ) -> Answer:
        return self._answer

    def return_units(self, charges: Sequence[Charge], requester: Requester, now_us: int | None = None) -> None:
        """Put the units back, because another part of the call was denied."""
        with self._held.lock:
            self._entry.quota.put_back(self._cost, self._until_us)


def _ready(quota: LocalQuota, cost: int, now_us: int, caller: Caller) -> bool:
    return quota.has(cost, now_us) if caller is Caller.PEEK else quota.spend(cost, now_us)


def _name(claim: Claim) -> _Name | None:
    """Return the name of the entry from which *claim* is spent, or None if there is none."""
    lease = claim.limit.prefetch_quota
    if lease is None or claim.cost == 0:
        return None
    limit: Any = claim.limit
    return claim.claim.bucket, lease, limit.bucket


def _entry(held: _Held, name: _Name, limit: Limit) -> _Entry:
    """Return the entry of *name*, and make it the last one to be evicted."""
    entry = held.entries.pop(name) if name in held.entries else _Entry(name, limit)
    held.entries[name] = entry
    if len(held.entries) > _MOST_ENTRIES:
        _drop(held, next(iter(held.entries.values())))
    return entry


def _drop(held: _Held, entry: _Entry) -> None:
    entry.quota.empty()
    held.entries.pop(entry.name, None)
    held.quick.pop(entry.alias, None)


def _enable_quick_spend(held: _Held, entry: _Entry, claim: Claim) -> None:
    """Let `Prefetcher.spend` use the units that were just taken, if a call alone identifies the entry."""
    limit: Limit = claim.limit
    held.quick.pop(entry.alias, None)  # its old decision is from earlier units
    if limit.scope != "global" or limit.of_tier is not None or limit.by_value or claim.cost != limit.cost:
        return
    entry.cost, entry.limit, entry.alias = (
        claim.cost,
        limit,
        limit.name if limit.key is None else (limit.name, claim.key),
    )
    entry.answer = decision_from(entry.stored, [claim])
    held.quick[entry.alias] = entry


def _enlarge(request: Request, entries: dict[int, _Entry], taking: dict[int, int]) -> Request:
    """Return *request* with the units to prefetch. It is granted only if no job waits, and gets no position."""
    claims = list(request.claims)
    for number, units in taking.items():
        entry, claim = entries[number], claims[number]
        if entry.ahead is None or entry.ahead[0] != units:
            limit: Any = entry.limit
            algorithm = limit.bind_ahead(units)
            step = claim.step * units // max(1, claim.cost)
            entry.ahead = (units, replace(claim, algorithm=algorithm, cost=units, step=step))
        claims[number] = entry.ahead[1]
    return Request(claims, _AHEAD)
