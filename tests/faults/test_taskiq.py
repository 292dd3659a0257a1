"""A flood on real workers of taskiq with a fault of the store: no task is lost, and the bound is kept."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.faults.strike import Case, Outcome

pytestmark = pytest.mark.workers


@pytest.mark.parametrize("fault", ["store SIGKILL, empty", "store SIGSTOP 5 s", "connections cut"])
def test_one_fault_during_a_flood(strike_case: Callable[[Case], Outcome], fault: str) -> None:
    """Every task runs once: a store that fails causes a delay, but no lost task and no retry."""
    strike_case(Case(framework="taskiq", fault=fault))
