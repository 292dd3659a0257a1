"""A flood on real Dramatiq workers with one fault: no job is lost, and the bound is kept as far as the fault allows."""

from __future__ import annotations

import pytest

from support.faults.strike import Case, strike_and_check

pytestmark = pytest.mark.workers


@pytest.mark.parametrize(
    "fault",
    [
        "workers SIGKILL",
        "workers SIGTERM",
        "broker SIGKILL",
        "store SIGKILL, empty",
        "store SIGKILL, persisted",
        "store SIGSTOP 5 s",
        "connections cut",
        "latency 400 ms",
        "SCRIPT FLUSH",
    ],
)
def test_one_fault_during_a_flood(fault: str) -> None:
    """Every job runs; duplicates and extra grants are at most those that the fault allows; no log has a password."""
    strike_and_check(Case(framework="dramatiq", fault=fault))
