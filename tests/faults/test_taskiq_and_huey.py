"""A flood on real workers of taskiq or huey with a fault of the store: no job is lost, and the bound is kept."""

from __future__ import annotations

import pytest

from support.faults.strike import Case, Framework, strike_and_check

pytestmark = pytest.mark.workers


@pytest.mark.parametrize("framework", ["taskiq", "huey"])
@pytest.mark.parametrize("fault", ["store SIGKILL, empty", "store SIGSTOP 5 s", "connections cut"])
def test_one_fault_during_a_flood(framework: Framework, fault: str) -> None:
    """Every job runs once: a store that fails causes a delay, but no lost job and no retry."""
    strike_and_check(Case(framework=framework, fault=fault))
