"""The worlds that are searched: by every run of the tests, and by hand for longer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from model.core import Core, Edit, core
from model.order import OrderWorld
from model.slots import SlotWorld
from model.state import RULES, SCALED, Kind
from model.workflows import WorkflowWorld

__all__ = ["DEEP", "WORLDS", "Search"]

_A, _A2 = Kind(0, 1, ((0, 1),)), Kind(0, 1, ((0, 2),))
_B, _B2 = Kind(1, 2, ((0, 1),)), Kind(1, 2, ((0, 2),))
_ACCOUNT = (Kind(0, 1, ((0, 1), (1, 1))), _A._replace(tenant=1))  # of a limit for all, and of one for an account
_OPEN = _A._replace(weight=0)  # of a limit that is not shared
_OPEN_ACCOUNT = tuple(kind._replace(weight=0) for kind in _ACCOUNT)
_RATES = (_A._replace(interval=2), _A._replace(interval=1))  # `rate=` is a callable
_OF_ONE_RATE = {"before", "aside", "idle", "purge", "bounded", "promise", "fair"}
_FAULTS = ("pause", "back", "lose", "settle", "twice", "forget", "again", "forge")


class Search(NamedTuple):
    """A world, and how far it is searched."""

    world: Callable[[Core], OrderWorld | SlotWorld | WorkflowWorld]
    states: int | None
    """None: to the end."""
    edits: tuple[Edit, ...]
    """What is scaled down in the core, so that a small world reaches it."""
    broken: str = ""
    """The rule that is known to be broken, until it is mended."""

    def of(self, *edits: Edit) -> OrderWorld | SlotWorld | WorkflowWorld:
        return self.world(core([*self.edits, *edits]))


def _order(states: int | None, broken: str = "", **options: Any) -> Search:
    return Search(lambda of: OrderWorld(core=of, **options), states, SCALED, broken)


def _slot(states: int | None, *numbers: int | None, broken: str = "", costs: tuple[int, ...] = (1, 1, 1)) -> Search:
    return Search(lambda of: SlotWorld(*numbers, costs=costs, core=of), states, (), broken)  # type: ignore[arg-type]


def _workflow(*numbers: int) -> Search:
    return Search(lambda of: WorkflowWorld(*numbers, core=of), None, ())


WORLDS: Mapping[str, Search] = {
    "one tenant": _order(None, guests=True),
    "without shares": _order(1_500, kinds=(_OPEN,), guests=True),
    "shares that come and go": _order(1_500, kinds=(_A, _OPEN)),
    "two tenants": _order(1_500, kinds=(_A, _B)),
    "always two tenants": _order(None, jobs=4, kinds=(_A, _B), renewed=True),
    "priorities": _order(1_500, kinds=(_A, _B._replace(rank=1))),
    "mixed costs": _order(1_000, kinds=(_A, _A2), bursts=(3,), owed=(0, 6)),
    "always mixed costs": _order(4_000, jobs=4, kinds=(_A, _A2, _B, _B2), bursts=(3,), owed=(0, 6), renewed=True),
    "many jobs": _order(1_000, jobs=5, kinds=(_A, _A2), bursts=(4,), owed=(0, 8)),
    "always two tenants, burst 1": _order(None, jobs=4, kinds=(_A, _B), bursts=(1,), owed=(2,), renewed=True, unfair=1),
    "burst 1": _order(1_500, bursts=(1,), owed=(2,)),
    "jobs that are away": _order(1_000, jobs=4, kinds=(_A, _A2), bursts=(4,), owed=(8,), away=True),
    "rates of their own": _order(1_500, kinds=_RATES, rules=frozenset(RULES) - _OF_ONE_RATE),
    "grace 2": _order(1_500, grace=2),
    "two limits": _order(2_000, kinds=_ACCOUNT, bursts=(2, 1)),
    "two limits without shares": _order(2_000, kinds=_OPEN_ACCOUNT, bursts=(2, 1)),
    "a fault": _order(2_000, jobs=2, kinds=(_A, _B), faults=1, kinds_of_fault=_FAULTS),
    "a pause and a 429": _order(1_500, jobs=2, faults=2, kinds_of_fault=("pause",)),
    "a cost that changes": _order(1_000, jobs=2, kinds=(_A, _A2), faults=1, kinds_of_fault=("cost",)),
    "1 slot": _slot(None, 1, 3),
    "2 slots": _slot(None, 2, 3),
    "1 slot, a fault": _slot(None, 1, 2, None, 1),
    "2 slots, two faults": _slot(2_000, 2, 3, None, 2),
    "1 slot, with the line": _slot(1_000, 1, 2, 3),
    "1 slot, three jobs in line": _slot(300, 1, 3, 2),
    "3 slots, costs": _slot(None, 3, 3, costs=(2, 1, 3)),
    "3 slots, costs, two faults": _slot(2_000, 3, 3, None, 2, costs=(2, 1, 2)),
    "2 slots, costs, with the line": _slot(1_000, 2, 3, 3, costs=(1, 1, 2)),
    "1 slot, two workflows": _workflow(1, 2),
    "2 slots, three workflows": _workflow(2, 3),
    "1 slot, two workflows, two faults": _workflow(1, 2, 2),
}

DEEP: Mapping[str, Search] = {
    "4 jobs": _order(None, jobs=4),
    "3 jobs, two tenants": _order(None, kinds=(_A, _B)),
    "3 jobs, two tenants, mixed costs": _order(None, kinds=(_A, _A2, _B, _B2), bursts=(3,), owed=(0, 6)),
    "3 jobs, burst 1, two tenants": _order(None, kinds=(_A, _B), bursts=(1,), owed=(0, 2), unfair=1),
    "always 5 jobs, burst 1": _order(None, jobs=5, kinds=(_A, _B), bursts=(1,), owed=(0, 2), renewed=True, unfair=1),
    "always 5 jobs": _order(None, jobs=5, kinds=(_A, _A2, _B, _B2), bursts=(3,), owed=(0, 6), renewed=True),
    "3 jobs, priorities": _order(None, kinds=(_A, _B._replace(rank=1))),
    "5 jobs, mixed costs": _order(None, jobs=5, kinds=(_A, _A2), bursts=(4,), owed=(0, 8)),
    "3 jobs, grace 3": _order(None, grace=3),
    "3 jobs, two limits": _order(None, kinds=_ACCOUNT, bursts=(2, 2)),
    "3 jobs without shares": _order(None, kinds=(_OPEN,)),
    "3 jobs, two limits without shares": _order(None, kinds=_OPEN_ACCOUNT, bursts=(2, 2)),
    "3 jobs, a fault": _order(None, kinds=(_A, _B), faults=1, kinds_of_fault=_FAULTS),
    "2 jobs, burst 1, a fault": _order(None, jobs=2, bursts=(1,), owed=(0, 2), faults=1, kinds_of_fault=_FAULTS),
    "2 jobs, two faults": _order(None, jobs=2, faults=2, kinds_of_fault=_FAULTS),
    "2 slots, two faults": _slot(None, 2, 3, None, 2),
    "2 slots, with the line": _slot(None, 2, 3, 3),
    "2 slots, costs, with the line": _slot(None, 2, 3, 3, costs=(1, 1, 2)),
    "2 slots, three workflows, two faults": _workflow(2, 3, 2),
}
