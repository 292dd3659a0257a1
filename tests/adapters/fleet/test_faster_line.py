"""A waitlist that moves faster than estimated is used at once."""

from __future__ import annotations

import pytest

from support.flood.limits import FloodLimit
from support.flood.shares import ALSO, STOCK, WORKERS, Plan, happen

pytestmark = [pytest.mark.workers]

JOBS, RATE = 300, 100


@pytest.mark.parametrize("workers", [each for each in (*WORKERS, *ALSO) if each != STOCK])
def test_a_raised_rate_is_used_by_waiting_jobs(workers: str) -> None:
    """
    At 1/s, the estimates of all jobs are within minutes. Then the limit is raised to 100/s. Each job that runs wakes
    the next one, even if that one requested too early and got a new estimate. The jobs do not depend on the poll every
    half second.
    """
    raised = 3.0
    plan = Plan(["one"] * JOBS, acts=[(raised, lambda control: control.set("partner", f"{RATE}/s", burst=1))])
    outcome = happen(plan, workers, FloodLimit("partner", "1/s", 1))
    assert {job for _, job in outcome.starts} == {*range(JOBS)}
    assert max(at for at, _ in outcome.starts) - raised < 15
