"""
Small worlds of workflows that hold slots of one limit: their jobs begin, run and end, one after the other or at once.

Time is told in ticks from now; a lease is two. A record of its own says which workflow holds a slot, and until when.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from model.core import Core, core
from throttlekit._core.claim import StoreClaim
from throttlekit._core.storage_keys import workflow_name

__all__ = ["RULES", "WorkflowWorld"]

RULES: Mapping[str, str] = {
    "slots": "never do more workflows hold a slot, within their leases, than there are slots",
    "enters": "a job of a workflow that holds a slot passes; what it asks takes no other workflow's",
    "stays": "a job that begins, ends or renews keeps its workflow's slot for a lease, and no renewal takes one",
    "done": "once a workflow is done its slot is free; said again, that changes nothing",
    "cancel": "a grant that is cancelled gives back what it took, unless a job of its workflow came since",
}

TICK_US = 5_000_000
NOW_US = 1_800_000_000_000_000
LEASE_US = 2 * TICK_US
_OLDEST_US = -3 * TICK_US


class Workflow(NamedTuple):
    """One workflow, by the record. Instants in µs from now."""

    until_us: int | None = None
    """When its lease ends; None: it holds nothing."""
    granted_us: int | None = None
    """When its last job was granted; None: too long ago to matter."""
    took: bool = False
    """Whether that grant took the slot, and no job of the workflow came since."""

    @property
    def holds(self) -> bool:
        return self.until_us is not None and self.until_us > 0


class State(NamedTuple):
    leases: tuple[tuple[str, int], ...] | None
    """What the store keeps, with instants from now."""
    workflows: tuple[Workflow, ...]
    faults: int


@dataclass
class WorkflowWorld:
    """*workflows* that ask for *slots*; *faults*: how often the store's clock may step back, or its state be lost."""

    slots: int = 1
    workflows: int = 2
    faults: int = 0
    rules: frozenset[str] = frozenset(RULES)
    core: Core = field(default_factory=core)

    def starts(self) -> Iterator[tuple[str, State]]:
        yield f"{self.slots} free", State(None, (Workflow(),) * self.workflows, self.faults)

    def plays(self, state: State) -> Iterator[tuple[str, str]]:
        held = {name for name, until_us in state.leases or () if until_us > 0}
        record = {_name(number) for number, each in enumerate(state.workflows) if each.holds}
        if "stays" in self.rules and held != record:
            yield f"the store has {sorted(held)}, by the record it is {sorted(record)}", "stays"

    def steps(self, state: State) -> Iterator[tuple[str, State, str | None]]:
        for what, after, rule in self._all_steps(state):
            yield what, after, rule if rule in self.rules else None

    def _all_steps(self, state: State) -> Iterator[tuple[str, State, str | None]]:
        for number, workflow in enumerate(state.workflows):
            yield self._asks(state, number, workflow)
            yield self._keeps(state, number, workflow, "ends")
            yield self._keeps(state, number, workflow, "renews")
            yield self._done(state, number, workflow, "release")
            yield self._done(state, number, workflow, "settle")
            if workflow.granted_us is not None:
                yield self._cancelled(state, number, workflow, workflow.granted_us)
        yield "tick", self._moved(state, 1), None
        if state.faults:
            spent = state._replace(faults=state.faults - 1)
            yield "the clock steps back", self._moved(spent, -1), None
            lost = tuple(each._replace(until_us=None, took=False) for each in state.workflows)
            yield "all state is lost", spent._replace(leases=None, workflows=lost), None

    def _asks(self, state: State, number: int, workflow: Workflow) -> tuple[str, State, str | None]:
        acquire, before = self.core.acquire, self._opened(state)
        claim = StoreClaim("slots", self._algorithm(number))
        verdict, (shipped,) = acquire.acquire(
            [claim], [acquire.State(before, None)], NOW_US, caller=acquire.Caller.GUEST
        )
        what = f"{number} asks: {verdict.reason.name}"
        if not verdict.allowed:
            return what, state, "enters" if workflow.holds else None
        if not workflow.holds and sum(each.holds for each in state.workflows) >= self.slots:
            return what, state, "slots"
        granted = Workflow(LEASE_US + workflow.holds, 0, not workflow.holds)
        return what, *self._judged(state, number, granted, shipped.taken, "enters")

    def _keeps(self, state: State, number: int, workflow: Workflow, verb: str) -> tuple[str, State, str | None]:
        algorithm, before = self._algorithm(number), self._opened(state)
        if verb == "renews":
            taken, has = algorithm.renewed(before, NOW_US)
        else:
            taken = algorithm.released(before, NOW_US, NOW_US - TICK_US)
            has = taken is not before
        what = f"a job of {number} {verb}: {has}"
        if has != workflow.holds:
            return what, state, "stays"
        kept = workflow._replace(until_us=LEASE_US + 1, took=False) if has else workflow
        return what, *self._judged(state, number, kept, taken, "stays")

    def _done(self, state: State, number: int, workflow: Workflow, verb: str) -> tuple[str, State, str | None]:
        algorithm, before = replace(self._algorithm(number), lease_us=0), self._opened(state)
        if verb == "release":
            taken = algorithm.released(before, NOW_US, NOW_US)
        else:
            taken = algorithm.settled(before, NOW_US, 0, -1)
        ended = workflow._replace(until_us=None, took=False)
        if verb == "release" and not workflow.holds:
            ended = workflow  # a lease that has ended stays, and a clock that steps back gives it back its time
        return f"{number} is done, by a {verb}", *self._judged(state, number, ended, taken, "done")

    def _cancelled(
        self, state: State, number: int, workflow: Workflow, granted_us: int
    ) -> tuple[str, State, str | None]:
        taken = self._algorithm(number).settled(self._opened(state), NOW_US, NOW_US + granted_us, -1)
        after = workflow._replace(until_us=None, took=False) if workflow.took else workflow
        return f"the last grant of {number} is cancelled", *self._judged(state, number, after, taken, "cancel")

    def _judged(self, state: State, number: int, workflow: Workflow, taken: Any, rule: str) -> tuple[State, str | None]:
        """The state with what is *taken*, and *workflow* by the record; and *rule*, if they differ."""
        workflows = list(state.workflows)
        workflows[number] = workflow
        leases = {name: until_us - NOW_US for name, until_us in (taken.leases if taken else ())}
        for at, each in enumerate(workflows):
            kept_us = leases.get(_name(at))
            is_held = kept_us is not None and kept_us > 0
            if is_held != each.holds or (is_held and abs((kept_us or 0) - (each.until_us or 0)) > 1):
                return state, rule
            if kept_us is None:  # a grant removes the leases that have ended
                workflows[at] = each._replace(until_us=None)
        held = tuple(sorted(leases.items(), key=lambda lease: (lease[1], lease[0])))
        return State(held if taken else None, tuple(workflows), state.faults), None

    def _algorithm(self, number: int) -> Any:
        return self.core.concurrency.ConcurrencyAlgorithm(1, self.slots, LEASE_US, _name(number))

    def _opened(self, state: State) -> Any:
        if state.leases is None:
            return None
        leases = tuple((name, NOW_US + until_us) for name, until_us in state.leases)
        holders = self.core.concurrency.Holders(leases, longest_us=LEASE_US)
        return self._algorithm(0).sanitized(holders, NOW_US)

    def _moved(self, state: State, by: int) -> State:
        def moved(at_us: int | None) -> int | None:
            return None if at_us is None or at_us - by * TICK_US < _OLDEST_US else at_us - by * TICK_US

        leases = state.leases
        if leases is not None:
            leases = tuple((name, until_us) for name, at_us in leases if (until_us := moved(at_us)) is not None)
        workflows = tuple(
            each._replace(until_us=moved(each.until_us), granted_us=moved(each.granted_us)) for each in state.workflows
        )
        workflows = tuple(each if each.until_us is not None else each._replace(took=False) for each in workflows)
        return state._replace(leases=leases, workflows=workflows)


def _name(number: int) -> str:
    return workflow_name(f"w{number}")
