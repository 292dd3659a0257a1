"""A flood on real workers of huey with a fault of the store: no job is lost, and the bound is kept."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.faults.strike import Case, Outcome

pytestmark = pytest.mark.workers


@pytest.mark.parametrize("fault", ["store SIGKILL, empty", "store SIGSTOP 5 s", "connections cut"])
def test_one_fault_during_a_flood(strike_case: Callable[[Case], Outcome], fault: str) -> None:
    """Every job runs once: a store that fails causes a delay, but no lost job and no retry."""
    strike_case(Case(framework="huey", fault=fault))
