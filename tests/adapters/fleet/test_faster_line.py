"""A line that moves faster than its jobs were told is used at once."""

from __future__ import annotations

import pytest

from support.flood.limits import FloodLimit
from support.flood.shares import ALSO, STOCK, WORKERS, Plan, happen

pytestmark = [pytest.mark.workers]

JOBS, RATE = 300, 100


@pytest.mark.parametrize("workers", [each for each in (*WORKERS, *ALSO) if each != STOCK])
def test_a_raised_rate_is_used_by_jobs_that_wait(workers: str) -> None:
    """
    By their answers all are due within minutes, at 1/s; then the limit is 100/s. Each job that runs brings up the next,
    also one that asked a moment too early, got a new answer, and came on time by that: not a few at each look of half
    a second.
    """
    raised = 3.0
    plan = Plan(["one"] * JOBS, acts=[(raised, lambda control: control.set("partner", f"{RATE}/s", burst=1))])
    happened = happen(plan, workers, FloodLimit("partner", "1/s", 1))
    assert {job for _, job in happened.starts} == {*range(JOBS)}
    assert max(at for at, _ in happened.starts) - raised < 15
