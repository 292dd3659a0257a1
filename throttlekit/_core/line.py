"""
The waiting line of one key: an order, and not a list of instants.

Rule 1: a waiting job is an entry of the order. Its place (start, number) never changes while it waits in time.
Rule 2: a job passes if the limit has units for it, and for all that stand before it. Only the limit admits.
Rule 3: the instant to come back at is worked out anew each time, from the work before the job and the rate of now.
Rule 4: a job whose units have lain there for the grace time is not coming. It is set aside, and holds no job back.
Rule 5: a denial charges nothing. A place costs its tenant the next one: `start` rises by cost / weight.

The order is start-time fair queueing (Goyal, Vin, Cheng: "Start-time fair queuing", 1996): a job starts at
`max(v, its tenant's last finish)`, where v is the start of the last job that passed, and finishes at
start + cost / weight.

Without shares (a step of 0) the order is that of coming. A job stands at the end, and keeps that place
however late it comes back. It has one in each line of its limits from its first denial on, also where it would pass.

acquire.py decides with it; absence.py says which jobs are not coming. lua/throttlekit_lua/line.lua and clear_line.lua
mirror this file. Change all, or the parity tests fail.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from throttlekit._core.slowdown import Pause, Slowdown

__all__ = [
    "AT_DOOR", "CLASS", "CLASSES", "EMPTY", "EXACT", "FAR", "FURTHEST_US",
    "GRACE_US", "GUESTS_US", "KEPT_US", "LOOK_US", "MEAN_ONE", "MEAN_PART", "NO_TAGS", "UNIT",
    "Ahead", "Entry", "Line", "Place", "Standing", "ahead_of", "begun", "charged", "genuine", "joined", "left",
    "passed", "promised", "signed", "standing",
]  # fmt: skip

UNIT = 1_000_000
"""How far one unit moves a tenant of weight 1 on."""

GRACE_US = 60_000
"""How long units lie for a job before it is set aside, at least."""

KEPT_US = 5_000_000
"""How long state is kept after nothing counts of it any more."""

GUESTS_US = 60_000_000
"""Guests are spread over at most this time: they may never come back."""

FAR = 16
"""So many costs behind the last job that passed, a job that left the line comes in again no faster than its share."""

FURTHEST_US = 3_155_760_000_000_000
"""No job is told an instant further off, a hundred years: a store's numbers end, and keys that live longer."""

EXACT = 32
"""Entries whose costs are added up one by one, where costs differ; those beyond are estimated."""

MEAN_ONE, MEAN_PART = 1024, 32

AT_DOOR = 8
"""Where a unit that is not taken is lost, so many of the jobs that are due, and found none, come back for the next."""

LOOK_US = 500_000
"""A process with jobs asks at least so often. So long after a change of the rate, or a pause, none is set aside."""

CLASS, CLASSES = 2**40, 16
"""How far before v a class of priority stands for each class below it, and how many there are at most."""

_LAST_TAG, _MOST_TAG = 2**52, 2**53 - 2  # tags are doubles in a store
_FIRST_TAG = (CLASSES + 1) * CLASS  # so that no start is below 0
NO_TAGS: Mapping[str, int] = MappingProxyType({})


def _no_tags() -> Mapping[str, int]:
    return NO_TAGS


class Entry(NamedTuple):
    """One waiting job. Entries compare in the order of the line: by start, then by number."""

    start: int
    number: int
    cost: int


class Place(NamedTuple):
    """
    What a waiting job carries of its place in one line.

    Attributes:
        epoch: Which line gave it: a line that lost its state begins another.
        start, number: Its entry.
        due_us: The instant at which the job was to come back.
        seal: Shows that the line gave exactly this place: at most 40 letters and digits.
    """

    epoch: int
    start: int
    number: int
    due_us: int
    seal: str


