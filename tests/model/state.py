"""
The state of a small world around `acquire`, and the shipped functions in its terms.

Time is told in ticks from now; a tick is the grace time. Tags are told from v, numbers are renamed, and what can no
longer matter is forgotten: states that can no longer differ are equal. The constants of the line are scaled down
(`SCALED`), so that small worlds reach what needs many jobs in a store.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from model.core import Core, Edit, core
from throttlekit._core.algorithms.token_bucket import TimedBucket

__all__ = [
    "ANY", "BACK", "DOUBT", "EPOCH", "EXACT", "FAR", "HEARD", "LATE", "LOOK", "NOW_US", "NUMBER", "OLD", "PAUSE",
    "RULES", "SCALED", "TAG", "TICK_US", "UNIT", "Entry", "Job", "Kind", "Meter", "Shipped", "State", "Stored",
    "Ticket", "up",
]  # fmt: skip

RULES: Mapping[str, str] = {
    "bound": "a meter of its own, which fills with each grant and empties at the rate, never holds more than the burst",
    "charge": "a grant charges its cost once, to each limit; whatever else is answered charges nothing",
    "pause": "no job passes while a limit is paused; a resume ends the pause",
    "peek": "a caller that only looks changes nothing (but what is stale), and is answered as a new job would be",
    "guest": "a caller without a job, or a job that will not wait so long, makes no job wait longer",
    "before": "a grant makes no job that stood before it wait longer",
    "v": "v never falls; a new place does not start before v; v is not behind who passed in order",
    "once": "no number stands twice; who passed stands nowhere, who is denied stands once where it is denied",
    "stays": "a place changes only of a job that left the line and came back late or far behind; others' never",
    "pace": "a place moves its tenant on by cost / weight, and one tag only",
    "newcomer": "a job of a tenant that owes nothing stands at v",
    "coming": "without shares, each limit gives a job that is denied a place, behind all that it has given",
    "fair": "while two tenants wait and no job is late, what they got differs by a job of each at most, by weight",
    "aside": "a job is set aside only if units for it and for all before it lay there for the grace time",
    "quiet": "a denial leaves the bucket, v and what other tenants owe",
    "forged": "a ticket that the line did not give is no ticket",
    "moved": "units that leave before a job are counted: no process that counts them re-times its job late",
    "leave": "a job that leaves takes its own entry out, and changes nothing else",
    "promise": "one tenant: while every job comes back when it is due or before, a job that comes when due passes",
    "live": "if each job comes back at most a tick late, all pass",
    "bounded": "... within the stated time",
    "dead": "entries of jobs that died disappear while live jobs ask",
    "purge": "after all that waited died, one of the new jobs, which ask each tick, passes when there is a unit, and a "
    "grace time more for each that died",
    "idle": "if all that wait ask each tick, they pass when there are units for all of them, or for the dearest that "
    "died, and a grace time more for each that died",
}

TICK_US = 60_000
NOW_US = 1_800_000_000_000_000
LATE = 1  # ticks that a delivery may be late, where something must come about
PAUSE = 4
HEARD = 1  # for how long a 429 asks
BACK = 2
LOOK = 2  # LOOK_US, scaled
LASTS = 4  # DOUBT_LASTS_US, scaled
FAR = 1
DOUBT = 2
EXACT = 2
EPOCH, TAG, NUMBER = NOW_US - 10**9, 17 * 2**40, 10**6

SCALED = (
    Edit(
        "line",
        "\n_FIRST_TAG = ",
        f"\nFAR, EXACT, AT_DOOR, MEAN_ONE, MEAN_PART, LOOK_US = {FAR}, {EXACT}, 1, 4, 2, {LOOK * TICK_US}"
        "\n_FIRST_TAG = ",
    ),
    Edit(
        "absence",
        "\n\n\ndef tidied(",
        f"\nBATCH, DOUBT, MOST_DOUBT, DOUBT_LASTS_US = 2, {DOUBT}, 2, {LASTS * TICK_US}\n\n\ndef tidied(",
    ),
)
UNIT = 6


class Kind(NamedTuple):
    """A kind of job: its tenant, its weight (0: its limits are not shared), and the units it takes of each limit."""

    tenant: int
    weight: int
    costs: tuple[tuple[int, int], ...]
    rank: int = 0
    """Its class of priority: a higher one goes before every lower one."""
    interval: int = 0
    """Ticks for a unit, where each job has a rate of its own; else 0."""


class Entry(NamedTuple):
    start: int
    number: int
    cost: int


class Stored(NamedTuple):
    """What the store keeps for one limit. Instants in ticks from now, tags from v."""

    tat: int
    debt: int
    has_begun: bool
    jobs: tuple[Entry, ...]
    finishes: tuple[tuple[str, int], ...]
    returns: tuple[tuple[str, int], ...]
    number: int
    mean: int
    dear: int
    doubt: int
    aside: int
    since: int
    low: int
    paused: int | None
    paused_from: int
    emptied: int | None
    mark: int


class Meter(NamedTuple):
    """What the world itself knows of one limit."""

    level: int
    """Ticks until all that was granted, as settled, is made up for at the limit's rate."""
    after: int
    """The same of what was granted since a 429 left the limit used up."""
    paused: int
    """Ticks until the pause in force ends."""
    emptied: int
    """Ticks until the 429 in force leaves the limit used up."""
    ages: tuple[int, ...]
    """For each entry, for how long units for it and for all before it have lain there; -1: they do not."""


