"""
A flood on real Celery workers, struck by one fault: nothing lost, the bound within the stated number.

What else may happen to the store: `test_dramatiq.py`, for all frameworks ask it through the same limiter.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.faults.strike import Case, Outcome

pytestmark = [
    pytest.mark.workers,
    # Celery's client leaves sockets for the collector to find.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]


@pytest.mark.parametrize(
    ("fault", "pool"),
    [
        ("workers SIGKILL", "prefork"),
        ("workers SIGTERM", "threads"),
        ("broker restart", "prefork"),
        ("store SIGKILL, empty", "prefork"),
        ("store SIGSTOP 5 s", "threads"),
    ],
)
def test_one_fault_amid_a_flood(struck: Callable[[Case], Outcome], fault: str, pool: str) -> None:
    """Every task is done; duplicates and grants too many are no more than the fault allows; no password in a log."""
    struck(Case(framework="celery", fault=fault, pool=pool))
