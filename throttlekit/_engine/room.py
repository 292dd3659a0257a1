"""Hold the waiting jobs of a process: which of them may request units now, and when to look at their lists."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

from throttlekit._core.answer import Answer, Look
from throttlekit._core.claim import StoreClaim
from throttlekit._core.decide import bears_early
from throttlekit._core.waitlist import Wake

__all__ = ["AHEAD_US", "Room", "Stops"]

_T = TypeVar("_T")

_PERIOD_US, _SLOW_PERIOD_US, _LONGEST_PERIOD_US, _OWNER_PERIOD_US = 500_000, 5_000_000, 60_000_000, 300_000
"""
Wakes may be lost, so a process looks periodically at each list where its jobs wait: every .5 s, or every 5 s if the
limit is slow. If many processes have jobs on the list, each looks less often, so that together they look every .3 s,
but each at least once a minute. Simulated at 1/s, 200 processes make 11.6 operations a job, or 43 if each looks every
5 s.
"""
_NEVER_US = 2**62
_IDS_NAMED = 8
"""The number of first jobs whose ids a look names, to find jobs that the store does not know."""
AHEAD_US = 2_000
"""
A woken job makes its request this long before its time, because the request takes a while. A job of a window or a log
makes its request at its time, because an early request would be denied.
"""
_SAME_LOOK_US = 10_000
"""Requested looks whose times differ by less than this are one look."""
_LATER_US = 1_000_000
"""On a stopped list, jobs without a position make their next requests this long after jobs with a position."""


@dataclass(slots=True, eq=False)
class _Held(Generic[_T]):
    id: str
    item: _T
    bucket: str
    ahead_us: int
    at_us: int | None = None
    """The time when the job may request its units, or None while it waits."""
    until_us: int = _NEVER_US
    """The time when the job makes a request even if it was not woken."""

    @property
    def due_us(self) -> int:
        return min(_NEVER_US if self.at_us is None else self.at_us - self.ahead_us, self.until_us)


@dataclass(slots=True, eq=False)
class _List:
    """
    One list, as this process knows it.

    Attributes:
        ids: The jobs that the process holds.
        owners: The number of processes with jobs on the list.
        periodic_us: The time of the next periodic look.
        requested_us: The times of the looks that the store requested. A sooner look does not replace a later one.
    """

    claim: StoreClaim
    epoch: str = ""
    ids: dict[str, None] = field(default_factory=dict)
    owners: int = 1
    periodic_us: int = _NEVER_US
    requested_us: list[int] = field(default_factory=list)

    @property
    def look_us(self) -> int:
        return min((self.periodic_us, *self.requested_us))

    def period_us(self) -> int:
        """Return how often the process looks at the list."""
        if self.claim.algorithm.estimates:
            return _PERIOD_US
        unit_us = self.claim.algorithm.mark // 1000
        slow_us = max(_SLOW_PERIOD_US, unit_us, self.owners * _OWNER_PERIOD_US)
        return min(max(_PERIOD_US, 2 * self.owners * unit_us), slow_us, _LONGEST_PERIOD_US)


class Room(Generic[_T]):
    """
    Holds jobs that wait. The caller holds a lock, and all times are microseconds of the caller's clock.

    Args:
        ahead_us: A woken job is started this long before its time. At least `AHEAD_US`.
        early_us: It is started this much earlier if its request may be granted early (`bears_early`).
    """

    def __init__(self, ahead_us: int = AHEAD_US, early_us: int = 0) -> None:
        self._ahead_us, self._early_us = ahead_us, early_us
        self._held: dict[str, _Held[_T]] = {}
        self._lists: dict[str, _List] = {}
        self._ready: list[tuple[int, int, _Held[_T]]] = []
        self._busy: dict[str, int | None] = {}
        """The jobs that make a request or run, with the time of a wake that arrived in the meantime."""
        self._number = 0

    def __len__(self) -> int:
        return len(self._held)

    # Jobs

    def begin_request(self, id: str) -> None:
        """Record that a job makes a request or runs."""
        self._busy.setdefault(id, None)

    def done(self, id: str) -> None:
        """Record that a job neither makes a request nor runs nor waits."""
        self._busy.pop(id, None)

    def hold(
        self,
        id: str,
        item: _T,
        claim: StoreClaim,
        epoch: str,
        now_us: int,
        until_us: int | None = None,
        claims: Sequence[StoreClaim] = (),
    ) -> _T | None:
        """
        Hold a denied job, which waits on the list of *claim*. The claim is of one unit.

        Args:
            until_us: The time when the job makes a request even if it was not woken, because its longest wait is over.
            claims: All claims of the job. If one of them grants nothing early, the job makes its request at its time.

        Returns:
            The item that was held for this id before, if *item* is a second copy of its message.
        """
        before = self.release(id)
        known = self._lists.setdefault(claim.bucket, _List(claim, epoch))
        if not known.ids:
            known.periodic_us = now_us + known.period_us()
        if known.epoch != epoch:
            self._change_epoch(known, epoch, now_us)
        known.claim = claim
        known.ids[id] = None
        is_early = all(map(bears_early, claims or (claim,)))
        ahead_us = self._ahead_us + (self._early_us if is_early else -AHEAD_US)
        self._held[id] = held = _Held(id, item, claim.bucket, ahead_us)
        if until_us is not None:
            held.until_us = until_us
            self._push(held)
        at_us = self._busy.pop(id, None)
        if at_us is not None:
            self._wake(self._held[id], at_us)
        return None if before is item else before

    def release(self, id: str) -> _T | None:
        """Remove a job that no longer waits. Return its item."""
        held = self._held.pop(id, None)
        if held is None:
            return None
        known = self._lists.get(held.bucket)
        if known is not None:
            known.ids.pop(id, None)
            if not known.ids:
                known.periodic_us = _NEVER_US
                self._forget_idle(known)
        return held.item

    def hold_until(self, id: str, item: _T, at_us: int) -> _T | None:
        """Hold, until *at_us*, a job that waits on no list, or was woken and could not start. Return like `hold`."""
        before = self.release(id)
        self._busy.pop(id, None)
        self._held[id] = held = _Held(id, item, "", self._ahead_us)
        self._wake(held, at_us)
        return None if before is item else before

    def release_all(self) -> list[_T]:
        """Remove all waiting jobs. Return their items, in the order in which they arrived."""
        items = [held.item for held in self._held.values()]
        self._held.clear()
        self._ready.clear()
        self._lists.clear()
        return items

    def take_ready(self, now_us: int) -> tuple[str, _T, StoreClaim | None] | None:
        """
        Remove and return the first job that may make its request now, with the claim of one unit on whose list it
        waited. Return None if no job may make a request now.
        """
        while self._ready and self._ready[0][0] <= now_us:
            at_us, _, held = heapq.heappop(self._ready)
            if self._held.get(held.id) is held and held.due_us == at_us:
                unit = self.unit_of(held.bucket)
                self.release(held.id)
                self.begin_request(held.id)
                return held.id, held.item, unit
        return None

    # Wakes and looks

    def apply_answer(
        self, units: Sequence[StoreClaim], answer: Answer, now_us: int
    ) -> list[tuple[StoreClaim, list[str]]]:
        """
        Apply the wakes and looks of an answer to a request for *units*, of one unit each. Later looks use these claims:
        the limit may have changed since the waiting jobs made their requests. (A `Relay` forwards only answers with
        wakes or looks.) Return like `apply_wakes`, by claim.
        """
        for unit in units:
            if (known := self._lists.get(unit.bucket)) is not None:
                known.claim = unit
        for number, in_us in answer.looks:
            self.look_in(units[number], in_us, now_us)
        return [(units[number], self.apply_wakes([wake], now_us)) for number, wake in answer.wakes]

    def apply_wakes(self, wakes: Sequence[Wake], now_us: int) -> list[str]:
        """Apply wakes. Return the ids of woken jobs that this process does not know."""
        unknown: list[str] = []
        for id, in_us in wakes:
            held = self._held.get(id)
            if held is not None:
                self._wake(held, now_us + in_us)
            elif id in self._busy:
                self._busy[id] = now_us + in_us
            else:
                unknown.append(id)
        return unknown

    def look_in(self, claim: StoreClaim, in_us: int, now_us: int) -> None:
        """Schedule a look at the list of *claim*, of one unit, in *in_us*, even if this process has no jobs there."""
        known = self._lists.setdefault(claim.bucket, _List(claim))
        at_us = now_us + in_us
        if not any(abs(each - at_us) < _SAME_LOOK_US for each in known.requested_us):
            known.requested_us.append(at_us)

    def look_at_all(self, now_us: int) -> None:
        """Look now at every list where jobs wait."""
        for known in self._lists.values():
            known.requested_us.append(now_us)

    def request_first(self, now_us: int, but: Collection[str]) -> None:
        """
        Let the first job of each list, except the lists *but*, make a request, because the limit may have changed. The
        answer wakes other jobs. A list with a woken job is skipped, because that job makes its own request.
        """
        for bucket, known in self._lists.items():
            if bucket not in but and all(self._held[id].at_us is None for id in known.ids):
                self._request_again([*known.ids][:1], now_us)

    def waits_on(self, bucket: str) -> bool:
        """Whether jobs of this process wait on a list."""
        return bucket in self._lists and bool(self._lists[bucket].ids)

    def unit_of(self, bucket: str) -> StoreClaim | None:
        """Return the claim of one unit of a list, or None if this process does not know the list."""
        known = self._lists.get(bucket)
        return None if known is None else known.claim

    def due(self, now_us: int) -> list[tuple[StoreClaim, tuple[str, ...]]]:
        """Return the looks that are due now: the claims of their lists, and the ids of the first jobs that wait."""
        found: list[tuple[StoreClaim, tuple[str, ...]]] = []
        for known in list(self._lists.values()):
            if known.look_us > now_us:
                continue
            known.requested_us = [at_us for at_us in known.requested_us if at_us > now_us]
            known.periodic_us = now_us + known.period_us() if known.ids else _NEVER_US
            self._forget_idle(known)
            waiting = (id for id in known.ids if self._held[id].at_us is None)
            found.append((known.claim, tuple(islice(waiting, _IDS_NAMED))))
        return found

    def apply_look(self, claim: StoreClaim, look: Look, now_us: int) -> list[str]:
        """Apply the result of a look. Return like `apply_wakes`."""
        known = self._lists.get(claim.bucket)
        if known is not None:
            known.owners = max(1, look.owners)
            if known.epoch != look.epoch:
                self._change_epoch(known, look.epoch, now_us)
            self._request_again(look.again, now_us)
        if look.look_in_us is not None:
            self.look_in(claim, look.look_in_us, now_us)
        return self.apply_wakes(look.wakes, now_us)

    def next_us(self, *, with_ready: bool = True) -> int | None:
        """Return the time of the next look or, if *with_ready*, of the next job that may make its request."""
        while self._ready and self._held.get(self._ready[0][2].id) is not self._ready[0][2]:
            heapq.heappop(self._ready)
        ready = [self._ready[0][0]] if self._ready and with_ready else []
        return min((*ready, *(each.look_us for each in self._lists.values())), default=None)

    def _change_epoch(self, known: _List, epoch: str, now_us: int) -> None:
        """Record a new epoch. The store has lost a list that was known, so all its jobs make their requests again."""
        if known.epoch:
            self._request_again(known.ids, now_us)
        known.epoch = epoch

    def _request_again(self, ids: Sequence[str] | dict[str, None], now_us: int) -> None:
        for id in ids:
            held = self._held.get(id)
            if held is not None and held.at_us is None:
                self._wake(held, now_us)

    def _wake(self, held: _Held[_T], at_us: int) -> None:
        if held.at_us is None or at_us < held.at_us:
            held.at_us = at_us
            self._push(held)

    def _push(self, held: _Held[_T]) -> None:
        self._number += 1
        heapq.heappush(self._ready, (held.due_us, self._number, held))
        if len(self._ready) > 2 * len(self._held) + 100:  # stale entries keep the jobs' messages in memory
            current = [each for each in self._ready if self._held.get(each[2].id) is each[2]]
            self._ready = [each for each in current if each[0] == each[2].due_us]
            heapq.heapify(self._ready)

    def _forget_idle(self, known: _List) -> None:
        if not known.ids and not known.requested_us:
            self._lists.pop(known.claim.bucket, None)


@dataclass(slots=True, eq=False)
class _Stop:
    """
    One stopped list.

    Attributes:
        at_us: The time when its jobs make their next requests.
        ids: The jobs, in the order of their first requests, and whether each has a position.
        positions: The number of jobs with a position.
    """

    at_us: int
    ids: dict[str, bool] = field(default_factory=dict)
    positions: int = 0


class Stops:
    """
    The lists that are stopped by something unknown to the store, like an operator's pause, and their jobs.

    If jobs on such a list have a position, the process reports no free thread for the list to the store, and jobs
    without a position retry after the others. Otherwise these would be granted first.

    Attributes:
        lists: The stopped lists, by bucket.
    """

    def __init__(self) -> None:
        self.lists: dict[str, _Stop] = {}
        self._buckets: dict[str, str] = {}
        """The list of each stopped job."""

    def holds_positions(self, bucket: str) -> bool:
        """Whether a list is stopped, and jobs with a position are on it. If so, no job of the list may be woken."""
        stopped = self.lists.get(bucket)
        return stopped is not None and stopped.positions > 0

    def add(self, id: str, bucket: str, at_us: int, now_us: int, *, has_position: bool) -> int:
        """Record that a job waits on a stopped list. Return the time of its next request, that of the other jobs."""
        known = self.lists.get(bucket)
        has_position = has_position or (known is not None and known.ids.get(id, False))
        self.remove(id)
        stop = self.lists.setdefault(bucket, _Stop(at_us))
        if stop.at_us <= now_us:
            stop.at_us = at_us
        stop.ids[id] = has_position
        stop.positions += has_position
        self._buckets[id] = bucket
        return stop.at_us if has_position or not stop.positions else stop.at_us + _LATER_US

    def remove(self, id: str) -> None:
        """Forget a job that waits no longer on a stopped list. A list without jobs is stopped no longer."""
        bucket = self._buckets.pop(id, "")
        if (stop := self.lists.get(bucket)) is not None:
            stop.positions -= stop.ids.pop(id)
            if not stop.ids:
                del self.lists[bucket]

    def end(self, bucket: str) -> list[str]:
        """End the stop of a list. Return its jobs, in the order of their first requests."""
        stop = self.lists.pop(bucket, None)
        ids = [] if stop is None else [*stop.ids]
        for id in ids:
            del self._buckets[id]
        return ids

    def first_ids(self) -> list[str]:
        """Return the jobs of all stopped lists, except those that retry after others."""
        stops = self.lists.values()
        return [id for stop in stops for id, has_position in stop.ids.items() if has_position or not stop.positions]
