"""
The waitlist of one limit and key: the order of the jobs, and which of them is woken next.

An entry has a position, an owner (the process that has the message), and one of three states:

* waiting: it is in the order. The first entry of an owner that does not listen is removed after `KEPT_US`.
* woken: its owner got a wake, with the time at which the job may request its units. The units are kept for the job
  until it requests them, at most until `PATIENCE_US` after that time. A wake charges nothing: a job is charged when it
  requests its units. If the job has not requested them after `WOKEN_US`, the entry is removed.
* kept: the job waits on the list of another limit. Its entry on this list keeps its position, but is not in the order.

Jobs that their framework returns after a delay have special owners: see late.py.

The order is by priority class, then by start tag, then by number. Start tags are those of start-time fair queueing
(Goyal, Vin and Cheng, "Start-Time Fair Queueing", 1996): a job starts at `max(v, its tenant's last finish)`, where v is
the start of the last job that passed, and finishes at start + cost / weight. If a job leaves the list without having
passed, the tenant's next job starts earlier by this cost / weight: a tenant whose jobs often expire falls behind no
other. Without shares all tags are equal, so jobs are in the order of their first denials.

Every time is an argument, in whole microseconds. decide.py calls this file. lua/throttlekit_lua/waitlist.lua mirrors
this file. Change both, or the parity tests fail.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from throttlekit._core.late import lateness_us
from throttlekit._core.slowdown import Pause, Slowdown

__all__ = [
    "DEAF",
    "FREE_UNKNOWN",
    "FUTURE_US",
    "KEPT_US",
    "LEAD_US",
    "PATIENCE_US",
    "TRIAL_US",
    "WOKEN_US",
    "Entry",
    "Owner",
    "Place",
    "Ring",
    "State",
    "Waitlist",
    "Wake",
    "WakeRules",
]

LEAD_US = 30_000
"""A job is woken this long before its unit is free. Simulated at 50/s, burst 1: use .975 with 10 ms, .988 with 30."""

PATIENCE_US = 250_000
"""A wake keeps units until this long after its time. Simulated at 1/s, 4 of 8 owners hung: use .95, with 1 s .60."""

FUTURE_US = 1_000_000
"""A time that is further in the future than this was written by a clock that was wrong."""

TRIAL_US = 1_000_000
"""After this time, a skipped owner with overdue wakes gets a trial wake. One without a free thread is only checked."""

_SPACING_US = 10_000
"""The shortest time between two looks that scripts request."""

_VOID_US = 20_000
"""If a requested look is overdue by this time, the look is requested again, from another process."""

WOKEN_US = 3_600_000_000
"""The time for which a woken job that has not requested its units keeps its position: an hour."""

KEPT_US = 172_800_000_000
"""The time for which all data except woken jobs is kept: two days."""

_MOST_AT_ONCE = 16
"""The most entries that one request wakes or removes, so that no script blocks the server for long."""

FREE_UNKNOWN = 999_999
"""The free threads of an owner if their number is unknown. It is known only while the owner has jobs in the order."""

DEAF = -1
"""The value of `Owner.free` for an owner that does not listen on its channel."""

_FIRST_TAG, _LAST_TAG = 1, 2**53 - 2
"""All tags are exact in a double. Jobs with the last tag are in the order of their first denials."""


class State(Enum):
    """The state of an entry."""

    WAITING = "waiting"
    WOKEN = "woken"
    KEPT = "kept"


class Place(NamedTuple):
    """A position. Places compare in the order of the list."""

    rank: int
    """The priority class; 0 is the first."""
    tag: int
    number: int


class Wake(NamedTuple):
    """A message to an owner: the job *id* may request its units in *in_us* microseconds."""

    id: str
    in_us: int


Ring = Callable[[str, Wake | None], bool]
"""Sends a wake to an owner; with None, only checks the owner's channel. Returns whether the owner listens."""


