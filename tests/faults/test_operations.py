"""Tens of thousands of random operations of eight processes on a server that is disturbed: every bound holds."""

from __future__ import annotations

import pytest

from support.faults.operations import LIMITS, operate

pytestmark = pytest.mark.workers


def test_every_grant_is_within_every_bound(capsys: pytest.CaptureFixture[str]) -> None:
    """
    30 000 asks, peeks, returns and settles, of all algorithms, one to three limits at once, while scripts are
    flushed, connections killed and the server hung. `tests/benchmarks/operations.py` does a million.
    """
    found = operate(30_000, processes=8, seed=1)
    with capsys.disabled():
        print(f"\n{found}")
    assert found.broken == {}
    assert found.operations["in all"] == 30_000
    assert all(found.grants[limit.name] >= 30 for limit, _ in LIMITS), found.grants
    assert all(found.disturbances[what] for what in ("SCRIPT FLUSH", "CLIENT KILL", "SIGSTOP")), found.disturbances
