"""
Small worlds around `acquire` for limits of a rate: a few jobs, the store's state, and a meter of its own.

Time is told in ticks from now; a tick is the grace time. A clock that jumps forward is several ticks at once, so it
needs no step of its own: after a tick a job may still come on time, late or never.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from model.core import Core, core
from support.claims import claim_of

__all__ = ["RULES", "RateWorld"]

RULES: Mapping[str, str] = {
    "bound": "a meter of its own, which fills with each grant and empties at the rate, never holds more than the burst",
    "charge": "a grant charges its cost once, to each limit; whatever else is answered charges nothing",
    "pause": "no job passes while a limit is paused; a resume ends the pause",
    "peek": "a caller that only looks changes nothing, and is answered as a new job would be",
    "guest": "a caller without a job delays no job; nor does a job that will not wait so long",
    "early": "a job that comes back before it is due keeps its instant and changes nothing, unless it passes",
    "promise": "while every job comes back when it is due or before, a job that comes back when it is due passes",
    "live": "if every job comes back at most a tick late, each passes, within the stated time",
    "idle": "if jobs come back when they are due, each passes when there are units for it and for all live jobs, and a "
    "grace time more for each job that died",
    "purge": "after the jobs that waited died, one of the new jobs, one a tick, passes when there is a unit, and a "
    "grace time more for each burst of jobs that died",
}

TICK_US = 5_000_000
NOW_US = 1_800_000_000_000_000
LATE = 1  # ticks that a delivery may be late, where something must come about
_NEVER = 10_000
_PAUSE = 3
_BACK = 2


class Stored(NamedTuple):
    """What the store keeps for one limit. Ticks from now; None: nothing, or nothing that can still matter."""

    tat: int | None
    debt: int
    tail: int | None
    late: int | None
    guest: int | None
    paused: int | None


class Meter(NamedTuple):
    """What the world itself knows of one limit."""

    level: int
    """Ticks until all that was granted, as settled, is made up for at the limit's rate."""
    after: int
    """The same of what was granted since a pause that left the limit used up."""
    paused: int
    """Ticks until the pause in force ends."""


class Waiting(NamedTuple):
    """A live job that was denied. *claim*: in which of its limits' lines it has a place; None: in none."""

    kind: int
    due: int
    claim: int | None


class State(NamedTuple):
    stored: tuple[Stored, ...]
    meters: tuple[Meter, ...]
    interval: int
    jobs: tuple[Waiting, ...]
    left: int
    """Jobs that may still arrive."""
    faults: int
    """Faults that may still happen."""
    dead: int
    """Units for which jobs that have died since the line began had a place."""
    orderly: bool
    """Whether all jobs so far have come back when they were due, or before, and nothing else went wrong."""


_NOTHING = Stored(None, 0, None, None, None, None)


