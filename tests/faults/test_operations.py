"""Random operations of eight processes on a server that is disturbed: every bound holds."""

from __future__ import annotations

import pytest

from support.faults.operations import LIMITS, operate

pytestmark = pytest.mark.workers


def test_every_grant_is_within_every_bound(capsys: pytest.CaptureFixture[str]) -> None:
    """
    Eight processes make 10 000 acquires, peeks, releases and settles of all algorithms, on one to three limits at
    once, while the server's scripts are flushed, its connections killed and itself hung; every grant is in bounds.
    `tests/benchmarks/operations.py` does a million.
    """
    found = operate(10_000, processes=8, seed=1)
    with capsys.disabled():
        print(f"\n{found}")
    assert found.broken == {}
    assert found.operations["in all"] == 10_000
    assert all(found.grants[limit.name] >= 30 for limit, _ in LIMITS), found.grants
    assert all(found.disturbances[what] for what in ("SCRIPT FLUSH", "CLIENT KILL", "SIGSTOP")), found.disturbances
