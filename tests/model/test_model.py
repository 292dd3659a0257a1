"""The shipped `_core` in every state of small worlds, and the mutants of it that the rules must notice."""

from __future__ import annotations

from functools import cache

import pytest

from model import rates, slots
from model.core import core
from model.explore import Found, explore
from model.mutants import MUTANTS, Mutant
from model.rates import RateWorld
from model.slots import SlotWorld
from model.worlds import WORLDS

_REBUILT = "the line tells instants, not an order: what dies in it keeps its instant"


@cache
def _found(name: str) -> Found:
    world, states, _ = WORLDS[name]
    return explore(world(core()), states=states)


@pytest.mark.parametrize("name", WORLDS)
def test_every_state_keeps_the_rules(name: str) -> None:
    """In every state of a small world every rule holds, but for those that today's line is known to break."""
    found, (_, states, breaks) = _found(name), WORLDS[name]
    assert {rule: trace for rule, trace in found.broken.items() if rule not in breaks} == {}
    assert found.is_closed == (states is None)


@pytest.mark.xfail(strict=True, raises=AssertionError, reason=_REBUILT)
@pytest.mark.parametrize(
    ("name", "rule"), [(name, rule) for name, each in WORLDS.items() for rule in sorted(each.breaks)]
)
def test_no_limit_stands_idle(name: str, rule: str) -> None:
    """The rules that today's line breaks."""
    assert rule not in _found(name).broken, "\n".join(_found(name).broken[rule])


_NEW, _DIES = "a new job", "the job"
TRACES: dict[str, tuple[RateWorld, list[str], str]] = {
    # Two jobs expire as they wait. The third waits for the instants of both, and comes after three intervals.
    "jobs that expire": (RateWorld(owed=(2,)), [_NEW, _DIES, _NEW, _DIES, _NEW], "idle"),
    # All jobs that wait are purged. New jobs are denied until the bucket of ten has stood full for the grace time.
    "a purge": (RateWorld(jobs=10, bursts=(10,), owed=(20,)), [_NEW, _DIES] * 10, "purge"),
    # A job of 2 units that stands behind one of 1 is told an instant at which there is 1 unit.
    "mixed costs": (
        RateWorld(kinds=(((0, 1),), ((0, 2),)), bursts=(2,), owed=(4,)),
        [
            _NEW,
            "a new job, 2",
            "tick",
            "tick",
            "the job (1 of limit 0) due +0 comes",
            "tick",
            "tick",
            "the job (2 of limit 0) due +0 comes",
        ],
        "promise",
    ),
}


@pytest.mark.xfail(strict=True, raises=AssertionError, reason=_REBUILT)
@pytest.mark.parametrize("name", TRACES)
def test_recorded_trace_keeps_its_rule(name: str) -> None:
    """What was found once, step by step."""
    world, steps, rule = TRACES[name]
    ((_, state),) = world.starts()
    for step in steps:
        dies = step is _DIES
        what, state, broken = next(
            found for found in world.steps(state) if found[0].startswith(step) and found[0].endswith("dies") == dies
        )
        assert broken != rule, what
        assert state is not None
    assert rule not in {broken for _, broken in world.plays(state)}, list(world.plays(state))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.rule}: {mutant.name}")
def test_mutant_is_noticed(mutant: Mutant) -> None:
    """The rule that holds in the shipped code does not hold in the changed one."""
    assert mutant.rule not in WORLDS[mutant.world].breaks
    world = WORLDS[mutant.world].of(core([mutant.edit]))
    world.rules = frozenset([mutant.rule])
    assert mutant.rule in explore(world, states=10_000, first=True).broken


def test_each_rule_notices_a_mutant() -> None:
    """No rule is without a mutant that it alone has to notice."""
    noticed = {(type(WORLDS[mutant.world].of()), mutant.rule) for mutant in MUTANTS}
    assert noticed == {(RateWorld, rule) for rule in rates.RULES} | {(SlotWorld, rule) for rule in slots.RULES}