@dataclass
class RateWorld:
    """
    A limit, or several, and jobs that take of them.

    Args:
        kinds: The kinds of jobs: of each, the limits it takes of and how many units.
        bursts: A limit for each.
        owed: With how many ticks to full the search begins.
        faults: How many of *kinds_of_fault* may happen.
    """

    jobs: int = 3
    kinds: Sequence[Sequence[tuple[int, int]]] = (((0, 1),),)
    bursts: Sequence[int] = (1,)
    interval: int = 2
    owed: Sequence[int] = (0, 2)
    faults: int = 0
    kinds_of_fault: Sequence[str] = ()
    guests: bool = False
    rules: frozenset[str] = frozenset(RULES)
    core: Core = field(default_factory=core)

    def __post_init__(self) -> None:
        self._back = _BACK * self.faults if "back" in self.kinds_of_fault else 0
        self._played: dict[Hashable, int | None] = {}
        self._known: dict[tuple[int, int], Any] = {}
        self.worst = 0
        sys.setrecursionlimit(100_000)

    # What is shipped, in ticks.

    def _claims(self, kind: int, interval: int) -> list[Any]:
        if (kind, interval) not in self._known:
            claims = []
            for limit, cost in self.kinds[kind]:
                bucket = self.core.gcra.Bucket.of(1, interval * TICK_US, self.bursts[limit])
                algorithm = bucket.bind(cost)
                claims.append(claim_of(algorithm, algorithm.spacing_us(0)))
            self._known[kind, interval] = claims
        return self._known[kind, interval]

    def _shipped(self, stored: Stored) -> Any:
        at = [None if each is None else NOW_US + each * TICK_US for each in stored]
        line = None
        if stored[2:] != _NOTHING[2:]:
            line = self.core.line.Line(at[2] or 0, at[3] or 0, at[4] or 0, at[5] or 0)
        tat = None if stored.tat is None else self.core.gcra.Tat(at[0], stored.debt * TICK_US)
        return self.core.acquire.State(tat, line)

    def _in_ticks(self, shipped: Any, at: int = 0) -> Stored:
        """*shipped* without what can no longer matter, *at* ticks from now."""
        tat, line = shipped
        now_us = NOW_US + at * TICK_US

        def ticks(instant_us: int, oldest: int) -> int | None:
            if instant_us <= now_us + oldest * TICK_US:
                return None
            return -((now_us - instant_us) // TICK_US)

        past = -1 - self._back  # of what is forgotten once a unit has lain idle for the grace time
        empty = max(self.bursts) * 4 + 1 + self._back
        tail, late, guest, paused = (0, 0, 0, 0)
        if line is not None:
            tail, late, guest, paused = line.tail_us, line.late_us, line.guest_us, line.paused_us
        known = None if tat is None else max(past, -((now_us - tat.at_us) // TICK_US))
        return Stored(
            known,
            0 if known is None or tat is None else tat.debt_us // TICK_US,
            ticks(tail, -self._back),
            ticks(late, -self._back),
            ticks(guest, -self._back),
            ticks(paused, -empty) if paused else None,
        )

    def _ask(
        self, state: State, kind: int, place: Any, caller: Any = None, max_wait_us: int | None = None
    ) -> tuple[Any, State]:
        """The verdict, and *state* after it; the meters are the caller's to fill."""
        acquire = self.core.acquire
        which = [limit for limit, _ in self.kinds[kind]]
        before = [self._shipped(state.stored[limit]) for limit in which]
        verdict, after = acquire.acquire(
            self._claims(kind, state.interval), before, NOW_US,
            caller=caller or acquire.Caller.JOB, place=place, max_wait_us=max_wait_us,
        )  # fmt: skip
        stored = list(state.stored)
        for limit, old, new in zip(which, before, after, strict=True):
            if new is not old:
                stored[limit] = self._in_ticks(new)
        return verdict, state._replace(stored=tuple(stored))

    def _place(self, job: Waiting) -> Any:
        if job.claim is None:
            return None
        return self.core.acquire.Place(job.claim, NOW_US + job.due * TICK_US)

    # What can happen.

    def starts(self) -> Iterator[tuple[str, State]]:
        for owed in self.owed:
            stored = _NOTHING._replace(tat=owed) if owed else _NOTHING
            number = len(self.bursts)
            yield (
                f"the bucket is full in {owed}",
                State(
                    (stored,) * number,
                    (Meter(owed, 0, 0),) * number,
                    self.interval,
                    (),
                    self.jobs,
                    self.faults,
                    0,
                    True,
                ),
            )

    def steps(self, state: State) -> Iterator[tuple[str, State | None, str | None]]:
        for what, after, rule in self._all_steps(state):
            yield what, None if after is None else self._canonical(after), rule if rule in self.rules else None

    def _all_steps(self, state: State) -> Iterator[tuple[str, State | None, str | None]]:
        for index, job in enumerate(state.jobs):
            if index and job == state.jobs[index - 1]:
                continue
            rest = state._replace(jobs=state.jobs[:index] + state.jobs[index + 1 :])
            yield self._comes(rest, job, f"{self._named(job)} comes {_when(job.due)}")
            lost = sum(cost for _, cost in self.kinds[job.kind][:1])
            yield f"{self._named(job)} dies", rest._replace(dead=state.dead + lost, orderly=False), None
        if state.left:
            spent = state._replace(left=state.left - 1)
            for kind in range(len(self.kinds)):
                yield self._comes(spent, Waiting(kind, 0, None), f"a new job, {self._cost(kind)}, comes")
                if self.guests:
                    yield self._guest(spent, kind)
                    yield self._impatient(spent, kind)
        yield "tick", self._later(state), None
        if any(meter.paused > 0 for meter in state.meters):
            after = self._paused(state, None)
            looked, _ = self._ask(after, 0, None, caller=self.core.acquire.Caller.PEEK)
            yield "resume", after, "pause" if looked.reason.name == "PAUSED" else None
        if state.faults:
            for what, after in self._faults(state._replace(faults=state.faults - 1, orderly=False)):
                yield what, after, None

    def _faults(self, state: State) -> Iterator[tuple[str, State]]:
        kinds = self.kinds_of_fault
        if "pause" in kinds:
            yield f"pause for {_PAUSE}", self._paused(state, _PAUSE)
        if "back" in kinds:
            yield f"the clock steps back {_BACK}", self._moved(state, -_BACK)
        if "lose" in kinds:
            yield "all state is lost", self._fresh(state)
        if "rate" in kinds:
            for interval in {max(1, state.interval // 2), state.interval * 2} - {state.interval}:
                if interval <= 4:
                    # A limit defined anew is another bucket, and its line another line: no ticket has a place there.
                    jobs = tuple(job._replace(claim=None) for job in state.jobs)
                    after = self._fresh(state)._replace(interval=interval, jobs=jobs)
                    yield f"interval {state.interval} -> {interval}", after
        if "settle" in kinds:
            for by in (1, -1):
                if by > 0 or state.meters[0].level > 0:
                    yield f"a job of limit 0 is settled for {by:+d}", self._settled(state, by)
        for index, job in enumerate(state.jobs):
            rest = state.jobs[:index] + state.jobs[index + 1 :]
            if "twice" in kinds:
                yield f"{self._named(job)} is delivered twice", state._replace(jobs=(*state.jobs, job))
            if "forget" in kinds and job.claim is not None:
                after = state._replace(jobs=(*rest, job._replace(claim=None)))
                yield f"{self._named(job)} loses its ticket", after

    def _comes(self, state: State, job: Waiting, what: str) -> tuple[str, State | None, str | None]:
        new = job.claim is None
        verdict, after = self._ask(state, job.kind, self._place(job))
        said = verdict.reason.name
        rule = self._wrong(state, after, job.kind, verdict)
        if verdict.allowed:
            return f"{what}: passes", self._filled(after, job.kind), rule
        due = (verdict.due_us - NOW_US) // TICK_US
        waits = Waiting(job.kind, due, verdict.claim)
        if said == "EARLY" and (due != job.due or verdict.claim != job.claim or after.stored != state.stored):
            rule = rule or "early"
        if state.orderly and job.due > 0 and due != job.due:
            rule = rule or "early"
        if state.orderly and not new and job.due == 0:
            rule = rule or "promise"
        return f"{what}: {said}, due {due:+d}", after._replace(jobs=(*after.jobs, waits)), rule

    def _guest(self, state: State, kind: int) -> tuple[str, State | None, str | None]:
        verdict, after = self._ask(state, kind, None, caller=self.core.acquire.Caller.GUEST)
        rule = self._wrong(state, after, kind, verdict)
        if verdict.allowed:
            return "a guest passes", self._filled(after, kind), rule
        for old, new in zip(state.stored, after.stored, strict=True):
            if new != old._replace(guest=new.guest):
                rule = rule or "guest"
        return f"a guest comes: {verdict.reason.name}", after, rule

    def _impatient(self, state: State, kind: int) -> tuple[str, State | None, str | None]:
        verdict, after = self._ask(state, kind, None, max_wait_us=TICK_US)
        rule = self._wrong(state, after, kind, verdict)
        if verdict.allowed:
            return "a job that waits a tick passes", self._filled(after, kind), rule
        due = (verdict.due_us - NOW_US) // TICK_US
        if due > 1:
            return f"a job that waits a tick comes: due {due:+d}", after, "guest" if after != state else rule
        return (
            f"a job that waits a tick comes: due {due:+d}",
            after._replace(jobs=(*after.jobs, Waiting(kind, due, verdict.claim))),
            rule,
        )

    def _wrong(self, state: State, after: State, kind: int, verdict: Any) -> str | None:
        costs = dict(self.kinds[kind])
        for limit, (old, new, meter) in enumerate(zip(state.stored, after.stored, state.meters, strict=True)):
            cost = costs.get(limit, 0) if verdict.allowed else 0
            if cost and meter.paused > 0:
                return "pause"
            if cost and max(meter[:2]) + cost * state.interval > self.bursts[limit] * state.interval:
                return "bound"
            full = max(old.tat or 0, 0) + cost * state.interval
            if old.paused is None and max(new.tat or 0, 0) != full:
                return "charge"
            if not cost and (new.tat, new.debt) != (old.tat, old.debt):
                return "charge"
        return None

    def _filled(self, state: State, kind: int) -> State:
        meters = list(state.meters)
        for limit, cost in self.kinds[kind]:
            level, after, paused = meters[limit]
            meters[limit] = Meter(level + cost * state.interval, after and after + cost * state.interval, paused)
        return state._replace(meters=tuple(meters))

    def _later(self, state: State) -> State:
        meters = []
        for limit, (level, after, paused) in enumerate(state.meters):
            after = (
                self.bursts[limit] * state.interval if paused == 1 else max(0, after - 1)
            )  # no burst follows a pause
            meters.append(Meter(max(0, level - 1), after, max(0, paused - 1)))
        return self._moved(state._replace(meters=tuple(meters)), 1)

    def _moved(self, state: State, by: int) -> State:
        """The store's clock goes on by *by*; the meters, which count real time, but for a pause."""
        stored = tuple(self._in_ticks(self._shipped(each), by) for each in state.stored)
        jobs = tuple(job._replace(due=job.due - by) for job in state.jobs)
        meters = state.meters
        if by < 0:
            meters = tuple(meter._replace(paused=meter.paused - by if meter.paused else 0) for meter in meters)
        orderly = state.orderly and all(job.due >= 0 for job in jobs)
        return state._replace(stored=stored, jobs=jobs, meters=meters, orderly=orderly)

    def _paused(self, state: State, ticks: int | None) -> State:
        for_us = None if ticks is None else ticks * TICK_US
        first = self._in_ticks(self.core.acquire.pause(self._shipped(state.stored[0]), NOW_US, for_us))
        level, after, paused = state.meters[0]
        if ticks is None:
            meter = Meter(level, self.bursts[0] * state.interval if paused else after, 0)
        else:
            meter = Meter(level, after, max(paused, ticks))
        return state._replace(stored=(first, *state.stored[1:]), meters=(meter, *state.meters[1:]), orderly=False)

    def _settled(self, state: State, by: int) -> State:
        algorithm = self.core.gcra.Bucket.of(1, state.interval * TICK_US, self.bursts[0]).bind(1)
        shipped = self._shipped(state.stored[0])
        taken = algorithm.settled(shipped.taken, NOW_US, NOW_US, by * algorithm.size)
        first = self._in_ticks(self.core.acquire.State(taken, shipped.line))
        level, after, paused = state.meters[0]
        meter = Meter(max(0, level + by * state.interval), after, paused)
        return state._replace(stored=(first, *state.stored[1:]), meters=(meter, *state.meters[1:]))

    def _fresh(self, state: State) -> State:
        number = len(self.bursts)
        return state._replace(stored=(_NOTHING,) * number, meters=(Meter(0, 0, 0),) * number, dead=0)

    def _canonical(self, state: State) -> State:
        ends = [end for each in state.stored for end in (each.tail, each.late) if end is not None]
        oldest = -LATE - self._back
        return state._replace(
            jobs=tuple(sorted((job._replace(due=max(job.due, oldest)) for job in state.jobs), key=_order)),
            dead=state.dead if ends else 0,
        )

    def _cost(self, kind: int) -> str:
        return " and ".join(f"{cost} of limit {limit}" for limit, cost in self.kinds[kind])

    def _named(self, job: Waiting) -> str:
        return f"the job ({self._cost(job.kind)}) due {job.due:+d}"

    # What must come about.

    def plays(self, state: State) -> Iterator[tuple[str, str]]:
        bare = self._canonical(state._replace(left=0, faults=0, orderly=False))
        if "peek" in self.rules:
            yield from self._peeks(bare)
        if "live" in self.rules and bare.jobs:
            stated = self._stated(bare)
            longest = self._longest(bare._replace(meters=(), dead=0))
            if longest is None:
                yield "jobs wait for ever", "live"
            elif longest > stated:
                yield f"all pass after {longest} ticks, stated are {stated}", "live"
            self.worst = max(self.worst, longest or 0)
        if self._back:
            return  # the line's instants are the store's, which then says less of real time
        if "idle" in self.rules and bare.jobs:
            units = self._units(bare)
            stated = units + bare.dead + 1
            took = self._punctual(bare)
            if took > stated:
                yield f"all pass after {took} ticks, units for all are there after {units}, {bare.dead} died", "idle"
        if "purge" in self.rules and not bare.jobs and bare.dead:
            units = self._units(bare._replace(jobs=(Waiting(0, 0, None),)))
            stated = units - (-bare.dead // min(self.bursts))
            took = self._newcomers(bare)
            if took > stated:
                yield f"a new job a tick: the first passes after {took} ticks, a unit is there after {units}", "purge"

    def _peeks(self, state: State) -> Iterator[tuple[str, str]]:
        for kind in range(len(self.kinds)):
            looked, same = self._ask(state, kind, None, caller=self.core.acquire.Caller.PEEK)
            asked, _ = self._ask(state, kind, None)
            if same.stored != state.stored or (looked.reason, looked.due_us) != (asked.reason, asked.due_us):
                yield f"a peek of {self._cost(kind)}: {looked.reason.name}", "peek"

    def _units(self, state: State) -> int:
        """After how many ticks there are units for all the live jobs, were they the only ones."""
        longest = 0
        for limit, (level, after, paused) in enumerate(state.meters):
            need = sum(cost for job in state.jobs for of, cost in self.kinds[job.kind] if of == limit)
            burst = self.bursts[limit] * state.interval
            if need:
                full = max(level, after, paused + burst if paused else 0)
                longest = max(longest, full + need * state.interval - burst)
        return longest

    def _stated(self, state: State) -> int:
        """Within how many ticks all jobs pass: behind all instants that were given, each late, and then one by one."""
        instants = [0] + [job.due for job in state.jobs]
        for limit, stored in enumerate(state.stored):
            instants += [each for each in (stored.tat, stored.tail, stored.late) if each is not None]
            if stored.paused is not None:
                instants.append(stored.paused + self.bursts[limit] * state.interval)
        live = sum(cost for job in state.jobs for _, cost in self.kinds[job.kind])
        return max(instants) + live * (state.interval + LATE)

    def _longest(self, state: State) -> int | None:
        """
        After how many ticks all jobs have passed, at worst, in whatever order and however late they come; None: a job
        may wait for ever.
        """
        if state in self._played:
            return self._played[state]
        self._played[state] = None  # met again below, it is a circle
        if not state.jobs:
            self._played[state] = 0
            return 0
        worst = 0
        for index, job in enumerate(state.jobs):
            if job.due > 0 or (index and job == state.jobs[index - 1]):
                continue
            rest = state._replace(jobs=state.jobs[:index] + state.jobs[index + 1 :])
            verdict, after = self._ask(rest, job.kind, self._place(job))
            if not verdict.allowed:
                due = (verdict.due_us - NOW_US) // TICK_US
                after = after._replace(jobs=(*after.jobs, Waiting(job.kind, due, verdict.claim)))
            took = self._longest(self._canonical(after))
            if took is None:
                return None
            worst = max(worst, took)
        if all(job.due > -LATE for job in state.jobs):
            took = self._longest(self._canonical(self._moved(state, 1)))
            if took is None:
                return None
            worst = max(worst, took + 1)
        self._played[state] = worst
        return worst

    def _punctual(self, state: State) -> int:
        """After how many ticks all jobs have passed, if each comes back exactly when it is due."""
        for ticks in range(_NEVER):
            state, _ = self._all_that_are_due(state)
            if not state.jobs:
                return ticks
            state = self._canonical(self._moved(state, 1))
        return _NEVER

    def _newcomers(self, state: State) -> int:
        """After how many ticks one of the new jobs passes, if one comes each tick."""
        for ticks in range(_NEVER):
            state, passed = self._all_that_are_due(state._replace(jobs=(*state.jobs, Waiting(0, 0, None))))
            if passed:
                return ticks
            state = self._canonical(self._moved(state, 1))
        return _NEVER

    def _all_that_are_due(self, state: State) -> tuple[State, bool]:
        passed = False
        for job in state.jobs:
            if job.due <= 0:
                jobs = list(state.jobs)
                jobs.remove(job)
                verdict, state = self._ask(state._replace(jobs=tuple(jobs)), job.kind, self._place(job))
                passed |= verdict.allowed
                if not verdict.allowed:
                    due = (verdict.due_us - NOW_US) // TICK_US
                    state = state._replace(jobs=(*state.jobs, Waiting(job.kind, due, verdict.claim)))
        return state, passed


def _order(job: Waiting) -> tuple[int, int, int]:
    return job.due, job.kind, -1 if job.claim is None else job.claim


def _when(due: int) -> str:
    return "on time" if due == 0 else "early" if due > 0 else "late"
