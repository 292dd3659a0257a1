"""
A flood on real `ThrottledWorker`s of RQ with one fault: no job is lost, and the bound is kept as far as the fault
allows.

`test_dramatiq.py` has more faults of the store, because all frameworks use it through the same limiter.
"""

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
        "store SIGSTOP 5 s",
        "connections cut",
    ],
)
def test_one_fault_during_a_flood(fault: str) -> None:
    """
    Every job runs, except jobs that RQ itself marks as failed when their worker dies; none runs twice.

    RQ forks for each job, so there are half as many jobs, at half the rate.
    """
    strike_and_check(Case(framework="rq", fault=fault, jobs=60, rate=30))