@dataclass(slots=True, eq=False)
class Entry:
    """
    One job on the list.

    Attributes:
        until_us: The time at which the entry is removed, or None if there is no such time. For a waiting entry, this is
            the end of the job's longest wait.
        at_us: While it is woken, the time for which it was woken. While it is kept, the end of its turn, or 0 if it has
            none. A job has a turn if it was woken on this list, and then a less scarce limit denied it.
        counts: Whether units are kept for the woken job. False for a trial wake.
        workflow: The workflow that will hold the slot; "" if the job itself will.
        step: The amount that the entry added to its tenant's finish.
        since_us, denials: The time of the job's first denial, and the number of its denials.
    """

    id: str
    place: Place
    cost: int
    owner: str
    state: State = State.KEPT
    until_us: int | None = None
    at_us: int = 0
    counts: bool = False
    workflow: str = ""
    tenant: str = ""
    step: int = 0
    since_us: int = 0
    denials: int = 0


@dataclass(slots=True, eq=False)
class Owner:
    """
    A process, and the entries of the jobs whose messages it holds.

    Attributes:
        waiting: Its entries in the order, by place.
        woken: Its entries that were woken, by the time of the wake.
        free: The number of its free threads, while it has jobs in the order; or `DEAF`, or `FREE_UNKNOWN`. If no thread
            is free, minus the time at which the owner was last known to listen.
    """

    name: str
    waiting: list[tuple[Place, str]] = field(default_factory=list)
    woken: list[tuple[int, str]] = field(default_factory=list)
    free: int = FREE_UNKNOWN


class WakeRules(NamedTuple):
    """
    The properties of the limit that `Waitlist.wake` needs.

    Attributes:
        ready_us: Returns the earliest time at which a number of units is free, if no other job passes.
        window: The most woken jobs that an owner may have at a time.
        lead_us: A job is woken this long before its units are free. None for slots: only a release makes them free.
        keeps: Returns whether a number of units may be kept for jobs that return late.
        mark_ns: The time of one unit, at the limit's rate.
    """

    ready_us: Callable[[int], int]
    window: int
    lead_us: int | None
    keeps: Callable[[int], bool]
    mark_ns: int


