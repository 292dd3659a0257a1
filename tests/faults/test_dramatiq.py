"""A flood on real `dramatiq` workers, struck by one fault: nothing lost, the bound within the stated number."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.faults.strike import Case, Outcome

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
def test_one_fault_amid_a_flood(struck: Callable[[Case], Outcome], fault: str) -> None:
    """Every job is done; duplicates and grants too many are no more than the fault allows; no password in a log."""
    struck(Case(framework="dramatiq", fault=fault))
