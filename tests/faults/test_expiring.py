"""A flood on real workers in which most jobs expire before they are admitted: the others run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.workers

_SCRIPT = Path(__file__).parents[1] / "benchmarks" / "expiry.py"


@pytest.mark.parametrize("row", ["dramatiq", "rq ours", "celery threads"])
def test_jobs_that_do_not_expire_run(row: str) -> None:
    """
    90 % of 40 jobs/s expire after 3 s, with a limit of 20/s: every job that does not expire runs, within the limit.

    How much of the limit they use depends on the machine's load. The benchmark measures it, and
    `tests/unit/engine/test_expiry.py` checks it on virtual time.
    """
    ran = subprocess.run(
        [sys.executable, str(_SCRIPT), "--quick", "--only", row, "--no-figures"],
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{row:18} used " in ran.stdout
