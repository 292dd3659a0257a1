"""
A flood on real Celery workers with one fault: no task is lost, and the bound is kept as far as the fault allows.

`test_dramatiq.py` has more faults of the store, because all frameworks use it through the same limiter.
"""

from __future__ import annotations

import pytest

from support.celery.quiet import QUIET
from support.faults.strike import Case, strike_and_check

pytestmark = [pytest.mark.workers, *QUIET]


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
def test_one_fault_during_a_flood(fault: str, pool: str) -> None:
    """Every task runs; duplicates and extra grants are at most those that the fault allows; no log has a password."""
    strike_and_check(Case(framework="celery", fault=fault, pool=pool))
