"""A flood of jobs most of which expire before their turn, on real workers: the others use the limit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.workers

_SCRIPT = Path(__file__).parents[1] / "benchmarks" / "expiry.py"
_LEAST = "0.7"
"""Of the limit. The benchmark promises 0.95, on a machine of its own; the defect used 0.1 to 0.3."""


@pytest.mark.parametrize("row", ["dramatiq", "rq ours", "celery threads"])
def test_jobs_that_expire_hold_no_unit_back(row: str) -> None:
    """90 % of 40 jobs/s live for 3 s, against a limit of 20/s, and every job that does not expire runs."""
    ran = subprocess.run(
        [sys.executable, str(_SCRIPT), "--quick", "--only", row, "--least", _LEAST],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{row:18} used " in ran.stdout
