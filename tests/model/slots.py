"""
Small worlds around a limit of so many jobs at once: a few jobs, the store's holders, and a record of its own.

Time is told in ticks from now; a lease is two. A job asks, and if it is admitted renews, gives back, or does neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from throttlekit._core.line import Line

from model.core import Core, core
from throttlekit._core.claim import StoreClaim
from throttlekit._core.storage_keys import with_slots

__all__ = ["RULES", "SlotWorld"]

RULES: Mapping[str, str] = {
    "slots": "never more slots are held within their leases than there are, by a record of its own",
    "lease": "a slot is free when the lease of its holder has ended, and until then its holder has it",
    "release": "a slot that is given back is free at once; given back again or by another job, nothing changes",
    "renewal": "a renewal keeps a slot, or takes a free one; else it fails and changes nothing",
    "others": "what one job does takes no other job's slot",
    "quiet": "a job that is denied takes no slot",
    "turn": "a job that asks each tick is admitted, however fast others take the slots that come free",
    "idle": "once no job holds a slot, each job that waits is admitted, one after the other",
}

TICK_US = 5_000_000
NOW_US = 1_800_000_000_000_000
LEASE = 2
_BACK = 2
_TURN = 20
_LINE = tuple(each.name for each in fields(Line) if each.name != "until_us")
_INSTANTS = tuple(name for name in _LINE if name.endswith("_us") and name != "grace_us")
_TAGS = ("finishes", "returns")


class Job(NamedTuple):
    name: str
    until: int | None
    """When its lease ends, by the record; None: it has no slot."""
    since: int
    """When it was admitted."""
    due_us: int | None
    """When it is due, from now; None: it does not wait."""
    place: tuple[int, int, int, int] | None = None
    """Its place, but for the seal, with its instant from now."""

    @property
    def is_holder(self) -> bool:
        return self.until is not None and self.until > 0


class State(NamedTuple):
    holders: tuple[Any, ...] | None
    """The shipped state, with instants from now."""
    line: tuple[Any, ...] | None
    """The shipped line, with instants from now."""
    jobs: tuple[Job, ...]
    ticks: int | None
    faults: int


@dataclass
class SlotWorld:
    """
    A limit of *slots*, and jobs that ask for them.

    Args:
        ticks: How long the histories are. None: of any length, but without what paces the line: its instants and the
            mean of the holds are different in every history.
        faults: How often the store's clock may step, or its state be lost.
        costs: How many slots each job needs.
    """

    slots: int = 1
    jobs: int = 2
    ticks: int | None = None
    faults: int = 0
    costs: tuple[int, ...] = (1, 1, 1)
    rules: frozenset[str] = frozenset(RULES)
    core: Core = field(default_factory=core)

    def _algorithm(self, name: str) -> Any:
        return self.core.concurrency.ConcurrencyAlgorithm(
            self._cost(name), self.slots, LEASE * TICK_US, with_slots(name, self._cost(name))
        )

    def _cost(self, name: str) -> int:
        return self.costs["abc".index(name)]

    def _opened(self, state: State) -> Any:
        holders, line = state.holders, None
        if state.line is not None:
            named = dict(zip(_LINE, state.line, strict=True))
            for name in _INSTANTS:
                named[name] = NOW_US + named[name] if named[name] else 0
            for name in _TAGS:
                named[name] = dict(named[name])
            line = self.core.line.Line(**named)
        if holders is None:
            return self.core.acquire.State(None, line)
        leases, mean, granted, longest = holders
        shipped = self.core.concurrency.Holders(
            tuple((name, NOW_US + until) for name, until in leases), mean, NOW_US + granted if granted else 0, longest
        )
        return self.core.acquire.State(shipped, line)

    def _closed(self, state: State, shipped: Any) -> State:
        taken, line = shipped
        told = None
        if line is not None and state.ticks is not None:
            named = {name: getattr(line, name) for name in _LINE}
            for name in _INSTANTS:
                named[name] = (named[name] - NOW_US or -1) if named[name] else 0
            for name in _TAGS:
                named[name] = tuple(sorted(named[name].items()))
            told = tuple(named.values())
        if taken is None:
            return state._replace(holders=None, line=told)
        oldest = -TICK_US * (1 + _BACK * state.faults)
        leases = tuple((name, until - NOW_US) for name, until in taken.leases if until - NOW_US > oldest)
        granted = (taken.granted_us - NOW_US or -1) if taken.granted_us else 0
        paced = (0, 0) if state.ticks is None else (taken.mean_us, granted)
        return state._replace(holders=(leases, *paced, taken.longest_us), line=told)

    def starts(self) -> Iterator[tuple[str, State]]:
        jobs = tuple(Job(name, None, 0, None) for name in "abc"[: self.jobs])
        yield f"{self.slots} free", State(None, None, jobs, self.ticks, self.faults)

    def steps(self, state: State) -> Iterator[tuple[str, State | None, str | None]]:
        for what, after, rule in self._all_steps(state):
            yield what, after, rule if rule in self.rules else None

    def _all_steps(self, state: State) -> Iterator[tuple[str, State | None, str | None]]:
        for index, job in enumerate(state.jobs):
            if not job.is_holder:
                yield self._acquires(state, index, job)
            yield self._releases(state, index, job)
            yield self._renews(state, index, job)
        if state.ticks != 0:
            left = None if state.ticks is None else state.ticks - 1
            yield "tick", self._moved(state._replace(ticks=left), 1), None
        if state.faults:
            spent = state._replace(faults=state.faults - 1)
            yield f"the clock steps back {_BACK}", self._moved(spent, -_BACK), None
            yield "the clock steps forward 3", self._moved(spent, 3), None
            jobs = tuple(job._replace(until=None) for job in state.jobs)
            yield "all state is lost", spent._replace(holders=None, line=None, jobs=jobs), None

    def _acquires(self, state: State, index: int, job: Job) -> tuple[str, State | None, str | None]:
        acquire = self.core.acquire
        claim = StoreClaim("slots", self._algorithm(job.name), self._cost(job.name))
        before = self._opened(state)
        places = []
        if job.place is not None and before.line is not None and before.line.epoch == job.place[0]:
            places = [self.core.line.signed(before.line, "slots", *job.place[1:3], NOW_US + job.place[3])]
        verdict, (shipped,) = acquire.acquire(
            [claim], [before], NOW_US, caller=acquire.Caller.JOB, places=places, secret="secret"
        )
        after = self._closed(state, shipped)
        what = f"{job.name} asks: {verdict.reason.name}"
        if not verdict.allowed:
            rule = "quiet" if self._held(after) != self._held(state) else None
            # Of a slot that it lost, a job that asks again knows nothing more.
            waits = Job(job.name, job.until, 0, 0)
            if state.ticks is not None:
                (place,) = verdict.places
                told = (*place[:3], place.due_us - NOW_US)
                waits = waits._replace(due_us=verdict.due_us - NOW_US, place=told)
            return what, self._with(after, index, waits), rule
        if self._free(state, job) < self._cost(job.name):
            return what, None, "slots"
        return what, *self._judged(
            state, self._passed_on(self._with(after, index, Job(job.name, LEASE, 0, None))), index
        )

    def _releases(self, state: State, index: int, job: Job) -> tuple[str, State | None, str | None]:
        before = self._opened(state)
        algorithm = self._algorithm(job.name)
        granted_us = NOW_US + job.since * TICK_US
        taken = algorithm.released(algorithm.sanitized(before.taken, NOW_US), NOW_US, granted_us)
        again = algorithm.released(taken, NOW_US, granted_us)
        after = self._closed(state, self.core.acquire.State(taken, before.line))
        what = f"{job.name} gives back"
        if again is not taken or (not job.is_holder and self._held(after) != self._held(state)):
            return what, None, "release"
        if job.name in self._held(after):
            return what, None, "release"
        if job.is_holder:
            # A lease that has ended is not removed: a clock that steps back gives it back its time.
            after = self._with(after, index, job._replace(until=None, since=0))
        return what, *self._judged(state, after, index)

    def _renews(self, state: State, index: int, job: Job) -> tuple[str, State | None, str | None]:
        before = self._opened(state)
        algorithm = self._algorithm(job.name)
        taken, has = algorithm.renewed(algorithm.sanitized(before.taken, NOW_US), NOW_US)
        after = self._closed(state, self.core.acquire.State(taken, before.line))
        fits = self._free(state, job) >= self._cost(job.name)
        what = f"{job.name} renews: {has}"
        if has and not fits:
            return what, None, "slots"
        if has != (job.is_holder or fits) or (not has and after.holders != state.holders):
            return what, None, "renewal"
        if has:
            after = self._passed_on(self._with(after, index, job._replace(until=LEASE)))
        return what, *self._judged(state, after, index)

    def _judged(self, state: State, after: State, index: int) -> tuple[State | None, str | None]:
        """*after*, and the rule that its holders break."""
        held = self._held(after)
        for number, (old, new) in enumerate(zip(state.jobs, after.jobs, strict=True)):
            if new.is_holder != (new.name in held):
                return None, "others" if number != index else "lease" if old.is_holder else "slots"
        return after, None

    def _passed_on(self, state: State) -> State:
        """*state* after a slot was taken: no lease that had ended before comes back with the clock."""
        return state._replace(
            jobs=tuple(job._replace(until=job.until if job.is_holder else None) for job in state.jobs)
        )

    def _free(self, state: State, asking: Job) -> int:
        return self.slots - sum(self._cost(job.name) for job in state.jobs if job.is_holder and job is not asking)

    def _held(self, state: State) -> set[str]:
        """The holders whose leases have not ended, by the store."""
        if state.holders is None:
            return set()
        return {name[0] for name, until in state.holders[0] if until > 0}

    def _with(self, state: State, index: int, job: Job) -> State:
        return state._replace(jobs=(*state.jobs[:index], job, *state.jobs[index + 1 :]))

    def _moved(self, state: State, by: int) -> State:
        def older(at: int, by_us: int = by * TICK_US) -> int:
            return (at - by_us or -1) if at else 0

        holders = state.holders
        if holders is not None:
            leases, mean, granted, longest = holders
            leases = tuple((name, until - by * TICK_US) for name, until in leases)
            holders = (leases, mean, older(granted), longest)
        oldest = -_BACK * state.faults - 1
        jobs = tuple(
            job._replace(
                until=None if job.until is None or job.until - by <= oldest else job.until - by,
                since=0 if state.ticks is None else job.since - by,
                due_us=None if job.due_us is None else max(job.due_us - by * TICK_US, -TICK_US),
                place=None if job.place is None else (*job.place[:3], job.place[3] - by * TICK_US),
            )
            for job in state.jobs
        )  # fmt: skip
        line = state.line
        if line is not None:
            named = dict(zip(_LINE, line, strict=True))
            line = tuple((named | {name: older(named[name]) for name in _INSTANTS}).values())
        moved = state._replace(holders=holders, line=line, jobs=jobs)
        return self._closed(moved, self._opened(moved))

    def plays(self, state: State) -> Iterator[tuple[str, str]]:
        held = self._held(state)
        record = {job.name for job in state.jobs if job.is_holder}
        if "lease" in self.rules and held != record:
            yield f"the store has {sorted(held)}, within their leases are {sorted(record)}", "lease"
        if "idle" in self.rules:
            yield from self._idle(state)
        if "turn" in self.rules and state.ticks is not None:
            for index, job in enumerate(state.jobs):
                if job.due_us is not None:
                    yield from self._turn(state, index)

    def _idle(self, state: State) -> Iterator[tuple[str, str]]:
        """All holders die; the jobs that wait ask each tick, and give back at once."""
        stated = LEASE + _BACK * (self.faults - state.faults)
        for _ in range(stated + 1):
            for index, job in enumerate(state.jobs):
                if job.due_us is not None:
                    _, after, _ = self._acquires(state, index, job)
                    if after is not None and after.jobs[index].is_holder:
                        _, after, _ = self._releases(after, index, after.jobs[index])
                    state = after or state
            if all(job.due_us is None for job in state.jobs):
                return
            state = self._moved(state, 1)
        yield f"{stated} ticks after all holders died a job still waits", "idle"

    def _turn(self, state: State, waits: int) -> Iterator[tuple[str, str]]:
        """Each tick every other job gives its slot back, all others ask, and last of all the job that waits."""
        others = [index for index in range(len(state.jobs)) if index != waits]
        for _ in range(_TURN):
            held = [index for index in others if state.jobs[index].is_holder]
            for index in held:
                state = self._releases(state, index, state.jobs[index])[1] or state
            for index in (*[index for index in others if index not in held], *held, waits):
                if not state.jobs[index].is_holder:
                    state = self._acquires(state, index, state.jobs[index])[1] or state
            if state.jobs[waits].is_holder:
                return
            state = self._moved(state, 1)
        yield f"{state.jobs[waits].name} asks each tick, and is not admitted in {_TURN} ticks", "turn"
