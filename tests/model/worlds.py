"""The worlds that are searched: by every run of the tests, and by hand for longer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from model.core import Core, core
from model.rates import RateWorld
from model.slots import SlotWorld

__all__ = ["DEEP", "WORLDS", "Search"]

_ONE, _TWO = ((0, 1),), ((0, 2),)
_TENANTS = (((0, 1), (1, 1)), ((0, 1), (2, 1)))  # of a limit for all, and of one for each tenant
_FORWARD = ("pause", "lose", "rate", "settle", "twice", "forget")
_FAULTS = ("back", *_FORWARD)


class Search(NamedTuple):
    """A world, and how far it is searched."""

    world: Callable[[Core], RateWorld | SlotWorld]
    states: int | None
    """None: to the end."""
    breaks: frozenset[str] = frozenset()
    """The rules that today's line is known to break: each is an expected failure, until the line is an order."""

    def of(self, edited: Core | None = None) -> RateWorld | SlotWorld:
        return self.world(edited or core())


def _rate(states: int | None, breaks: str = "", **options: Any) -> Search:
    return Search(lambda of: RateWorld(core=of, **options), states, frozenset(breaks.split()))


def _slot(states: int | None, *numbers: int | None) -> Search:
    return Search(lambda of: SlotWorld(*numbers, core=of), states)  # type: ignore[arg-type]


WORLDS: Mapping[str, Search] = {
    "burst 1": _rate(None, "idle", jobs=4, guests=True),
    "burst 2": _rate(None, "idle purge", jobs=4, bursts=(2,), owed=(0, 4)),
    "two jobs": _rate(None, "purge", jobs=2, bursts=(2,), owed=(0, 4)),
    "mixed costs": _rate(None, "idle purge promise", kinds=(_ONE, _TWO), bursts=(2,), owed=(0, 4)),
    "two tenants": _rate(None, "idle purge", kinds=_TENANTS, bursts=(2, 1, 1)),
    "a fault": _rate(None, jobs=2, bursts=(2,), owed=(0, 4), faults=1, kinds_of_fault=_FAULTS),
    "a fault, clock right": _rate(None, "idle", jobs=2, faults=1, kinds_of_fault=_FORWARD),
    "two faults": _rate(10_000, jobs=2, faults=2, kinds_of_fault=_FAULTS),
    "1 slot": _slot(None, 1, 3),
    "2 slots": _slot(None, 2, 3),
    "1 slot, a fault": _slot(None, 1, 2, None, 1),
    "2 slots, two faults": _slot(10_000, 2, 3, None, 2),
    "1 slot, with the line": _slot(10_000, 1, 2, 3),
}

DEEP: Mapping[str, Search] = {
    "6 jobs, burst 1": _rate(None, "idle", jobs=6, guests=True),
    "5 jobs, mixed costs": _rate(None, "idle purge promise", jobs=5, kinds=(_ONE, _TWO), bursts=(2,), owed=(0, 4)),
    "4 jobs, two tenants": _rate(None, "idle purge", jobs=4, kinds=_TENANTS, bursts=(2, 1, 1)),
    "3 jobs, a fault": _rate(None, jobs=3, bursts=(2,), owed=(0, 4), faults=1, kinds_of_fault=_FAULTS),
    "2 jobs, two faults": _rate(None, jobs=2, faults=2, kinds_of_fault=_FAULTS),
    "3 jobs, two faults": _rate(None, jobs=3, faults=2, kinds_of_fault=_FAULTS),
    "2 slots, two faults": _slot(None, 2, 3, None, 2),
    "2 slots, with the line": _slot(None, 2, 3, 3),
}
