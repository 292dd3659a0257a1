"""
Small worlds around `acquire`: a few jobs of two tenants, one limit or several, and a meter of its own.

A clock that jumps forward is several ticks at once, so it needs no step of its own: after a tick a job may still come
on time, late or never. Nor does a limit that is defined anew: its bucket and line are others, as if state were lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from model.plays import Plays
from model.state import BACK, HEARD, NOW_US, NUMBER, OLD, PAUSE, TAG, TICK_US, Job, Meter, State, up

__all__ = ["OrderWorld"]


class OrderWorld(Plays):
    """A world and what can happen in it."""

    def starts(self) -> Iterator[tuple[str, State]]:
        number = len(self.bursts)
        for owed in self.owed:
            nothing = self._closed(self.core.acquire.State(None, None))
            stored = nothing._replace(tat=owed if owed else OLD)
            yield (
                f"full in {owed}",
                State((stored,) * number, (Meter(owed, 0, 0, 0, ()),) * number, (), self.jobs, self.faults, True, None),
            )

    def steps(self, state: State) -> Iterator[tuple[str, State | None, str | None]]:
        for what, after, rule in self._all_steps(state):
            yield what, None if after is None else self._canonical(after), rule if rule in self.rules else None

    def _all_steps(self, state: State) -> Iterator[tuple[str, State | None, str | None]]:
        for index, job in enumerate(state.jobs):
            if index and job == state.jobs[index - 1]:
                continue
            rest = state._replace(jobs=state.jobs[:index] + state.jobs[index + 1 :])
            if self.away:
                break
            if not self.renewed or job.due <= 0:
                yield self._comes(rest, job, f"{self._named(job)} comes")
            if self.renewed:
                continue
            yield f"{self._named(job)} dies", rest._replace(orderly=False, fair=None), None
            if any(job.places):
                yield self._leaves(rest, job)
        if state.left:
            spent = state._replace(left=state.left - 1)
            for kind in range(len(self.kinds)):
                new = Job(kind, 0, (None,) * len(self.bursts))
                yield self._comes(spent, new, f"new {self._cost(kind)} comes")
                if self.guests:
                    yield self._passer(spent, new, self.core.acquire.Caller.GUEST, None, "a guest")
                    yield self._passer(spent, new, self.core.acquire.Caller.JOB, TICK_US, "a job that waits a tick")
        if not (self.renewed and (state.left or any(job.due <= 0 for job in state.jobs))):
            yield "tick", self._later(state), None
        if any(meter.paused > 0 for meter in state.meters):
            after = self._paused(state, None)
            looked, *_ = self._ask(after, Job(0, 0, (None,) * len(self.bursts)), self.core.acquire.Caller.PEEK)
            yield "resume", after, "pause" if looked.reason.name == "PAUSED" else None
        if state.faults:
            yield from self._faults(state._replace(faults=state.faults - 1, orderly=False, fair=None))

    def _faults(self, state: State) -> Iterator[tuple[str, State | None, str | None]]:
        kinds = self.kinds_of_fault
        if "pause" in kinds:
            yield f"pause for {PAUSE}", self._paused(state, PAUSE), None
            yield f"a 429 for {HEARD}", self._paused(state, HEARD, heard=True), None
        if "back" in kinds:
            yield f"the clock steps back {BACK}", self._moved(state, -BACK), None
        if "lose" in kinds:
            yield "all state is lost", self._lost(state), None
        if "settle" in kinds:
            for by in (1, -1):
                if by > 0 or state.meters[0].level > 0:
                    yield f"a job of limit 0 is settled for {by:+d}", self._settled(state, by), None
        for index, job in enumerate(state.jobs):
            rest = state.jobs[:index] + state.jobs[index + 1 :]
            nowhere = (None,) * len(self.bursts)
            if "twice" in kinds:
                yield f"{self._named(job)} is delivered twice", state._replace(jobs=(*state.jobs, job)), None
            if "forget" in kinds and any(job.places):
                yield (
                    f"{self._named(job)} loses its ticket",
                    state._replace(jobs=(*rest, job._replace(places=nowhere))),
                    None,
                )
            if "cost" in kinds:
                for kind, other in enumerate(self.kinds):
                    if kind != job.kind and other.tenant == self.kinds[job.kind].tenant:
                        changed = state._replace(jobs=(*rest, job._replace(kind=kind)))
                        yield f"{self._named(job)} costs {self._cost(kind)} from now on", changed, None
        if "again" in kinds:
            new = Job(0, 0, (None,) * len(self.bursts))
            yield self._comes(state, new, f"{self._cost(0)}, which ran before, comes", again=True)
        if "forge" in kinds and len(self.bursts) == 1 and state.stored[0].has_begun:
            yield from self._forgeries(state)

    def _forgeries(self, state: State) -> Iterator[tuple[str, State | None, str | None]]:
        of, stored = self.core.line, state.stored[0]
        new = Job(0, 0, (None,) * len(self.bursts))
        verdict, after, *_ = self._ask(state, new)
        heads = [(entry.start, entry.number) for entry in stored.jobs[:1]]
        for start, number in [(-1, -9), (0, 0), (99, 99), *heads]:

            def forge(line: Any, start: int = start, number: int = number) -> Any:
                return of.Place(line.epoch, TAG + start, NUMBER + number, NOW_US, "0123456789")

            other, forged, *_ = self._ask(state, new, forge=forge)
            same = (other.reason, other.due_us, forged) == (verdict.reason, verdict.due_us, after)
            yield f"a forged ticket ({start:+d}, {number:+d})", None if not same else state, None if same else "forged"

    def _comes(self, state: State, job: Job, what: str, again: bool = False) -> tuple[str, State | None, str | None]:
        caller = self.core.acquire.Caller
        verdict, after, before, stores = self._ask(state, job, caller.AGAIN if again else caller.JOB)
        rule = self._wrong(state, after, job, verdict, stores, before, again)
        meters = self._aged(state, after, job if verdict.allowed else None)
        fair, unfair = self._fairness(state, after, job, verdict)
        if verdict.allowed:
            after = after._replace(meters=meters, fair=fair)
            if self.renewed:
                follows = [
                    number for number, kind in enumerate(self.kinds) if kind.tenant == self.kinds[job.kind].tenant
                ]
                after = after._replace(jobs=(*after.jobs, Job(follows[0], 0, (None,) * len(self.bursts))))
            return f"{what}: passes", after, rule or unfair
        due = up(verdict.due_us)
        waits = Job(job.kind, due, self._tickets(verdict, job, stores))
        first = job.places[0]
        if state.orderly and first is not None and first.due == 0 and len(self._tenants) == 1 == len(self.bursts):
            rule = rule or "promise"
        after = after._replace(jobs=(*after.jobs, waits), meters=meters, fair=fair)
        places = ", ".join(f"S {each.start:+d}" if each and each.current else "-" for each in waits.places)
        return f"{what}: {verdict.reason.name}, due {due:+d}, {places}", after, rule or unfair

    def _passer(self, state: State, job: Job, caller: Any, max_wait_us: int | None, what: str) -> tuple[Any, Any, Any]:
        """One that will not wait: it passes, or no job waits longer for it."""
        verdict, after, before, stores = self._ask(state, job, caller, max_wait_us=max_wait_us)
        if verdict.allowed:
            rule = self._wrong(state, after, job, verdict, stores, before, False)
            return f"{what} passes", after._replace(meters=self._aged(state, after, job), fair=None), rule
        if max_wait_us is not None and verdict.due_us - NOW_US <= max_wait_us:
            return f"{what} would wait", state, None
        rule = None
        for old, new, opened, stored in zip(state.stored, after.stored, before, stores, strict=False):
            same = new._replace(jobs=(), doubt=0, aside=0, since=0, low=0, dear=0, finishes=(), returns=())
            if same != old._replace(jobs=(), doubt=0, aside=0, since=0, low=0, dear=0, finishes=(), returns=()):
                rule = "guest" if old.has_begun else rule
            if not set(new.jobs) <= set(old.jobs) or (new.jobs and new.finishes != old.finishes):
                rule = "guest"
            del opened, stored
        return (
            f"{what} comes: {verdict.reason.name}",
            after._replace(meters=self._aged(state, after, None), fair=None),
            rule,
        )

    def _leaves(self, state: State, job: Job) -> tuple[str, State | None, str | None]:
        rule, stored, meters = None, list(state.stored), list(state.meters)
        for (limit, _), claim in zip(self.kinds[job.kind].costs, self._claims[job.kind], strict=True):
            before = self._opened(stored[limit], limit)
            place = self._place(stored[limit], limit, job.places[limit], before.line)
            if place is None:
                continue
            old = stored[limit]
            after = self.core.acquire.leave(before, claim, place, NOW_US)
            new = stored[limit] = self._closed(after)
            ticket = job.places[limit]
            own = [e for e in old.jobs if ticket and ticket.current and e[:2] == (ticket.start, ticket.number)]
            if new.jobs != tuple(e for e in old.jobs if e not in own):
                rule = rule or "leave"
            if (new.tat, new.finishes, new.returns, new.number) != (old.tat, old.finishes, old.returns, old.number):
                rule = rule or "leave"
            if before.line is not None and after.line is not None and self._lags(before.line, after.line):
                rule = rule or "moved"
            ages = dict(zip(old.jobs, meters[limit].ages, strict=True))
            meters[limit] = meters[limit]._replace(ages=self._ages(new, meters[limit], limit, ages))
        after_all = state._replace(stored=tuple(stored), meters=tuple(meters), fair=None, orderly=False)
        return f"{self._named(job)} leaves", after_all, rule
