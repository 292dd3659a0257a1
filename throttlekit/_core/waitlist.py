"""
The jobs that wait for one limit and key: in which order, and which of them is woken next.

An entry has a position, an owner (the process that has the message), and one of three states:

* waiting: it is in the order.
* woken: its owner was told to let it ask, at an instant. Until it asks, or that instant is `PATIENCE_US` past, its
  units are not given to others. Waking charges nothing: a job is charged when it asks. If it has not asked after
  `WOKEN_US`, it is removed.
* kept: it is not in the order, and only its position is known, by the job's id: it waits for another limit.

Jobs that their framework brings back after a delay have owners of their own: see late.py.

The order is by class of priority, then by start tag, then by number. Start tags are those of start-time fair queueing
(Goyal, Vin and Cheng, "Start-Time Fair Queueing", 1996): a job starts at `max(v, its tenant's last finish)`, where v is
the start of the last job that passed, and finishes at start + cost / weight. A job that leaves the list without
having passed gives its cost / weight back: its tenant's next job starts that much earlier. Without shares all tags are
equal.

Example: a tenant's jobs start at 0, 1, 2 and 3, so its next one starts at 4. Two of them expire: its next one starts
at 2. Without that rule, a tenant whose jobs expire would start ever further behind the others, and get nothing.

Times are whole microseconds, and arguments. decide.py decides with it. lua/throttlekit_lua/waitlist.lua mirrors this
file. Change both, or the parity tests fail.
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
    "DEAF", "FREE_UNKNOWN", "FUTURE_US", "GUESTS_US", "KEPT_US", "LEAD_US", "MOST_AT_ONCE", "PATIENCE_US",
    "PROBE_US", "SPACING_US", "TURN_US", "VOID_US", "WOKEN_US", "Entry", "Owner", "Place", "Ring", "State",
    "Waitlist", "Wake", "WakeRules",
]  # fmt: skip

LEAD_US = 30_000
"""How long before its unit comes a job is woken. Simulated at 50/s, burst 1: 10 ms use .975, 30 ms .988."""

PATIENCE_US = 250_000
"""How long after its instant a wake counts. Simulated with 4 of 8 owners hung at 1/s: .25 s use .95, 1 s .60."""

TURN_US = 1_000_000
"""How long a turn in a limit counts while a less scarce one holds the job back."""

FUTURE_US = 1_000_000
"""What counts from further ahead than this was written by a clock that was wrong."""

PROBE_US = 1_000_000
"""
An owner is probed if all its wakes, the last probe among them, are overdue by this; one without a free thread if it was
not known to listen for so long.
"""

SPACING_US = 10_000
"""The shortest time between two looks that a script asks for."""

VOID_US = 20_000
"""So long after its instant a look that was asked for is asked for again, of another process."""

WOKEN_US = 3_600_000_000
"""How long the position of a job is kept that was woken and has not asked: an hour."""

KEPT_US = 172_800_000_000
"""How long everything else is kept: two days."""

MOST_AT_ONCE = 16
"""How many entries one question tries to wake, or drops: no script may hold the server for long."""

GUESTS_US = 60_000_000
"""Over at most this time callers that keep no position are spread: they may never come back."""

FREE_UNKNOWN = 999_999
"""The free threads of an owner that has not told them. They are known only while it has jobs in the order."""

DEAF = -1
"""The free threads of an owner that does not listen on its channel."""

_FIRST_TAG, _LAST_TAG = 1, 2**53 - 2
"""All tags are exact in a double. Beyond the last, jobs are in the order in which they came."""


class State(Enum):
    """What an entry does."""

    WAITING = "waiting"
    WOKEN = "woken"
    KEPT = "kept"


class Place(NamedTuple):
    """A position. Places compare in the order of the list."""

    rank: int
    """The class of priority; 0 is the first."""
    tag: int
    number: int


class Wake(NamedTuple):
    """That job may ask, in so many microseconds."""

    id: str
    in_us: int


Ring = Callable[[str, Wake | None], bool]
"""Sends a wake to an owner, or nothing to see whether it listens. Returns whether it does."""


@dataclass(slots=True, eq=False)
class Entry:
    """
    One job on the list.

    Attributes:
        until_us: While it waits, when it no longer wants to; while it is woken or kept, when its position is forgotten.
            None: never.
        at_us: The instant for which it was woken; while it is kept, until when its turn counts; 0: it has no turn. It
            has one while a less scarce limit holds the job back, which was woken here.
        counts: Whether its wake takes units from others: not if its owner was only probed.
        workflow: The workflow that is to hold its slot; "": the job does.
        step: How far it moved its tenant's finish on.
        since_us, denials: When the job was first denied, and how often it was denied.
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
    Who has the messages of some entries.

    Attributes:
        waiting: Its entries in the order, by place.
        woken: Its entries that were woken, by when.
        free: How many of its threads are free, while it has jobs in the order; `DEAF`, `FREE_UNKNOWN`. No thread is
            free: minus the time at which it was last known to listen.
    """

    name: str
    waiting: list[tuple[Place, str]] = field(default_factory=list)
    woken: list[tuple[int, str]] = field(default_factory=list)
    free: int = FREE_UNKNOWN


class WakeRules(NamedTuple):
    """
    What `Waitlist.wake` has to know of the limit.

    Attributes:
        ready_us: The earliest instant at which so many units are there, if no other job passes.
        window: How many wakes an owner may have that have not asked.
        lead_us: How long before its units come a job is woken; None: no clock shows when they come, and somebody gives
            them back.
        keeps: Whether so many units may be kept for jobs that come late.
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
        epoch: Names this list: one that begins anew, after a loss of the store's state, has another.
        number: The last number that was given.
        v: The start tag of the last job that passed.
        look_us: For when a process was asked to look.
        finishes: Where each tenant's next job would start, if beyond v.
        ends: The entries that end by themselves, by when.
        turns: The entries that have a turn, by when it ends.
        guest_us: When the next caller that keeps no position is to ask again, so that they do not all come at once.
        pause, slow: What stops all jobs, or slows the limit down, for a while.
    """

    epoch: str = ""
    number: int = 0
    v: int = _FIRST_TAG
    look_us: int = 0
    guest_us: int = 0
    entries: dict[str, Entry] = field(default_factory=dict)
    owners: dict[str, Owner] = field(default_factory=dict)
    finishes: dict[str, int] = field(default_factory=dict)
    ends: list[tuple[int, str]] = field(default_factory=list)
    turns: list[tuple[int, str]] = field(default_factory=list)
    pause: Pause = field(default_factory=Pause)
    slow: Slowdown | None = None

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing on it but jobs."""
        return self.pause == Pause() and self.slow is None and not self.guest_us

    def without_jobs(self) -> Waitlist:
        """What stays if no job is on it."""
        return Waitlist(guest_us=self.guest_us, pause=self.pause, slow=self.slow)

    # Positions

    def new_place(self, tenant: str, step: int, rank: int, *, first: bool) -> tuple[Place, int]:
        """
        Return the position of a new job, and how far it moves its tenant's finish on.

        Args:
            step: Cost / weight; 0 without shares.
            first: The job ran before, and goes in front of those of its class that did not.
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
        """Remove an entry whose job has passed."""
        if entry.place.tag > self.v:
            self.v = entry.place.tag
            self.finishes = {tenant: tag for tenant, tag in self.finishes.items() if tag > self.v}
        self._change(entry, None, entry.owner, None)

    def rank_of(self, place: Place, now_us: int) -> int:
        """How many jobs of owners that are not skipped wait before *place*."""
        before = 0
        for owner in self._by_head():
            if owner.waiting[0][0] >= place:
                break
            if not _skipped(owner, now_us):
                before += bisect_left(owner.waiting, (place, ""))
        return before

    @property
    def waiting(self) -> int:
        """How many jobs are in the order."""
        return sum(len(owner.waiting) for owner in self.owners.values())

    # States

    def enter(self, entry: Entry, owner: str, until_us: int | None) -> None:
        """Put an entry into the order, among those of *owner*. One that is there already keeps its position."""
        self._change(entry, State.WAITING, owner, until_us)

    def keep(self, entry: Entry, owner: str, until_us: int, turn_us: int = 0) -> None:
        """Keep the position of an entry, which waits here no longer; and its turn, if *turn_us* is not 0."""
        self._change(entry, State.KEPT, owner, until_us, turn_us)

    def forget(self, entry: Entry) -> None:
        """Remove an entry whose job has not passed, and give back what it moved its tenant's finish on."""
        self._change(entry, None, entry.owner, None)
        if entry.step and entry.tenant in self.finishes:
            finish = self.finishes.pop(entry.tenant) - entry.step
            if finish > self.v:
                self.finishes[entry.tenant] = finish

    def drop_ended(self, now_us: int) -> bool:
        """Remove entries that no longer want to wait, or were kept or woken for too long. False: there may be more."""
        ended = self.ends[: bisect_left(self.ends, (now_us + 1, ""))][:MOST_AT_ONCE]
        for _, id in ended:
            self.forget(self.entries[id])
        return len(ended) < MOST_AT_ONCE

    def tell(self, name: str, free: int, now_us: int) -> None:
        """Note how many threads of an owner are free, if it has jobs in the order. It listens."""
        if name in self.owners and self.owners[name].waiting:
            self.owners[name].free = free if free > 0 else -now_us

    def woken_of(self, name: str) -> list[tuple[int, str]]:
        """The entries of an owner that were woken, by the instant."""
        return list(self.owners[name].woken) if name in self.owners else []

    def _change(
        self, entry: Entry, state: State | None, owner: str, until_us: int | None, at_us: int = 0, *,
        counts: bool = False,
    ) -> None:  # fmt: skip
        """Change an entry, which may be new. *state* None: remove it."""
        before = entry.owner
        for items, item in self._files_of(entry):
            del items[bisect_left(items, item)]
        entry.state, entry.owner, entry.until_us = state or State.KEPT, owner, until_us
        entry.at_us, entry.counts = at_us, counts
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
        """The sorted lists that name an entry, and how."""
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

    # Who is next

    def head(self, now_us: int, *, late: bool = True) -> tuple[list[Owner], Owner | None]:
        """
        The owner of the first job in the order, and before it those that are skipped. Without *late*, so are those
        whose jobs come back by a delay.

        An owner with a full window of wakes is not skipped as long as none of them is overdue: the others wait until it
        has answered one, so that jobs pass in their order.
        """
        skipped: list[Owner] = []
        for owner in self._by_head():
            if not _skipped(owner, now_us) and (late or not lateness_us(owner.name)):
                return skipped, owner
            skipped.append(owner)
        return skipped, None

    def comes_first(self, now_us: int) -> bool:
        """Whether a job passes before one that just asks. Not if so many did not come that they seem to be purged."""
        owner = self.head(now_us)[1]
        return owner is not None and _missed(owner, now_us) < MOST_AT_ONCE

    def taken(self, now_us: int) -> int:
        """Units of the wakes that have not asked and count, and of the turns that count."""
        return sum(entry.cost for _, entry in self._held(now_us))

    def kept_late(self, now_us: int) -> int:
        """Of these, the units that are kept for jobs that come back by a delay."""
        return sum(entry.cost for _, entry in self._held(now_us) if _is_woken_late(entry))

    def expected(self, owner: str, now_us: int) -> int:
        """How many jobs that come back by a delay were woken, and should come yet."""
        woken = self.woken_of(owner)
        last, first = now_us + FUTURE_US + 1, now_us - lateness_us(owner)
        return bisect_left(woken, (last, "")) - bisect_left(woken, (first, ""))

    def wake(self, rules: WakeRules, now_us: int, ring: Ring) -> int | None:
        """
        Wake the first jobs, while there are units for them beyond those of the jobs that were woken before.

        Returns:
            The instant at which somebody should look at this list; None: nobody needs to.
        """
        again_us = None if self.drop_ended(now_us) else now_us + SPACING_US
        if now_us < self.pause.until_us:
            return again_us or self.pause.until_us
        taken, kept, next_us, tried, late = self.taken(now_us), self.kept_late(now_us), None, 0, True
        while True:
            skipped, owner = self.head(now_us, late=late)
            if owner is None or tried == MOST_AT_ONCE:
                break
            lateness = lateness_us(owner.name)
            if not lateness and len(owner.woken) >= rules.window:
                next_us = owner.woken[0][0] + PATIENCE_US
                break
            entry = self.entries[owner.waiting[0][1]]
            keeps = not lateness or rules.keeps(kept + entry.cost)
            ready_us = rules.ready_us(entry.cost + (taken if keeps else 0))
            at_us = ready_us if keeps else _unkept_us(owner, entry.cost * rules.mark_ns // 1000, ready_us, now_us)
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
        held = list(self._held(now_us))
        woken = [until_us for until_us, each in held if each.state is State.WOKEN and not lateness_us(each.owner)]
        if next_us is not None and woken:
            next_us = max(next_us, max(woken) - PATIENCE_US + SPACING_US)  # each of them looks itself, as it asks
        self._probe(skipped, now_us, ring)
        if owner is None and not skipped:
            return again_us
        if tried == MOST_AT_ONCE:
            again_us = now_us + SPACING_US
        lapses = [until_us for until_us, _ in held]
        return min((at_us for at_us in (next_us, again_us, *lapses) if at_us is not None), default=None)

    def _probe(self, skipped: list[Owner], now_us: int, ring: Ring) -> None:
        """See whether owners that are skipped listen: they may be dead, or all their wakes may be lost."""
        for each in skipped:
            if lateness_us(each.name):
                continue
            if each.free < DEAF:
                if PROBE_US - each.free < now_us:
                    each.free = -now_us if ring(each.name, None) else DEAF
            elif each.free > 0 and each.woken[-1][0] + PROBE_US < now_us:
                self._wake(self.entries[each.waiting[0][1]], now_us, now_us, ring, counts=False)

    def wake_workflow(self, workflow: str, now_us: int, ring: Ring) -> None:
        """Wake jobs of a workflow that holds its slot: they take none, and wait for nobody. Each of them wakes more."""
        waiting = [e for e in self.entries.values() if e.state is State.WAITING and e.workflow == workflow]
        for entry in sorted(waiting, key=lambda entry: entry.place)[:MOST_AT_ONCE]:
            self._wake(entry, now_us, now_us, ring, counts=False)

    def next_look(self, at_us: int | None, now_us: int, *, by_job: bool) -> int | None:
        """
        Ask for a look at *at_us*, unless one is asked for that is soon enough: the delay, or None.

        Args:
            by_job: A job asks. It is asked for a look that is far off in any case: who was asked first may hang.
        """
        if at_us is None:
            return None
        at_us = max(at_us, now_us + SPACING_US)
        is_far = by_job and at_us > now_us + PATIENCE_US
        if now_us - VOID_US <= self.look_us <= at_us and not is_far:
            return None
        self.look_us = at_us
        return at_us - now_us

    def _by_head(self) -> list[Owner]:
        """The owners with jobs in the order, by the first of these."""
        return sorted((owner for owner in self.owners.values() if owner.waiting), key=lambda owner: owner.waiting[0])

    def _held(self, now_us: int) -> Iterator[tuple[int, Entry]]:
        """What takes units from others, and until when: wakes that have not asked, and turns."""
        untils = [(turn_us, self.entries[id]) for turn_us, id in self.turns]
        for owner in self.owners.values():
            for_us = min(lateness_us(owner.name), FUTURE_US) or PATIENCE_US
            recent = owner.woken[bisect_left(owner.woken, (now_us - for_us + 1, "")) :]
            untils += [(at_us + for_us, self.entries[id]) for at_us, id in recent if self.entries[id].counts]
        return (each for each in untils if now_us < each[0] <= now_us + FUTURE_US + PATIENCE_US)

    def _wake(self, entry: Entry, at_us: int, now_us: int, ring: Ring, *, counts: bool) -> bool:
        """Wake an entry that waits, if its owner listens. Returns whether it does."""
        owner = self.owners[entry.owner]
        if not lateness_us(owner.name) and not ring(owner.name, Wake(entry.id, at_us - now_us)):
            owner.free = DEAF
            return False
        self._change(entry, State.WOKEN, owner.name, at_us + WOKEN_US, at_us, counts=counts)
        return True


def _is_woken_late(entry: Entry) -> bool:
    return entry.state is State.WOKEN and lateness_us(entry.owner) > 0


def _missed(owner: Owner, now_us: int) -> int:
    """How many jobs that come back by a delay were woken, and did not come in time."""
    late_us = lateness_us(owner.name)
    return bisect_left(owner.woken, (now_us - late_us, "")) if late_us else 0


def _unkept_us(owner: Owner, pace_us: int, ready_us: int, now_us: int) -> int:
    """
    When the first of jobs that come back late is woken, if no unit can be kept for it: at the limit's pace, as if all
    before it had passed. Some of them never come: who is more than `PROBE_US` behind catches up, and as many are woken
    at once as did not come.
    """
    missed = _missed(owner, now_us)
    if missed > bisect_left(owner.woken, (now_us + FUTURE_US + 1, "")) - missed:
        return ready_us
    last_us = owner.woken[-1][0] if owner.woken else now_us + FUTURE_US + 1
    if last_us > now_us + FUTURE_US:
        return ready_us
    at_us = last_us + pace_us
    return at_us if at_us < now_us - PROBE_US else max(at_us, ready_us)


def _skipped(owner: Owner, now_us: int) -> bool:
    """Whether an owner has a wake for each free thread, or leaves one unanswered, or one of a clock that was wrong."""
    if lateness_us(owner.name):
        return False
    if not owner.woken:
        return owner.free <= 0
    first_us = owner.woken[0][0]
    return len(owner.woken) >= owner.free or not first_us - FUTURE_US <= now_us < first_us + PATIENCE_US
