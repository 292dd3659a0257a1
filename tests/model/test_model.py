"""Every state of small worlds around the shipped decision: bounds hold, jobs pass in their order, and none is stuck."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from model.world import Rules, explore
from throttlekit import Concurrency, TokenBucket
from throttlekit._core.algorithms.gcra import GcraAlgorithm
from throttlekit._core.waitlist import Waitlist

ONE, TWO = TokenBucket("one", "1/s", burst=1), TokenBucket("two", "1/s", burst=2)
SLOT = Concurrency("slot", 1, lease=30)
MOST = 2_000
WORLDS = {
    "a bucket": (Rules((ONE,)), {"ask", "ask_new", "tick"}),
    "a burst": (Rules((TWO,), jobs=4), {"ask", "tick"}),
    "slots": (Rules((SLOT,)), {"ask", "end"}),
    "two buckets": (Rules((ONE, TWO), jobs=4, leaves=1), {"ask", "leave"}),
    "a bucket and slots": (Rules((ONE, SLOT)), {"ask", "end"}),
    "a process dies": (Rules((ONE,), deaths=1), {"ask", "die"}),
    "a message is deleted": (Rules((ONE,), purges=1), {"ask", "purge"}),
    "the store loses its state": (Rules((ONE,), losses=1), {"ask", "lose"}),
    "jobs expire": (Rules((ONE,), leaves=1), {"ask", "leave"}),
    "the clock steps back": (Rules((ONE,), back_us=700_000), {"ask", "step_back"}),
    "everything": (Rules((ONE, SLOT), deaths=1, losses=1, leaves=1, purges=1), {"die", "lose", "leave", "purge"}),
}


@pytest.mark.parametrize("name", WORLDS)
def test_every_state_keeps_the_rules(name: str) -> None:
    """In each of up to 2 000 states, the nearest first, and however it goes on from there."""
    rules, kinds = WORLDS[name]
    found = explore(rules, MOST)
    assert found.broken is None
    assert kinds <= found.kinds
    assert found.states > 500


def _nobody(*_: Any, **__: Any) -> None:
    """In place of a method: does nothing."""


MUTANTS: dict[str, tuple[Any, str, Callable[..., Any], Rules, str]] = {
    "a grant charges nothing": (
        GcraAlgorithm, "admit", lambda self, state, *_: state, Rules((ONE,)), "within",
    ),
    "a woken job's units are given to others": (Waitlist, "taken", lambda *_: 0, Rules((ONE,)), "passes"),
    "nobody is woken": (Waitlist, "wake", _nobody, Rules((ONE,)), "never begin"),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_a_fault_in_the_decision_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search notices it, and names a history."""
    of, method, instead, rules, says = MUTANTS[name]
    monkeypatch.setattr(of, method, instead)
    found = explore(rules, MOST)
    assert found.broken is not None
    assert says in found.broken[0]