@dataclass(frozen=True, slots=True)
class Line:
    """
    The state of one key's line. Times in µs.

    Attributes:
        epoch: When the line began; 0: it has not.
        v: The start of the last job that passed in order.
        gone: Units of all jobs that left the order, by passing or otherwise.
        number: The last number that was given.
        extra: Units beyond one of each entry, together.
        mean: The mean cost of the jobs that passed, times `MEAN_ONE`.
        dear: The largest cost that joined since the line was empty.
        since_us, low: Since then at least so many units lie there for the jobs in front.
        doubt, aside_us: How many were set aside lately, less those that came back; and when the last was.
        over_us: Since when jobs that stand behind the first have passed before it; 0: they have not.
        grace_us: The longest grace time of the jobs that wait.
        paused_us: The instant at which a pause ends, or ended; 0: the limit was not paused, or passed a job since.
        paused_from_us: The instant at which it began, so that a clock that steps back makes no pause longer.
        emptied_us: The instant at which the service downstream lets jobs pass again, after a 429, no later than
            `paused_us`: the limit counts as used up to then (`Algorithm.exhausted`). 0: no 429 since a job passed.
        guest_us: The next instant for a caller that keeps no place.
        until_us: The furthest instant at which a job is to come back.
        mark: Of the fastest rate since the line began, see `Algorithm.mark`: a slower one gives no job more time.
        secret: With it places are sealed.
        slow: What slows the limit down for a while; None: nothing does.
        jobs: Who waits, in order.
        finishes, returns: Where each tenant's next job would start, if beyond v; and the next that comes in again.
    """

    epoch: int = 0
    v: int = _FIRST_TAG
    gone: int = 0
    number: int = 0
    extra: int = 0
    mean: int = MEAN_ONE
    dear: int = 0
    doubt: int = 0
    aside_us: int = 0
    over_us: int = 0
    since_us: int = 0
    low: int = 0
    grace_us: int = 0
    paused_us: int = 0
    paused_from_us: int = 0
    emptied_us: int = 0
    guest_us: int = 0
    until_us: int = 0
    mark: int = 0
    secret: str = ""
    slow: Slowdown | None = None
    jobs: tuple[Entry, ...] = ()
    finishes: Mapping[str, int] = field(default_factory=_no_tags)
    returns: Mapping[str, int] = field(default_factory=_no_tags)

    def at(self, now_us: int) -> Line:
        """As it counts at *now_us*, if a later clock wrote it: what is left of a pause or a slowdown begins now."""
        line = self.with_pause(self.pause.at(now_us)) if self.paused_from_us > now_us else self
        if line.since_us > now_us + LOOK_US:
            line = replace(line, since_us=now_us + LOOK_US)
        return replace(line, slow=line.slow.at(now_us)) if line.slow and line.slow.at(now_us) != line.slow else line

    @property
    def pause(self) -> Pause:
        return Pause(self.paused_us, self.paused_from_us, self.emptied_us)

    def with_pause(self, pause: Pause) -> Line:
        """The line with that pause."""
        until_us, from_us, emptied_us = pause
        return replace(self, paused_us=until_us, paused_from_us=from_us, emptied_us=emptied_us)

    def cleared(self) -> Line | None:
        """The line without the jobs that wait; None if nothing else is in it."""
        kept = Line(
            paused_us=self.paused_us, paused_from_us=self.paused_from_us, emptied_us=self.emptied_us, slow=self.slow
        )  # fmt: skip
        return kept if self.paused_us or self.slow else None

    def unpaused(self) -> Line:
        """The line once a job has passed: it knows of no pause, and of no 429."""
        return replace(self, paused_us=0, paused_from_us=0, emptied_us=0) if self.paused_us else self


EMPTY = Line()


class Standing(NamedTuple):
    """
    Where a job stands, or would stand, in one line.

    Attributes:
        entry: Its entry.
        waits: The entry is in the line.
        tags: What the place costs: whether its tenant pays as for a new place ("finishes"), as for a return
            ("returns"), or not at all ("").
        back: The job comes back to a line that it had left.
    """

    entry: Entry
    waits: bool
    tags: str
    back: bool = False


def begun(line: Line, now_us: int, secret: str) -> Line:
    """The line, with an epoch. One whose tags have come to the end of their range begins anew: all book again."""
    if line.epoch and line.v < _LAST_TAG:
        return line
    kept = replace(line, jobs=(), finishes=NO_TAGS, returns=NO_TAGS, extra=0, v=_FIRST_TAG, gone=0, number=0)
    return replace(kept, epoch=max(now_us, line.epoch + 1), secret=secret)


def genuine(line: Line, name: str, place: Place | None) -> Place | None:
    """*place*, if the line of the limit stored under *name* gave it."""
    if place is None or place.epoch != line.epoch:
        return None
    return place if place == signed(line, name, place.start, place.number, place.due_us) else None


def standing(
    line: Line, tenant: str, cost: int, step: int, lead: int, place: Place | None, now_us: int, grace_us: int,
    first: bool,
) -> Standing:  # fmt: skip
    """
    Where a job of *tenant* stands, that brings the genuine *place*, or would stand.

    Args:
        lead: How far before v jobs of its class start.
        step: How far the job moves its tenant on: cost / weight, in `UNIT`, rounded up; 0 without shares.
        first: The job ran before, and goes in front of those that did not.
    """
    v = line.v - lead
    if first:
        return Standing(Entry(v - 1, line.number + 1, cost), False, "")
    if place is None:
        last = line.jobs[-1].start if line.jobs else 0
        start = max(v, line.finishes.get(tenant, 0) if step else last)
        return Standing(Entry(start, line.number + 1, cost), False, "finishes")
    at = bisect_left(line.jobs, (place.start, place.number))
    if at < len(line.jobs) and line.jobs[at][:2] == (place.start, place.number):
        return Standing(line.jobs[at], True, "")
    if line.jobs:  # where those in front were set aside, others have passed, and v with them: the line is not as far
        v = min(v, line.jobs[0].start)
    behind = v - place.start
    if step and (behind > FAR * step or (behind > 0 and now_us > place.due_us + grace_us)):
        start = max(v, line.returns.get(tenant, 0))
        return Standing(Entry(start, line.number + 1, cost), False, "returns", True)
    return Standing(Entry(place.start, place.number, cost), False, "", True)