@dataclass(slots=True, eq=False)
class Waitlist:
    """
    Attributes:
        epoch: The name of this list. If the store loses its state, the new list has another name.
        number: The number of the entry that was added last.
        v: The start tag of the last job that passed.
        look_us: The time for which the last look at the list was requested.
        finishes: The start tag of each tenant's next job, if it is greater than v.
        ends: The entries that have an `until_us`, sorted by it.
        turns: The entries that have a turn, sorted by the end of the turn.
        next_retry_us: The earliest retry time of the next caller without a position. So retry times differ.
        pause, slow: The pause and the slow-down of the limit, if there are any.
    """

    epoch: str = ""
    number: int = 0
    v: int = _FIRST_TAG
    look_us: int = 0
    next_retry_us: int = 0
    entries: dict[str, Entry] = field(default_factory=dict)
    owners: dict[str, Owner] = field(default_factory=dict)
    finishes: dict[str, int] = field(default_factory=dict)
    ends: list[tuple[int, str]] = field(default_factory=list)
    turns: list[tuple[int, str]] = field(default_factory=list)
    pause: Pause = field(default_factory=Pause)
    slow: Slowdown | None = None

    @property
    def is_plain(self) -> bool:
        """Whether there is neither a pause nor a slow-down, and no caller has a retry time."""
        return self.pause == Pause() and self.slow is None and not self.next_retry_us

    def without_jobs(self) -> Waitlist:
        """Return a list with only the pause, slow-down and retry time of this one."""
        return Waitlist(next_retry_us=self.next_retry_us, pause=self.pause, slow=self.slow)

    # Positions

    def new_place(self, tenant: str, step: int, rank: int, *, first: bool) -> tuple[Place, int]:
        """
        Return the position of a new job, and the amount that the job adds to its tenant's finish.

        Args:
            step: The job's cost / weight; 0 without shares.
            first: Whether the job has run before. Then it is ahead of the jobs of its class that have not run.
        """
        self.number += 1
        if first:
            return Place(rank, max(0, self.v - 1) if step else 0, self.number), 0
        if not step:
            return Place(rank, _FIRST_TAG, self.number), 0
        tag = max(self.v, self.finishes.get(tenant, 0))
        self.finishes[tenant] = min(tag + step, _LAST_TAG)
        return Place(rank, tag, self.number), self.finishes[tenant] - tag

    def pass_entry(self, entry: Entry) -> None:
        """Remove an entry whose job was admitted."""
        if entry.place.tag > self.v:
            self.v = entry.place.tag
            self.finishes = {tenant: tag for tenant, tag in self.finishes.items() if tag > self.v}
        self._change(entry, None, entry.owner, None)

    def rank_of(self, place: Place, now_us: int) -> int:
        """Return the number of jobs that wait before *place*, without those of skipped owners."""
        before = 0
        for owner in self._by_head():
            if owner.waiting[0][0] >= place:
                break
            if not _is_skipped(owner, now_us):
                before += bisect_left(owner.waiting, (place, ""))
        return before

    # States

    def enter(self, entry: Entry, owner: str, until_us: int | None) -> None:
        """Put an entry of *owner* into the order. An entry that is already in the order keeps its position."""
        self._change(entry, State.WAITING, owner, until_us)

    def keep(self, entry: Entry, owner: str, until_us: int, turn_us: int = 0) -> None:
        """Keep the position of an entry that no longer waits here, and its turn if *turn_us* is not 0."""
        self._change(entry, State.KEPT, owner, until_us, turn_us)

    def forget(self, entry: Entry) -> None:
        """Remove an entry whose job was not admitted, and subtract its step from its tenant's finish."""
        self._change(entry, None, entry.owner, None)
        if entry.step and entry.tenant in self.finishes:
            finish = self.finishes.pop(entry.tenant) - entry.step
            if finish > self.v:
                self.finishes[entry.tenant] = finish

    def drop_ended(self, now_us: int) -> bool:
        """Remove entries whose `until_us` has passed. Return False if there may be more of them."""
        ended = self.ends[: bisect_left(self.ends, (now_us + 1, ""))][:_MOST_AT_ONCE]
        for _, id in ended:
            entry = self.entries[id]
            self.forget(entry)
            if (owner := self.owners.get(entry.owner)) is not None and owner.free == DEAF:  # dead, perhaps for days
                first = self.entries[owner.waiting[0][1]]
                self.enter(first, owner.name, first.until_us or max(now_us, first.since_us + KEPT_US))
        return len(ended) < _MOST_AT_ONCE

    def set_free(self, name: str, free: int, now_us: int) -> None:
        """Record the number of free threads of an owner that listens, if it has jobs in the order."""
        if name in self.owners and self.owners[name].waiting:
            self.owners[name].free = free if free > 0 else -now_us

    def woken_of(self, name: str) -> list[tuple[int, str]]:
        """Return the woken entries of an owner, sorted by the time of the wake."""
        return list(self.owners[name].woken) if name in self.owners else []

    def _change(self, entry: Entry, state: State | None, owner: str, until_us: int | None, at_us: int = 0) -> None:
        """Change an entry, or add it if it is new. If *state* is None, remove it."""
        before = entry.owner
        for items, item in self._files_of(entry):
            del items[bisect_left(items, item)]
        entry.state, entry.owner, entry.until_us = state or State.KEPT, owner, until_us
        entry.at_us, entry.counts = at_us, False
        for items, item in self._files_of(entry):
            insort(items, item)
        if state is None:
            del self.entries[entry.id]
        else:
            self.entries[entry.id] = entry
        was = self.owners.get(before)
        if was is not None and not was.waiting:
            was.free = FREE_UNKNOWN
            if not was.woken:
                del self.owners[before]

    def _files_of(self, entry: Entry) -> Iterator[tuple[list[Any], tuple[Any, str]]]:
        """Yield the sorted lists that contain an entry, each with the item that represents the entry there."""
        if entry.until_us is not None:
            yield self.ends, (entry.until_us, entry.id)
        if entry.state is State.WAITING:
            yield self._owner(entry.owner).waiting, (entry.place, entry.id)
        elif entry.state is State.WOKEN:
            yield self._owner(entry.owner).woken, (entry.at_us, entry.id)
        elif entry.at_us:
            yield self.turns, (entry.at_us, entry.id)

    def _owner(self, name: str) -> Owner:
        return self.owners.setdefault(name, Owner(name))

    # Wakes

    def head(self, now_us: int, *, late: bool = True) -> tuple[list[Owner], Owner | None]:
        """
        Return the skipped owners, and the owner of the first job that is not theirs. If *late* is false, owners whose
        jobs return after a delay are skipped too.

        An owner with a full window of wakes is not skipped if no wake is overdue. The jobs of other owners wait until
        one of its woken jobs has requested its units, so that jobs pass in their order.
        """
        skipped: list[Owner] = []
        for owner in self._by_head():
            if not _is_skipped(owner, now_us) and (late or not lateness_us(owner.name)):
                return skipped, owner
            skipped.append(owner)
        return skipped, None

    def comes_first(self, now_us: int) -> bool:
        """Whether a waiting job is ahead of a new job. False if many woken jobs are overdue: a purge is likely then."""
        owner = self.head(now_us)[1]
        return owner is not None and _count_overdue(owner, now_us) < _MOST_AT_ONCE

    def units_held(self, now_us: int) -> int:
        """Return the number of units that are kept for woken jobs until they request them, and for jobs with a turn."""
        return sum(entry.cost for _, entry in self._find_held(now_us))

    def units_held_late(self, now_us: int) -> int:
        """Return how many of the `units_held` are kept for jobs that return after a delay."""
        late = (each for _, each in self._find_held(now_us) if each.state is State.WOKEN and lateness_us(each.owner))
        return sum(entry.cost for entry in late)

    def count_expected(self, owner: str, now_us: int) -> int:
        """Return the number of woken jobs that are not overdue, for an owner whose jobs return after a delay."""
        woken = self.woken_of(owner)
        last, first = now_us + FUTURE_US + 1, now_us - lateness_us(owner)
        return bisect_left(woken, (last, "")) - bisect_left(woken, (first, ""))

    def wake(self, rules: WakeRules, now_us: int, ring: Ring, *, waits: bool = False) -> int | None:
        """
        Wake the first jobs, as long as there are units for them that are not kept for other jobs. If the requesting job
        *waits* on this list, and no unit is free soon, only compute the time of the next look.

        Returns:
            The time at which a process should look at this list, or None if no look is needed.
        """
        again_us = None if self.drop_ended(now_us) else now_us + _SPACING_US
        if now_us < self.pause.until_us:
            return again_us or self.pause.until_us
        if waits and rules.lead_us is not None and (look_us := rules.ready_us(1) - rules.lead_us) > now_us:
            return again_us or look_us
        taken, kept, next_us, tried, late = self.units_held(now_us), self.units_held_late(now_us), None, 0, True
        while True:
            skipped, owner = self.head(now_us, late=late)
            if owner is None or tried == _MOST_AT_ONCE:
                break
            lateness = lateness_us(owner.name)
            if not lateness and len(owner.woken) >= rules.window:
                next_us = owner.woken[0][0] + PATIENCE_US
                break
            entry = self.entries[owner.waiting[0][1]]
            keeps = not lateness or rules.keeps(kept + entry.cost)
            ready_us = rules.ready_us(entry.cost + (taken if keeps else 0))
            at_us = ready_us if keeps else _wake_late_at_us(owner, entry.cost * rules.mark_ns // 1000, ready_us, now_us)
            if max(at_us, ready_us) > now_us + (rules.lead_us or 0):
                if not keeps:
                    late = False
                    continue
                next_us = None if rules.lead_us is None else at_us - rules.lead_us
                break
            tried += 1
            if self._wake(entry, at_us, now_us, ring, counts=keeps) and keeps:
                taken += entry.cost
                kept += entry.cost if lateness else 0
        held = list(self._find_held(now_us))
        woken = [until_us for until_us, each in held if each.state is State.WOKEN and not lateness_us(each.owner)]
        if next_us is not None and woken:
            # Each of these jobs makes a request, and every request is also a look at the list.
            next_us = max(next_us, max(woken) - PATIENCE_US + _SPACING_US)
        self._check_skipped(skipped, now_us, ring)
        if owner is None and not skipped:
            return again_us
        if tried == _MOST_AT_ONCE:
            again_us = now_us + _SPACING_US
        times = [next_us, again_us, *(until_us for until_us, _ in held)]
        return min((at_us for at_us in times if at_us is not None), default=None)

    def _check_skipped(self, skipped: list[Owner], now_us: int, ring: Ring) -> None:
        """Check whether skipped owners still listen: a process may be dead, or may have lost all its wakes."""
        for each in (owner for owner in skipped if not lateness_us(owner.name)):
            first = self.entries[each.waiting[0][1]]
            if each.free == DEAF:  # no wake will reach its entries
                self.enter(first, each.name, first.until_us or now_us + KEPT_US)
            elif each.free < DEAF:
                if TRIAL_US - each.free < now_us:
                    each.free = -now_us if ring(each.name, None) else DEAF
            elif each.free > 0 and each.woken[-1][0] + TRIAL_US < now_us:
                self._wake(first, now_us, now_us, ring, counts=False)

    def wake_workflow(self, workflow: str, now_us: int, ring: Ring) -> None:
        """Wake jobs of a workflow that holds its slot: they need no other slot. Each grant wakes more of them."""
        waiting = [e for e in self.entries.values() if e.state is State.WAITING and e.workflow == workflow]
        for entry in sorted(waiting, key=lambda entry: entry.place)[:_MOST_AT_ONCE]:
            self._wake(entry, now_us, now_us, ring, counts=False)

    def next_look(self, at_us: int | None, now_us: int, *, by_job: bool) -> int | None:
        """
        Request a look at *at_us* if no look was requested for an earlier time. Return the delay, or None.

        A job's request (*by_job*) always gets a look that is later than the end of any wake that a process gets now,
        because the process of the earlier look may hang.
        """
        if at_us is None:
            return None
        at_us = max(at_us, now_us + _SPACING_US)
        is_far = by_job and at_us > now_us + LEAD_US + PATIENCE_US
        if now_us - _VOID_US <= self.look_us <= at_us and not is_far:
            return None
        self.look_us = at_us
        return at_us - now_us

    def _by_head(self) -> list[Owner]:
        """Return the owners with jobs in the order, sorted by their first jobs."""
        return sorted((owner for owner in self.owners.values() if owner.waiting), key=lambda owner: owner.waiting[0])

    def _find_held(self, now_us: int) -> Iterator[tuple[int, Entry]]:
        """Return each entry for which units are kept, because it is woken or has a turn, after the end of that time."""
        untils = [(turn_us, self.entries[id]) for turn_us, id in self.turns]
        for owner in self.owners.values():
            for_us = min(lateness_us(owner.name), FUTURE_US) or PATIENCE_US
            recent = owner.woken[bisect_left(owner.woken, (now_us - for_us + 1, "")) :]
            untils += [(at_us + for_us, self.entries[id]) for at_us, id in recent if self.entries[id].counts]
        return (each for each in untils if now_us < each[0] <= now_us + FUTURE_US + PATIENCE_US)

    def _wake(self, entry: Entry, at_us: int, now_us: int, ring: Ring, *, counts: bool) -> bool:
        """Wake an entry. Return whether its owner listens."""
        owner = self.owners[entry.owner]
        if not lateness_us(owner.name) and not ring(owner.name, Wake(entry.id, at_us - now_us)):
            owner.free = DEAF
            return False
        self._change(entry, State.WOKEN, owner.name, at_us + WOKEN_US, at_us)
        entry.counts = counts
        return True


def _count_overdue(owner: Owner, now_us: int) -> int:
    """Return the number of overdue woken jobs of an owner whose jobs return after a delay; 0 for other owners."""
    late_us = lateness_us(owner.name)
    return bisect_left(owner.woken, (now_us - late_us, "")) if late_us else 0


def _wake_late_at_us(owner: Owner, pace_us: int, ready_us: int, now_us: int) -> int:
    """
    Return when to wake the first job of *owner*, whose jobs return late, if no unit can be kept for it. Such jobs are
    woken at the limit's pace, as if all jobs before them had been admitted. Some of them never return, so another job
    is woken at once for each overdue one, and wakes that are more than `TRIAL_US` behind the pace catch up.
    """
    overdue = _count_overdue(owner, now_us)
    if overdue > bisect_left(owner.woken, (now_us + FUTURE_US + 1, "")) - overdue:
        return ready_us
    last_us = owner.woken[-1][0] if owner.woken else now_us + FUTURE_US + 1
    if last_us > now_us + FUTURE_US:
        return ready_us
    at_us = last_us + pace_us
    return at_us if at_us < now_us - TRIAL_US else max(at_us, ready_us)


def _is_skipped(owner: Owner, now_us: int) -> bool:
    """Whether each free thread of an owner has a wake, or its first wake is overdue or was written by a wrong clock."""
    if lateness_us(owner.name):
        return False
    if not owner.woken:
        return owner.free <= 0
    first_us = owner.woken[0][0]
    return len(owner.woken) >= owner.free or not first_us - FUTURE_US <= now_us < first_us + PATIENCE_US
