"""Random operations of eight processes on a disturbed server: every bound is kept."""

from __future__ import annotations

import pytest

from support.faults.operations import LIMITS, operate

pytestmark = pytest.mark.workers


def test_every_grant_is_within_every_bound(capsys: pytest.CaptureFixture[str]) -> None:
    """
    Eight processes make 10 000 acquires, peeks, releases and settles of all algorithms, on one to three limits at once.
    Meanwhile the server's scripts are flushed, its connections are killed, and it hangs; every grant is within its
    bound. `tests/benchmarks/operations.py` makes a million operations.
    """
    found = operate(10_000, processes=8, seed=1)
    with capsys.disabled():
        print(f"\n{found}")
    assert found.broken == {}
    assert found.operations["in all"] == 10_000
    assert all(found.grants[limit.name] >= 30 for limit, _ in LIMITS), found.grants
    assert all(found.disturbances[what] for what in ("SCRIPT FLUSH", "CLIENT KILL", "SIGSTOP")), found.disturbances
