"""The jobs that wait in one process: by when they are due, and in the order of each line in which they stand."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from throttlekit._core.decision import Charged, Decision
from throttlekit._engine.ticket import Ticket, limit_ref
from throttlekit.adapter.outcome import Deferred, Run

__all__ = [
    "NO_LANE", "Entry", "Lane", "Waited", "WaitingRoom", "lane_behind", "lane_for", "lane_in", "lane_left",
    "leaves_units",
]  # fmt: skip

_TIDY_AFTER = 1000
"""Entries that may be marked as gone before all of them are cleared away."""

_MOST_ASKED = 64
"""Jobs of a lane that were taken out to ask, and may be put back, of which the room keeps when they were due."""

_SOON = 0.03
"""Seconds. A job that is granted no sooner than this before it is expected is on time."""

_LATE_US = 5000
"""Jobs come a little late: what a limit loses in so many µs says nothing."""

_STEP = 0.04
"""Seconds by which a lane becomes later, at each answer, towards how late its first job is in all."""

_LEAVES_FOR = 5.0
"""
Seconds. If another limit denies the first job of a lane for longer than this, the next job of the lane is woken at
once. Then all jobs of the lane may be woken one after the other. If two limits deny them in turn, a shorter time would
repeat that often.
"""

_T = TypeVar("_T")


class Lane(NamedTuple):
    """
    The line in which a job waits, and where it stands there.

    Attributes:
        name: Stands for the line; "" if the job stands in none.
        start, number: Its place: lower ones go first.
        slots: Whether it waits for a slot of a concurrency limit.
        sooner: By how many seconds it is to come sooner than its place says, guessing that those before it do not come.
        told_us: When it is to come by its place, by the store's clock; 0: not known.
        is_apart: Whether it waits outside its line, as an operator has paused another of its limits: see `lane_for`.
    """

    name: str = ""
    start: int = 0
    number: int = 0
    slots: bool = False
    sooner: float = 0.0
    told_us: int = 0
    is_apart: bool = False

    @property
    def place(self) -> tuple[str, int, int]:
        """Where it stands: the same after each answer, for as long as it keeps its place."""
        return self.name, self.start, self.number


NO_LANE = Lane()


class Waited(NamedTuple):
    """Where a job has waited, and when it was expected there (see `Entry`)."""

    lane: Lane
    expected: float


@dataclass(slots=True, order=True)
class Entry(Generic[_T]):
    """
    One job that waits.

    Attributes:
        due: When it is to be taken up, in the caller's unit; jobs that are due at once keep the order of coming.
        item: The caller's own object.
        own: When it is due by its own answer.
        base: When it would be due had its lane not fallen behind.
        whole: The same by its first answer; `base` is by the newest that counted.
        expected: When it was due before its own answers said sooner than its lane did; once it is taken out, as its
            lane was then. If it is granted before that, its line moves faster than those behind it here know.
        latest: It becomes due no later than this because of its lane.
        gone, turn: Whether it was removed, and how often it became due at another instant.
    """

    due: float
    number: int
    item: _T = field(compare=False)
    own: float = field(default=0.0, compare=False)
    lane: Lane = field(default=NO_LANE, compare=False)
    base: float = field(default=0.0, compare=False)
    whole: float = field(default=0.0, compare=False)
    expected: float = field(default=0.0, compare=False)
    latest: float = field(default=math.inf, compare=False)
    gone: bool = field(default=False, compare=False)
    turn: int = field(default=0, compare=False)

    @property
    def waited(self) -> Waited:
        return Waited(self.lane, self.expected)


class _Asked(NamedTuple):
    """A job that was taken out: its `base` and `whole`, its instant by its place, and when it was due."""

    base: float
    whole: float
    told_us: int
    due: float


@dataclass(slots=True)
class _Standing(Generic[_T]):
    """
    The jobs of one lane, in the order of its line; and when the process last looked how far the line has moved.

    Attributes:
        behind: How much later than its base the job was due that stood first when it last asked in vain.
        looked_at: The place of the job that the last look found.
        asked: What is known of jobs that were taken out, by their places; nan in place of a base that is not to count.
        step: `_STEP` in the caller's unit.
        later: The jobs that became later with their lane.
        most_behind: The largest `behind` by which one of them did.
    """

    looked: float
    step: float
    entries: list[tuple[int, int, int, Entry[_T]]] = field(default_factory=list[tuple[int, int, int, Entry[_T]]])
    behind: float = 0.0
    looked_at: tuple[int, int] = (0, 0)
    asked: dict[tuple[int, int], _Asked] = field(default_factory=dict[tuple[int, int], _Asked])
    later: list[Entry[_T]] = field(default_factory=list[Entry[_T]])
    most_behind: float = 0.0

    def add(self, entry: Entry[_T]) -> None:
        heapq.heappush(self.entries, (entry.lane.start, entry.lane.number, entry.number, entry))

    def first(self) -> Entry[_T] | None:
        while self.entries and self.entries[0][3].gone:
            heapq.heappop(self.entries)
        return self.entries[0][3] if self.entries else None

    def takes_out(self, entry: Entry[_T]) -> None:
        lane, base, due = entry.lane, entry.base if self.first() is entry else math.nan, self.due(entry)
        entry.expected = max(entry.expected, due)
        self.asked[lane.start, lane.number] = _Asked(base, entry.whole, lane.told_us, due)
        if len(self.asked) > _MOST_ASKED:
            del self.asked[next(iter(self.asked))]

    def due(self, entry: Entry[_T]) -> float:
        return max(entry.own, min(entry.base + self.behind, entry.latest))

    def puts_in(self, entry: Entry[_T], due: float, *, fresh: bool) -> None:
        """
        *entry* is put in, *due* by its place: as before if it comes back, and is not *fresh*. If it stands first, the
        lane is as late as it is: by how much it has become later since its last answer, and by a step towards how late
        it is in all, which is another for each tenant, and no news to those that came since. No step for a job that was
        looked at: it was asked for by itself. A guess says nothing of the lane, and an answer that is given again only
        that it is no longer as late as answers to other jobs have made it.
        """
        lane = entry.lane
        asked = self.asked.pop((lane.start, lane.number), None)
        entry.base, entry.whole = due - self.behind, due - self.behind
        if asked is None or fresh:
            return
        entry.whole = asked.whole
        if math.isnan(asked.base):
            return
        entry.base = asked.base
        first, again = self.first(), 0 < asked.told_us == lane.told_us
        # Those that came in front of it meanwhile have instants of the line as it is now.
        leads = first is None or (lane.start, lane.number) < (first.lane.start, first.lane.number)
        if lane.sooner or (again and asked.due <= due + self.step) or not leads:
            return
        by = due - asked.base
        step = 0.0 if again or self.looked_at == (lane.start, lane.number) else self.step
        behind = min(max(due - asked.whole, by), by + step)
        # Jobs ask at the same time: what one has said, another does not say once more.
        self.behind = max(self.behind, behind) if due >= asked.due else min(self.behind, behind)
        entry.base = due - self.behind


class WaitingRoom(Generic[_T]):
    """
    Keeps jobs in the order in which they are due, and finds the first of a lane, whichever stands in front.

    A job's due instant was worked out when it was denied. The line may have moved faster since: a rate was raised, jobs
    before it ended. So a process asks for the first job of each lane now and then (`to_look_at`). Or slower: jobs of
    other tenants came in front. Then the answer to the first makes all behind it due as much later (`due`).

    Every operation looks at a few entries: a removed one is marked, and cleared away now and then. Not safe between
    threads: the caller holds a lock. Time is an argument.

    Args:
        second: How much of the caller's unit is a second.
    """

    def __init__(self, second: float = 1.0) -> None:
        self._second, self._step = second, _STEP * second
        self._entries: list[tuple[float, int, int, Entry[_T]]] = []
        self._lanes: dict[str, _Standing[_T]] = {}
        self._living = self._number = self._removed = 0

    def __len__(self) -> int:
        return self._living

    def __iter__(self) -> Iterator[Entry[_T]]:
        """All jobs that wait, in no order."""
        return (entry for _, _, turn, entry in self._entries if turn == entry.turn and not entry.gone)

    def put(
        self, item: _T, due: float, lane: Lane = NO_LANE, *, now: float = 0.0, latest: float = math.inf,
        before: Waited | None = None,
    ) -> Entry[_T]:  # fmt: skip
        """
        Let *item* wait until *due*.

        Args:
            lane: Where it stands, as `lane_in` reads it off the ticket.
            now, latest: By the clock of `to_look_at`; and when it is taken up, however late its lane becomes.
            before: Its last wait in a lane here. If it lost its place since, those behind it have lost theirs too, or
                soon will. None: the broker has just delivered it, so what it is told is no news to those that came
                since it was here.
        """
        self._number += 1
        self._living += 1
        entry = Entry(due, self._number, item, due, lane, due, due, due, due if lane.sooner else latest)
        if lane.name:
            standing = self._lanes.setdefault(lane.name, _Standing(now, self._step))
            by_place = due + lane.sooner * self._second
            entry.expected = by_place
            if before is not None and before.lane.name == lane.name:
                entry.expected = max(by_place, before.expected) if before.lane.place == lane.place else math.inf
            standing.puts_in(entry, by_place, fresh=before is None)
            if standing.behind < standing.most_behind - self._step:
                self._sooner(standing)
        self._add(entry)
        return entry

    @property
    def lanes(self) -> int:
        """In how many lines jobs stand, or stood a moment ago."""
        return len(self._lanes)

    def first(self) -> Entry[_T] | None:
        """The entry that is due first; it stays."""
        while self._entries:
            _, _, turn, entry = self._entries[0]
            due = self.due(entry)
            if entry.gone or turn != entry.turn:
                heapq.heappop(self._entries)
            elif due > entry.due:
                standing = self._lanes[entry.lane.name]
                standing.most_behind = max(standing.most_behind, standing.behind)
                if entry.due == entry.own:
                    standing.later.append(entry)
                heapq.heapreplace(self._entries, self._at(entry, due))
            else:
                return entry
        return None

    def due(self, entry: Entry[_T]) -> float:
        """When *entry* is due, by the newest answer to its lane; never earlier than by its own answer."""
        standing = self._lanes.get(entry.lane.name)
        return standing.due(entry) if standing else entry.due

    def first_in(self, lane: str) -> Entry[_T] | None:
        """The entry that stands first in the lane of that name; it stays."""
        standing = self._lanes.get(lane)
        entry = standing.first() if standing else None
        if entry is None:
            self._lanes.pop(lane, None)
        return entry

    def to_look_at(self, now: float, every: float, due_after: float) -> Entry[_T] | None:
        """
        The entry that stands first in one lane, each lane in its turn; it stays. None if the process looked at that
        lane less than *every* ago, or if the entry is due before *due_after* anyway.
        """
        lane = next(iter(self._lanes), None)
        entry = None if lane is None else self.first_in(lane)
        if lane is None or entry is None:
            return None
        last = self._lanes[lane] = self._lanes.pop(lane)
        if now - last.looked < every:
            return None
        last.looked = now
        if self.due(entry) <= due_after:
            return None
        last.looked_at = entry.lane.start, entry.lane.number
        return entry

    def remove(self, entry: Entry[_T]) -> bool:
        """Take *entry* out; return False if it was taken out before."""
        if entry.gone:
            return False
        if standing := self._lanes.get(entry.lane.name):
            standing.takes_out(entry)
        entry.gone = True
        self._living -= 1
        self._removed += 1
        if self._removed > max(_TIDY_AFTER, self._living):
            self._tidy()
        return True

    def _add(self, entry: Entry[_T]) -> None:
        heapq.heappush(self._entries, (entry.due, entry.number, entry.turn, entry))
        if entry.lane.name:
            self._lanes[entry.lane.name].add(entry)

    def _sooner(self, standing: _Standing[_T]) -> None:
        """The lane of *standing* has caught up: those that became later with it are due sooner again."""
        later, standing.later = standing.later, []
        standing.most_behind = standing.behind
        for entry in later:
            due = self.due(entry)
            if not entry.gone and due < entry.due:
                heapq.heappush(self._entries, self._at(entry, due))
                self._removed += 1
            if not entry.gone and entry.due > entry.own:
                standing.later.append(entry)

    def _at(self, entry: Entry[_T], due: float) -> tuple[float, int, int, Entry[_T]]:
        entry.due = due
        entry.turn += 1
        return due, entry.number, entry.turn, entry

    def _tidy(self) -> None:
        living = list(self)
        for standing in self._lanes.values():
            standing.entries.clear()
            standing.later = [entry for entry in standing.later if not entry.gone]
        self._entries, self._removed = [], 0
        for each in living:
            self._add(each)
        self._lanes = {name: standing for name, standing in self._lanes.items() if standing.entries}


def lane_in(ticket: Mapping[str, Any] | None) -> Lane:
    """Where a job that carries *ticket* stands."""
    return _lane_of(Ticket.read(ticket))


def lane_for(outcome: Deferred) -> Lane:
    """
    Return the lane in which a job waits after the denial *outcome*: the line of the limit that denied it.

    An operator's pause does not change the ticket. If the pause is of another limit than the one in whose line the job
    waits, the job waits in a separate lane for that limit and key, so that those behind it in the line need not wait.
    """
    ticket, decision = Ticket.read(outcome.ticket), outcome.decision
    lane = _lane_of(ticket)
    if lane.name and decision is not None and decision.reason == "paused" and decision.limit.name != ticket.limit_name:
        return lane._replace(name=f"{lane.name} {decision.limit.name} {decision.key}", is_apart=True)
    return lane


def lane_left(waited: Waited | None, lane: Lane, delay: float) -> str:
    """
    Return the name of the lane whose next job should be woken, because a job that has *waited* there was denied.

    That is its old lane, if the job now waits in another *lane* that is apart, or for more than `_LEAVES_FOR` seconds.
    The limit of the old lane may have units, which the jobs behind it can use. Otherwise "".
    """
    if waited is None or waited.lane.name == lane.name or (delay <= _LEAVES_FOR and not lane.is_apart):
        return ""
    return waited.lane.name


def _lane_of(ticket: Ticket) -> Lane:
    place = ticket.places.get(ticket.limit_ref)
    if place is None:
        return Lane(ticket.line, slots=ticket.slots)
    sooner = max(0, place.due_us - ticket.due_us) / 1_000_000
    return Lane(ticket.line, place.start, place.number, ticket.slots, sooner, place.due_us)


def leaves_units(decision: Decision | None, lain: float = _SOON) -> bool:
    """
    Whether a grant leaves enough for as much again that has *lain* there for so many seconds, or more than half of what
    can pass at once: then the job that stands next in the line may not have to wait for its instant. So it is after a
    rate was raised, where each job comes on time, by the old rate.
    """
    if decision is None or not decision.allowed or decision.remaining < max(1, decision.cost):
        return False
    limit, remaining = decision.limit, decision.remaining
    return 2 * remaining > limit.capacity or remaining * limit.period_us > limit.amount * lain * 1_000_000


def lane_behind(run: Run, *, early: float | None = None, lain: float = _SOON, waited: Waited | None = None) -> str:
    """
    The name of the lane whose next job is to ask at once, as *run* was granted; "": none is.

    So it is if the grant leaves units, if the limit was full and has lost half of what the job took or more, or if the
    job was granted before it was expected, by `_SOON`, or by as much as that where the burst is small: the line moves
    faster than its jobs know.

    Args:
        early: By how many seconds, by the `expected` of its entry. None: as its ticket says, by the first answer that
            it had: those behind it know no more.
        lain: For `leaves_units`. Infinite where a job that is made to ask goes before those that have never asked.
        waited: Its last wait, if that may have been in another lane than its ticket's: see `lane_for`.
    """
    ticket, decision = Ticket.read(run.job.ticket), run.decision
    lane = _lane_of(ticket) if waited is None else waited.lane
    # When a slot comes free is a guess: one that came early says nothing of the next.
    if not lane.name or lane.slots or decision is None:
        return ""
    if early is None and decision.charged:
        early = ((ticket.told_us or ticket.due_us) - decision.charged[0].at_us) / 1_000_000
    early_us = (early or 0.0) * 1_000_000
    if early_us > _SOON * 1_000_000 or leaves_units(decision, lain):
        return lane.name
    for charged in decision.charged:
        if limit_ref(charged.limit) == ticket.limit_ref and charged.limit.amount:
            return lane.name if _has_lost(charged, early_us) else ""
    return ""


def _has_lost(charged: Charged, early_us: float) -> bool:
    """Whether a limit has lost units that a grant would else have left; or, of a small burst, may have."""
    limit = charged.limit
    unit_us = limit.period_us / limit.amount
    half_us = max(_LATE_US, charged.cost * unit_us / 2)
    is_small = limit.capacity <= 2 * charged.cost or limit.capacity * unit_us <= 2 * _SOON * 1_000_000
    return charged.idle_us > half_us or (early_us > half_us and is_small)
