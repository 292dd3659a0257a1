"""The shipped `_core` in every state of small worlds, and the mutants of it that the rules must notice."""

from __future__ import annotations

import pytest

from model import slots, state, workflows
from model.explore import explore
from model.mutants import MUTANTS, Mutant
from model.order import OrderWorld
from model.slots import SlotWorld
from model.state import Kind
from model.workflows import WorkflowWorld
from model.worlds import WORLDS


@pytest.mark.parametrize("name", WORLDS)
def test_every_state_keeps_the_rules(name: str) -> None:
    """In every state of a small world every rule holds."""
    search = WORLDS[name]
    found = explore(search.of(), states=search.states)
    assert {rule: trace for rule, trace in found.broken.items() if rule != search.broken} == {}
    assert found.is_closed == (search.states is None)


# "dead": each rate's question begins the grace time anew. "turn": a job with a place takes a free slot out of its turn.
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="see the rule")
@pytest.mark.parametrize("name", [name for name, search in WORLDS.items() if search.broken])
def test_what_is_known_to_be_broken(name: str) -> None:
    """The rule that is known to be broken."""
    search = WORLDS[name]
    assert search.broken not in explore(search.of(), states=search.states).broken


_NEW = "new (A1: 1 of 0)"
_A, _A2 = Kind(0, 1, ((0, 1),)), Kind(0, 1, ((0, 2),))
TRACES: dict[str, tuple[OrderWorld, list[str]]] = {
    # Jobs that expire as they wait: the line of instants kept theirs, and the limit was used to a tenth.
    "jobs that expire": (OrderWorld(bursts=(1,), owed=(2,)), [_NEW, "dies", _NEW, "dies", _NEW]),
    # All jobs that wait are purged: a bucket of ten admitted no job until it had stood full for a while.
    "a purge": (OrderWorld(jobs=10, bursts=(10,), owed=(20,)), [_NEW, "dies"] * 10),
    # A job of 2 units behind one of 1 was told an instant at which there is 1 unit.
    "mixed costs": (
        OrderWorld(kinds=(_A, _A2), bursts=(3,), owed=(6,)),
        [_NEW, "new (A1: 2 of 0)", "tick", "tick", "(A1: 1 of 0) due +0", *["tick"] * 4, "(A1: 2 of 0) due +0"],
    ),
    # A ticket that the line did not give kept the head of the line from being set aside.
    "a forged ticket with the head's number": (
        OrderWorld(owed=(4,), faults=1, kinds_of_fault=("forge",)),
        [_NEW, "tick", "tick", _NEW, "tick", "a forged ticket (+0"],
    ),
    # A job whose cost had changed stood twice, behind an entry of its own that no question set aside.
    "a cost that changes": (
        OrderWorld(kinds=(_A, _A2), bursts=(3,), owed=(6,), faults=1, kinds_of_fault=("cost",)),
        [_NEW, "costs (A1: 2 of 0) from now on", "(A1: 2 of 0) due +2"],
    ),
}


@pytest.mark.parametrize("name", TRACES)
def test_recorded_trace_keeps_the_rules(name: str) -> None:
    """What was found once, step by step."""
    world, steps = TRACES[name]
    ((_, reached),) = world.starts()
    for step in steps:
        what, reached, broken = next(found for found in world.steps(reached) if _is(step, found[0]))
        assert broken is None, what
        assert reached is not None
    assert list(world.plays(reached)) == []


def _is(step: str, what: str) -> bool:
    """Whether what can happen is the step meant, by how its name begins, or ends."""
    return what.endswith(step) or (what.startswith(step) and not what.endswith(("dies", "leaves")))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.rule}: {mutant.name}")
def test_mutant_is_noticed(mutant: Mutant) -> None:
    """The rule that holds in the shipped code does not hold in the changed one."""
    world = WORLDS[mutant.world].of(mutant.edit)
    world.rules = frozenset([mutant.rule])
    assert mutant.rule in explore(world, states=7_000, first=True).broken


def test_each_rule_notices_a_mutant() -> None:
    """No rule is without a mutant that it alone has to notice."""
    noticed = {(type(WORLDS[mutant.world].of()), mutant.rule) for mutant in MUTANTS}
    rules = {(OrderWorld, rule) for rule in state.RULES} | {(SlotWorld, rule) for rule in slots.RULES}
    assert noticed == rules | {(WorkflowWorld, rule) for rule in workflows.RULES}