class Ticket(NamedTuple):
    """A place as a job carries it. *current*: the line that gave it still stands."""

    current: bool
    start: int
    number: int
    due: int


class Job(NamedTuple):
    kind: int
    due: int
    """Ticks until it is to come back, rounded up."""
    places: tuple[Ticket | None, ...]


class State(NamedTuple):
    stored: tuple[Stored, ...]
    meters: tuple[Meter, ...]
    jobs: tuple[Job, ...]
    left: int
    faults: int
    orderly: bool
    """All jobs so far came back when they were due or before, and nothing else went wrong."""
    fair: tuple[int, int] | None
    """The lowest and the highest of n0/w0 - n1/w1 seen from now, while both tenants wait undisturbed."""


OLD = -9
ANY = 99  # an age that nothing is said of


@dataclass
class Shipped:
    """
    Args:
        jobs: How many arrive.
        kinds: What they are.
        bursts: A limit for each.
        owed: With how many ticks to full the search begins.
        faults: How many of *kinds_of_fault* may happen.
        renewed: A job that passes is followed by another of its tenant, for ever.
        guests: Callers without a job come too, and jobs that will not wait.
        away: Jobs that wait do not come back.
        unfair: By how many jobs of one unit more than stated two tenants may differ.
    """

    jobs: int = 3
    kinds: Sequence[Kind] = (Kind(0, 1, ((0, 1),)),)
    bursts: Sequence[int] = (2,)
    interval: int = 2
    owed: Sequence[int] = (0, 4)
    faults: int = 0
    kinds_of_fault: Sequence[str] = ()
    grace: int = 1
    renewed: bool = False
    guests: bool = False
    away: bool = False
    unfair: int = 0
    rules: frozenset[str] = frozenset(RULES)
    core: Core = field(default_factory=lambda: core(SCALED))

    def __post_init__(self) -> None:
        self._back = BACK * self.faults if "back" in self.kinds_of_fault else 0
        self._played: dict[State, int | None] = {}
        self._claims: dict[int, list[Any]] = {}
        self._tenants = {kind.tenant for kind in self.kinds}
        self.worst = 0
        claim = sys.modules["throttlekit._core.claim"].StoreClaim
        for number, kind in enumerate(self.kinds):
            self._claims[number] = [
                claim(
                    f"limit {limit}", self._bucket(limit, kind.interval).bind(cost), cost,
                    tenant=str(kind.tenant) if kind.weight else "",
                    step=-(-cost * UNIT // kind.weight) if kind.weight else 0,
                    lead=kind.rank * self.core.line.CLASS,
                )
                for limit, cost in kind.costs
            ]  # fmt: skip
        sys.setrecursionlimit(100_000)

    def _bucket(self, limit: int, interval: int = 0) -> Any:
        of = self.core.gcra.Bucket
        if interval:
            fills_us = self.bursts[limit] * self.interval * TICK_US
            return TimedBucket.of_rate(of.of(1, interval * TICK_US, 1), fills_us)
        return of.of(1, self.interval * TICK_US, self.bursts[limit])

    # What is shipped, in ticks.

    def _opened(self, stored: Stored, limit: int) -> Any:
        def at(ticks: int) -> int:
            return NOW_US + ticks * TICK_US

        line, tat = None, None
        if stored.tat > OLD:
            tat = self.core.gcra.Tat(at(stored.tat), stored.debt * TICK_US)
        if stored.has_begun or stored.paused is not None:
            of = self.core.line
            jobs = tuple(of.Entry(TAG + start, NUMBER + number, cost) for start, number, cost in stored.jobs)
            line = of.Line(
                epoch=EPOCH if stored.has_begun else 0, v=TAG if stored.has_begun else of.Line().v, gone=1000,
                number=NUMBER + stored.number if stored.has_begun else 0,
                extra=sum(entry.cost - 1 for entry in jobs), mean=stored.mean, dear=stored.dear, doubt=stored.doubt,
                aside_us=at(stored.aside) if stored.doubt else 0, since_us=at(stored.since), low=stored.low,
                grace_us=self.grace * TICK_US if jobs else 0,
                paused_us=0 if stored.paused is None else at(stored.paused),
                paused_from_us=0 if stored.paused is None else at(stored.paused_from),
                emptied_us=0 if stored.emptied is None else at(stored.emptied), mark=stored.mark,
                secret="secret" if stored.has_begun else "", jobs=jobs,
                finishes={tenant: TAG + tag for tenant, tag in stored.finishes},
                returns={tenant: TAG + tag for tenant, tag in stored.returns},
            )  # fmt: skip
        return self.core.acquire.State(tat, line)

    def _closed(self, shipped: Any, at: int = 0) -> Stored:
        """*shipped*, as told *at* ticks from now."""

        def ticks(instant_us: int) -> int:
            return max(OLD, -((NOW_US + at * TICK_US - instant_us) // TICK_US))

        tat, line = shipped
        known = OLD if tat is None else ticks(tat.at_us)
        debt = 0 if tat is None or known <= 0 else tat.debt_us // TICK_US
        if line is None:
            line = self.core.line.EMPTY
        has_begun, v = line.epoch != 0, line.v
        jobs = tuple(Entry(start - v, number - NUMBER, cost) for start, number, cost in line.jobs)
        if not has_begun and line.number < NUMBER and jobs:
            raise AssertionError("jobs in a line that has not begun")
        aside = ticks(line.aside_us) if line.doubt else 0
        past = -self.grace - self._back
        return Stored(
            known, debt, has_begun, jobs,
            tuple(sorted((tenant, tag - v) for tenant, tag in line.finishes.items() if tag > v)),
            tuple(sorted((tenant, tag - v) for tenant, tag in line.returns.items() if tag > v)),
            line.number - NUMBER if has_begun else 0, line.mean, line.dear if jobs else 0,
            line.doubt, aside, max(ticks(line.since_us), past), line.low,
            ticks(line.paused_us) if line.paused_us else None,
            ticks(line.paused_from_us) if line.paused_us else 0,
            ticks(line.emptied_us) if line.emptied_us else None, line.mark if jobs else 0,
        )  # fmt: skip

    def _place(self, stored: Stored, limit: int, ticket: Ticket | None, line: Any) -> Any:
        if ticket is None:
            return None
        due_us = NOW_US + ticket.due * TICK_US
        if not ticket.current or line is None:
            return self.core.line.Place(EPOCH - 1, TAG, 1, due_us, "another epoch")
        return self.core.line.signed(line, f"limit {limit}", TAG + ticket.start, NUMBER + ticket.number, due_us)

    def _ask(
        self, state: State, job: Job, caller: Any = None, forge: Any = None, max_wait_us: int | None = None
    ) -> tuple[Any, State, list[Any], list[Any]]:
        acquire = self.core.acquire
        which = [limit for limit, _ in self.kinds[job.kind].costs]
        before = [self._opened(state.stored[limit], limit) for limit in which]
        places = [
            self._place(state.stored[limit], limit, job.places[limit], each.line)
            for limit, each in zip(which, before, strict=True)
        ]
        if forge is not None:
            places = [forge(each.line) for each in before]
        verdict, after = acquire.acquire(
            self._claims[job.kind], before, NOW_US, caller=caller or acquire.Caller.JOB, max_wait_us=max_wait_us,
            places=places if any(places) else (), grace_us=self.grace * TICK_US, secret="secret",
        )  # fmt: skip
        stored, jobs = list(state.stored), state.jobs
        for limit, old, new in zip(which, before, after, strict=True):
            if new is not old:
                stored[limit] = self._rebased(self._closed(new), new.line)
                if old.line is not None and new.line is not None and new.line.v != old.line.v and old.line.epoch:
                    jobs = tuple(told_from(each, limit, new.line.v - old.line.v) for each in jobs)
        return verdict, state._replace(stored=tuple(stored), jobs=jobs), before, list(after)

    def _rebased(self, stored: Stored, line: Any) -> Stored:
        """A line that began just now numbers from 0, where others do from the renamed ones."""
        if line is None or line.epoch in (0, EPOCH):
            return stored
        return stored._replace(
            jobs=tuple(entry._replace(number=entry.number + NUMBER) for entry in stored.jobs),
            number=stored.number + NUMBER,
        )

    def _tickets(self, verdict: Any, job: Job, after: Sequence[Any]) -> tuple[Ticket | None, ...]:
        tickets: list[Ticket | None] = [None] * len(self.bursts)
        if not verdict.places:
            return tuple(tickets)
        for (limit, _), place, state in zip(self.kinds[job.kind].costs, verdict.places, after, strict=True):
            if place is None:
                continue
            due = up(place.due_us)
            line = state.line
            if line is None or place.epoch != line.epoch:
                tickets[limit] = Ticket(False, 0, 0, due)
            else:
                base = NUMBER if line.epoch == EPOCH else 0
                tickets[limit] = Ticket(True, place.start - line.v, place.number - base, due)
        return tuple(tickets)

    # Time and faults.

    def _ages(self, stored: Stored, meter: Meter, limit: int, ages: Mapping[Entry, int]) -> tuple[int, ...]:
        there = self.bursts[limit] + (-max(stored.tat, 0)) // self.interval
        there = -1 if meter.paused > 0 else min(there, self.bursts[limit])
        result, total = [], 0
        for entry in stored.jobs:
            total += entry.cost
            age = ages.get(entry, 0)
            result.append(ANY if age >= ANY else max(0, age) if total <= there else -1)
        return tuple(result)

    def _aged(self, state: State, after: State, granted: Job | None) -> tuple[Meter, ...]:
        meters = list(state.meters)
        costs = dict(self.kinds[granted.kind].costs) if granted else {}
        for limit, (level, since, paused, emptied, known) in enumerate(state.meters):
            fill = costs.get(limit, 0) * ((granted and self.kinds[granted.kind].interval) or self.interval)
            meter = Meter(level + fill, since and since + fill, paused, emptied, ())
            old, new = state.stored[limit], after.stored[limit]
            # v moves on with a grant, and all tags are told from it.
            ages = {e.number: age for e, age in zip(old.jobs, known, strict=True)}
            by = {e: ages[e.number] for e in new.jobs if e.number in ages}
            meters[limit] = meter._replace(ages=self._ages(new, meter, limit, by))
        return tuple(meters)

    def _later(self, state: State) -> State:
        meters = []
        for limit, (level, after, paused, emptied, ages) in enumerate(state.meters):
            after = self.bursts[limit] * self.interval if emptied == 1 else max(0, after - 1)  # no burst follows a 429
            meters.append(Meter(max(0, level - 1), after, max(0, paused - 1), max(0, emptied - 1), ages))
        state = self._moved(state._replace(meters=tuple(meters)), 1)
        meters = []
        for limit, (stored, meter) in enumerate(zip(state.stored, state.meters, strict=True)):
            older = {e: age + 1 if age >= 0 else 0 for e, age in zip(stored.jobs, meter.ages, strict=True)}
            meters.append(meter._replace(ages=self._ages(stored, meter, limit, older)))
        return state._replace(meters=tuple(meters))

    def _moved(self, state: State, by: int) -> State:
        stored = tuple(
            each._replace(
                tat=max(each.tat - by, OLD) if each.tat > OLD else OLD,
                aside=max(each.aside - by, OLD) if each.doubt else 0,
                since=max(each.since - by, -self.grace - self._back),
                paused=None if each.paused is None else max(each.paused - by, OLD),
                paused_from=0 if each.paused is None else max(each.paused_from - by, OLD),
                emptied=None if each.emptied is None else max(each.emptied - by, OLD),
            )
            for each in state.stored
        )
        jobs = tuple(
            job._replace(
                due=job.due - by,
                places=tuple(None if each is None else each._replace(due=each.due - by) for each in job.places),
            )
            for job in state.jobs
        )
        meters = state.meters
        if by < 0:
            meters = tuple(
                meter._replace(
                    paused=min(meter.paused - by, PAUSE) if meter.paused else 0,
                    emptied=min(meter.emptied - by, HEARD) if meter.emptied else 0,
                )
                for meter in meters
            )
        orderly = state.orderly and all(each.due >= 0 for job in jobs for each in job.places if each is not None)
        return state._replace(stored=stored, jobs=jobs, meters=meters, orderly=orderly)

    def _paused(self, state: State, ticks: int | None, heard: bool = False) -> State:
        for_us = None if ticks is None else ticks * TICK_US
        before = self._opened(state.stored[0], 0)
        first = self._closed(self.core.acquire.pause(before, NOW_US, for_us, emptied=heard))
        level, after, paused, emptied, ages = state.meters[0]
        if ticks is None:
            meter = Meter(level, self.bursts[0] * self.interval if emptied else after, 0, 0, ages)
        else:
            meter = Meter(level, after, max(paused, ticks), max(emptied, ticks if heard else 0), ages)
        meter = meter._replace(ages=self._ages(first, meter, 0, {}))
        return state._replace(
            stored=(first, *state.stored[1:]), meters=(meter, *state.meters[1:]), orderly=False, fair=None
        )

    def _settled(self, state: State, by: int) -> State:
        algorithm = self._bucket(0).bind(1)
        shipped = self._opened(state.stored[0], 0)
        taken = algorithm.settled(shipped.taken, NOW_US, NOW_US, by * algorithm.size)
        first = self._closed(self.core.acquire.State(taken, shipped.line))
        meter = state.meters[0]
        after = max(0, meter.after + min(0, by) * self.interval)
        # Units that a settled cost took away, and that came again, are not known to be new: no age begins anew.
        old = dict.fromkeys(first.jobs, ANY) if by > 0 else dict(zip(first.jobs, meter.ages, strict=True))
        meter = meter._replace(level=max(0, meter.level + by * self.interval), after=after, ages=())
        meter = meter._replace(ages=self._ages(first, meter, 0, old))
        return state._replace(stored=(first, *state.stored[1:]), meters=(meter, *state.meters[1:]))

    def _lost(self, state: State) -> State:
        number = len(self.bursts)
        nothing = self._closed(self.core.acquire.State(None, None))
        jobs = tuple(
            job._replace(places=tuple(None if each is None else Ticket(False, 0, 0, each.due) for each in job.places))
            for job in state.jobs
        )
        return state._replace(stored=(nothing,) * number, meters=(Meter(0, 0, 0, 0, ()),) * number, jobs=jobs)

    def _canonical(self, state: State) -> State:
        late = -max(LATE, self.grace) - 1 - self._back
        jobs = list(state.jobs)
        stored = list(state.stored)
        for limit, each in enumerate(stored):
            tickets = [job.places[limit] for job in jobs]
            numbers = {e.number for e in each.jobs} | {each.number}
            numbers |= {ticket.number for ticket in tickets if ticket and ticket.current}
            rank = {number: i for i, number in enumerate(sorted(numbers))}
            waiting = len(each.jobs) + len(jobs) + state.left + state.faults
            stored[limit] = each = each._replace(
                jobs=tuple(e._replace(number=rank[e.number]) for e in each.jobs),
                number=rank[each.number],
                mean=each.mean if waiting > EXACT + 1 and each.has_begun else self.core.line.MEAN_ONE,
                low=min(max(each.low, 0), self.bursts[limit]),
                debt=each.debt if each.tat > 0 else 0,
                paused_from=each.paused_from if self._back else 0,
                doubt=each.doubt if each.doubt and each.aside >= -LASTS - 2 * self.grace - self._back else 0,
            )
            if not each.doubt:
                stored[limit] = each._replace(aside=0)
            for i, job in enumerate(jobs):
                far = -FAR * UNIT * max(self.bursts) - 1 - self.kinds[job.kind].rank * self.core.line.CLASS
                ticket = job.places[limit]
                if ticket is None:
                    continue
                if ticket.current:
                    stands = (ticket.start, rank[ticket.number]) in {e[:2] for e in each.jobs}
                    start = ticket.start if stands else max(ticket.start, far)
                    ticket = Ticket(True, start, rank[ticket.number], max(ticket.due, late))
                else:
                    ticket = Ticket(False, 0, 0, max(ticket.due, late))
                jobs[i] = job._replace(places=(*job.places[:limit], ticket, *job.places[limit + 1 :]))
        jobs = [job._replace(due=max(job.due, late)) for job in jobs]
        meters = tuple(
            meter._replace(ages=tuple(ANY if age >= ANY else min(age, self.grace) for age in meter.ages))
            for meter in state.meters
        )
        return state._replace(stored=tuple(stored), jobs=tuple(sorted(jobs, key=repr)), meters=meters)

    def _cost(self, kind: int) -> str:
        tenant, weight, costs, *_ = self.kinds[kind]
        text = " + ".join(f"{cost} of {limit}" for limit, cost in costs)
        return f"({'AB'[tenant]}{weight}: {text})"

    def _named(self, job: Job) -> str:
        places = ", ".join(f"S {each.start:+d}" if each and each.current else "-" for each in job.places)
        return f"{self._cost(job.kind)} due {job.due:+d}, {places}"


def told_from(job: Job, limit: int, by: int) -> Job:
    """*job* once v has moved on by *by*."""
    ticket = job.places[limit]
    if ticket is None or not ticket.current:
        return job
    ticket = ticket._replace(start=ticket.start - by)
    return job._replace(places=(*job.places[:limit], ticket, *job.places[limit + 1 :]))


def up(instant_us: int) -> int:
    """In ticks from now, rounded up: no job comes between two ticks."""
    return -((NOW_US - instant_us) // TICK_US)
