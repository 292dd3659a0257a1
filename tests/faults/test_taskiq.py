"""A flood on real workers of taskiq, struck by a fault of the store: nothing lost, the bound held."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.faults.strike import Case, Outcome

pytestmark = pytest.mark.workers


@pytest.mark.parametrize("fault", ["store SIGKILL, empty", "store SIGSTOP 5 s", "connections cut"])
def test_one_fault_amid_a_flood(struck: Callable[[Case], Outcome], fault: str) -> None:
    """Every task runs once: a store that fails costs a delay, and neither a task nor a retry."""
    struck(Case(framework="taskiq", fault=fault))