class Ahead(NamedTuple):
    """
    Units of those that stand before a job: about so many, at most and at least.

    All are exact where each costs one unit, and for the first `EXACT` entries. For each beyond, the mean cost of those
    that passed counts; at most the largest that waits, and at least one unit.
    """

    about: int = 0
    most: int = 0
    least: int = 0


def ahead_of(line: Line, entry: Entry) -> Ahead:
    """What stands before *entry*."""
    rank = bisect_left(line.jobs, entry)
    if not line.extra:
        return Ahead(rank, rank, rank)
    near, more = sum(each.cost for each in line.jobs[: min(rank, EXACT)]), max(0, rank - EXACT)
    return Ahead(near + more * line.mean // MEAN_ONE, near + more * line.dear, near + more)


def charged(line: Line, tenant: str, stands: Standing, step: int) -> Line:
    """The line once the tenant has paid for its job's place. A job that comes back takes doubt away."""
    entry, tags = stands.entry, stands.tags
    if stands.back and line.doubt:
        line = replace(line, doubt=line.doubt // 2)
    if entry.number > line.number:
        line = replace(line, number=entry.number)
    if not step:
        return line
    if tags == "finishes":
        return replace(line, finishes={**line.finishes, tenant: min(entry.start + step, _MOST_TAG)})
    if tags == "returns":
        return replace(line, returns={**line.returns, tenant: min(entry.start + step, _MOST_TAG)})
    return line


def promised(
    line: Line, name: str, cost: int, place: Place | None, now_us: int, secret: str, due_us: int
) -> tuple[Line, Place]:  # fmt: skip
    """The line, without shares, once a job has a place that does not wait in it; and the place. Due at *due_us*."""
    line = begun(line, now_us, secret)
    entry = standing(line, "", cost, 0, 0, genuine(line, name, place), now_us, 0, first=False).entry
    line = replace(line, number=max(line.number, entry.number), until_us=max(line.until_us, due_us))
    return line, signed(line, name, entry.start, entry.number, due_us)


def joined(
    line: Line, stands: Standing, there: int, mark: int, now_us: int, due_us: int, grace_us: int, step: int = 1
) -> Line:  # fmt: skip
    """
    The line once the job waits in it, and is to come back at *due_us*.

    Args:
        step: As for `standing`. Unless it is 0, tags that v has passed are removed: without shares there are none, and
            a store is not to look for them each time.
    """
    until_us = max(line.until_us, due_us)
    if stands.waits:
        line = replace(line, until_us=until_us)
        return _pruned(line) if step else line
    if not line.jobs:
        line = replace(line, since_us=max(line.since_us, now_us), low=there, mark=mark, grace_us=0, dear=0, over_us=0)
    at = bisect_left(line.jobs, stands.entry)
    jobs = (*line.jobs[:at], stands.entry, *line.jobs[at:])
    line = replace(
        line, jobs=jobs, extra=line.extra + stands.entry.cost - 1, dear=max(line.dear, stands.entry.cost),
        until_us=until_us, grace_us=max(line.grace_us, grace_us),
    )  # fmt: skip
    return _pruned(line) if step else line


def left(line: Line, entry: Entry, least: int) -> Line:
    """
    The line once *entry* waits no longer. Those behind it do not inherit the time that units lay for it.

    Args:
        least: Units of those that stand before it.
    """
    low, over_us = max(min(line.low, least), line.low - entry.cost), line.over_us if least else 0
    return _without(replace(line, low=low, over_us=over_us), entry)


def passed(line: Line, stands: Standing, least: int, over_us: int) -> Line:
    """
    The line once the job has passed. It ends a pause.

    Args:
        over_us: Since when jobs pass before the first of the line; 0: this was the first.
    """
    entry = stands.entry
    mean = line.mean + (MEAN_ONE * entry.cost - line.mean) // MEAN_PART
    low = max(min(line.low, least), line.low - entry.cost)
    line = replace(line.unpaused(), v=max(line.v, entry.start), mean=mean, low=low, over_us=over_us)
    return _without(line, entry) if stands.waits else line


def signed(line: Line, name: str, start: int, number: int, due_us: int) -> Place:
    """That place, with the seal of the line of the limit stored under *name*: lines of one request begin alike."""
    text = f"{line.secret} {name} {line.epoch} {start} {number} {due_us}"
    seal = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:10]
    return Place(line.epoch, start, number, due_us, seal)


def _without(line: Line, entry: Entry) -> Line:
    at = bisect_left(line.jobs, entry)
    jobs = line.jobs[:at] + line.jobs[at + 1 :]
    return replace(line, jobs=jobs, extra=line.extra - entry.cost + 1, gone=line.gone + entry.cost)


def _pruned(line: Line) -> Line:
    """The line without tags that v has passed."""
    kept: list[Mapping[str, int]] = []
    for tags in (line.finishes, line.returns):
        over = any(tag <= line.v for tag in tags.values())
        kept.append({tenant: tag for tenant, tag in tags.items() if tag > line.v} if over else tags)
    if kept[0] is line.finishes and kept[1] is line.returns:
        return line
    return replace(line, finishes=kept[0], returns=kept[1])
