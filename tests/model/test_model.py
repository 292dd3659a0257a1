"""Every state of small worlds around the shipped decision: bounds hold, jobs are granted in order, none is stuck."""

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
    "a bucket": (Rules((ONE,)), {"request", "request_new", "tick"}),
    "a burst": (Rules((TWO,), jobs=4), {"request", "tick"}),
    "slots": (Rules((SLOT,)), {"request", "end"}),
    "two buckets": (Rules((ONE, TWO), jobs=4, leaves=1), {"request", "leave"}),
    "a bucket and slots": (Rules((ONE, SLOT)), {"request", "end"}),
    "a process dies": (Rules((ONE,), deaths=1), {"request", "die"}),
    "a message is deleted": (Rules((ONE,), purges=1), {"request", "purge"}),
    "the store loses its state": (Rules((ONE,), losses=1), {"request", "lose"}),
    "jobs expire": (Rules((ONE,), leaves=1), {"request", "leave"}),
    "the clock steps back": (Rules((ONE,), back_us=700_000), {"request", "step_back"}),
    "everything": (Rules((ONE, SLOT), deaths=1, losses=1, leaves=1, purges=1), {"die", "lose", "leave", "purge"}),
}


@pytest.mark.parametrize("name", WORLDS)
def test_every_state_keeps_the_rules(name: str) -> None:
    """The rules hold in each of up to 2 000 states, the nearest first, and in a continuation from each of them."""
    rules, kinds = WORLDS[name]
    found = explore(rules, MOST)
    assert found.broken is None
    assert kinds <= found.kinds
    assert found.states > 500


def _do_nothing(*_: Any, **__: Any) -> None:
    """Replace a method: do nothing."""


MUTANTS: dict[str, tuple[Any, str, Callable[..., Any], Rules, str]] = {
    "a grant charges nothing": (GcraAlgorithm, "admit", lambda self, state, *_: state, Rules((ONE,)), "within"),
    "a woken job's units are given to others": (
        Waitlist,
        "units_held",
        lambda *_: 0,
        Rules((ONE,)),
        "is granted before",
    ),
    "no job is woken": (Waitlist, "wake", _do_nothing, Rules((ONE,)), "never begin"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_fault_in_the_decision_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search finds the fault, and reports a history."""
    of, method, instead, rules, message = MUTANTS[name]
    monkeypatch.setattr(of, method, instead)
    found = explore(rules, MOST)
    assert found.broken is not None
    assert message in found.broken[0]
