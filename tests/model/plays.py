"""What must come about from each state of a small world: it is played out."""

from __future__ import annotations

from collections.abc import Iterator

from model.rules import Rules
from model.state import LATE, LOOK, Job, Meter, State, up

__all__ = ["Plays"]

_NEVER = 200


class Plays(Rules):
    """A world that plays its states out."""

    def plays(self, state: State) -> Iterator[tuple[str, str]]:
        if self.renewed:
            return
        bare = self._bare(state)
        if "peek" in self.rules:
            yield from self._peeks(bare)
        if {"live", "bounded"} & self.rules and bare.jobs:
            longest, stated = self._longest(bare), self._stated(bare)
            if longest is None and "live" in self.rules:
                yield "jobs wait for ever", "live"
            elif longest is not None and longest > stated and "bounded" in self.rules:
                yield f"all pass after {longest} ticks, stated are {stated}", "bounded"
            self.worst = max(self.worst, longest or 0)
        if "dead" in self.rules and not bare.jobs and any(each.jobs for each in bare.stored):
            yield from self._dead(bare)
        if "idle" in self.rules and bare.jobs:
            yield from self._idle(state)
        if "purge" in self.rules and not bare.jobs and len(self.bursts) == 1 and bare.stored[0].jobs:
            yield from self._purge(state)

    def _bare(self, state: State) -> State:
        meters = tuple(Meter(0, 0, 0, 0, (0,) * len(each.jobs)) for each in state.stored)
        return self._canonical(state._replace(left=0, faults=0, orderly=False, fair=None, meters=meters))

    def _peeks(self, state: State) -> Iterator[tuple[str, str]]:
        for kind in range(len(self.kinds)):
            new = Job(kind, 0, (None,) * len(self.bursts))
            looked, _, before, after = self._ask(state, new, self.core.acquire.Caller.PEEK)
            asked, *_ = self._ask(state, new)
            if not self._back and any(old is not new for old, new in zip(before, after, strict=True)):
                yield f"a peek of {self._cost(kind)} writes", "peek"
            if (looked.reason, looked.due_us) != (asked.reason, asked.due_us):
                yield f"a peek of {self._cost(kind)}: {looked.reason.name}, {up(looked.due_us)}", "peek"

    def _plainly(self, state: State, job: Job) -> tuple[bool, State]:
        verdict, after, _, stores = self._ask(state, job)
        if not verdict.allowed:
            waits = Job(job.kind, up(verdict.due_us), self._tickets(verdict, job, stores))
            after = after._replace(jobs=(*after.jobs, waits))
        return verdict.allowed, after

    def _longest(self, state: State) -> int | None:
        """After how many ticks all have passed, at worst, if they come within [due, due + 1]; None: maybe never."""
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
            took = self._longest(self._bare(self._plainly(rest, job)[1]))
            if took is None:
                return None
            worst = max(worst, took)
        if all(job.due > -LATE for job in state.jobs):
            took = self._longest(self._bare(self._moved(state, 1)))
            if took is None:
                return None
            worst = max(worst, took + 1)
        self._played[state] = worst
        return worst

    def _stated(self, state: State) -> int:
        """Within how many ticks all jobs pass."""
        instants = [0, *(job.due for job in state.jobs)]
        units = entries = 0
        for limit, stored in enumerate(state.stored):
            paused = 0 if stored.paused is None else stored.paused
            burst = self.bursts[limit] * self.interval
            looked = 0 if stored.paused is None else max(paused + LOOK, paused + burst)
            instants += [stored.tat, looked, stored.since]
            alive = {job.places[limit][:3] for job in state.jobs if job.places[limit]}
            dead = [e for e in stored.jobs if (True, *e[:2]) not in alive]
            entries += len(dead)
            units = max(
                units,
                sum(e.cost for e in dead)
                + sum(cost for job in state.jobs for of, cost in self.kinds[job.kind].costs if of == limit),
            )
        return max(instants) + units * self.interval + (self.grace + 1) * (entries + 1) + LATE * len(state.jobs)

    def _dead(self, state: State) -> Iterator[tuple[str, str]]:
        """A live job of each kind asks each tick, and another after its grant: no entry of a dead job stays."""
        dead = {entry.number for entry in state.stored[0].jobs}
        # Those of a higher class keep every unit, if they want to: nothing is promised to a lower one.
        kinds = [number for number, kind in enumerate(self.kinds) if kind.rank == 0]
        new = [Job(kind, 0, (None,) * len(self.bursts)) for kind in kinds]
        state = state._replace(jobs=tuple(new))
        for _ in range(_NEVER):
            for _ in new:
                job = state.jobs[0]
                passed, state = self._plainly(state._replace(jobs=state.jobs[1:]), job)
                if passed:
                    state = state._replace(jobs=(*state.jobs, new[kinds.index(job.kind)]))
            dead &= {entry.number for entry in state.stored[0].jobs}
            if not dead:
                return
            state = self._moved(state, 1)
        yield f"{len(dead)} entries of dead jobs stay while others ask each tick", "dead"

    def _purge(self, state: State) -> Iterator[tuple[str, str]]:
        if self._back:
            return
        stored, meter = state.stored[0], state.meters[0]
        burst = self.bursts[0] * self.interval
        cost = self.kinds[0].costs[0][1]
        full = max(meter.level, meter.after, meter.emptied + burst if meter.emptied else 0)
        unit = max(meter.paused, full + cost * self.interval - burst, stored.since)
        if stored.paused is not None:
            unit = max(unit, stored.paused + LOOK)
        died = len(stored.jobs)
        dearest = max(each.cost for each in stored.jobs)
        stated = unit + (dearest - 1) * self.interval + (self.grace + 1) * died
        now = self._bare(state)
        for _ in range(stated + 1):
            now = now._replace(jobs=(*now.jobs, Job(0, 0, (None,) * len(self.bursts))))
            for _ in now.jobs:
                passed, now = self._plainly(now._replace(jobs=now.jobs[1:]), now.jobs[0])
                if passed:
                    return
            now = self._bare(self._moved(now, 1))
        yield (
            f"a new job a tick, and none passed after {stated} ticks; a unit is there after {unit}, {died} died",
            "purge",
        )

    def _idle(self, state: State) -> Iterator[tuple[str, str]]:
        if self._back:
            return  # the store's instants then say less of real time
        units, entries = 0, 0
        for limit, (stored, meter) in enumerate(zip(state.stored, state.meters, strict=True)):
            level, after, paused, emptied, _ = meter
            need = sum(cost for job in state.jobs for of, cost in self.kinds[job.kind].costs if of == limit)
            burst = self.bursts[limit] * self.interval
            alive = {job.places[limit][:3] for job in state.jobs if job.places[limit]}
            died = [e.cost for e in stored.jobs if (True, *e[:2]) not in alive]
            entries += len(died)
            if need:
                full = max(level, after, emptied + burst if emptied else 0)
                units = max(units, paused, full + (need + max(died, default=1) - 1) * self.interval - burst)
                if stored.paused is not None and entries:
                    units = max(units, stored.paused + LOOK)
                if entries:
                    units = max(units, stored.since)
        stated = units + (self.grace + 1) * entries
        now = self._bare(state)
        for _ in range(stated + 1):
            now = now._replace(jobs=tuple(sorted(now.jobs, key=lambda job: [each[1:3] for each in job.places if each])))
            for _ in now.jobs:
                now = self._plainly(now._replace(jobs=now.jobs[1:]), now.jobs[0])[1]
            if not now.jobs:
                return
            now = self._bare(self._moved(now, 1))
        yield f"not all passed after {stated} ticks; units are there after {units}, {entries} entries are dead", "idle"
