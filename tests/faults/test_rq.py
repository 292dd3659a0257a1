"""
A flood on real `ThrottledWorker`s of RQ, struck by one fault: nothing lost, the bound within the stated number.

What else may happen to the store: `test_dramatiq.py`, for all frameworks ask it through the same limiter.
"""

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
        "store SIGSTOP 5 s",
        "connections cut",
    ],
)
def test_one_fault_amid_a_flood(struck: Callable[[Case], Outcome], fault: str) -> None:
    """
    Every job is done, except those that RQ itself visibly fails with their worker; none runs twice.

    RQ forks for each job, so there are half as many at half the rate.
    """
    struck(Case(framework="rq", fault=fault, jobs=60, rate=30))
