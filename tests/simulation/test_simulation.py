"""
Thousands of runs on virtual time keep the three promises, and each inserted defect is found.

All of them take about a minute of an idle core: 18 ms per seed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from defects import DEFECTS

RUN = Path(__file__).parent / "run.py"
CHUNK = 500
MOST_SEEDS = 400
"""Each defect is found within this number of seeds; the last one after 209."""
NAMES = [[*DEFECTS][first : first + 5] for first in range(0, len(DEFECTS), 5)]


def run(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `run.py` in another process, in which throttlekit is on virtual time."""
    return subprocess.run(
        [sys.executable, str(RUN), *options],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )


@pytest.mark.parametrize("first", range(0, 2000, CHUNK))
def test_every_seed_keeps_the_promises(first: int) -> None:
    """The bound is kept, no job is lost, and limits are used in order. The output says how to replay a failure."""
    found = run("--first", str(first), "--seeds", str(CHUNK))
    assert found.returncode == 0, found.stdout + found.stderr
    assert f"{CHUNK} seeds" in found.stdout


@pytest.mark.parametrize("seed", [1, 7])
def test_a_seed_replays_its_history_to_the_byte(seed: int) -> None:
    """A seed has the same history in each process and with any order of hashes; another seed has another history."""
    histories = [run("--seed", str(seed), PYTHONHASHSEED=hashes).stdout for hashes in ("1", "2")]
    assert histories[0] == histories[1]
    assert len(histories[0].splitlines()) > 30
    assert run("--seed", str(seed + 1)).stdout != histories[0]


@pytest.mark.parametrize("names", NAMES, ids=[f"{some[0]}-{some[-1]}" for some in NAMES])
def test_a_defect_is_found(names: list[str]) -> None:
    """With each of these defects in the shipped code, a check fails."""
    found = run("--defect", *names, "--seeds", str(MOST_SEEDS))
    assert found.returncode == 0, found.stdout + found.stderr
    results = [line for line in found.stdout.splitlines() if line.startswith("defect ")]
    assert results == [f"defect {name}: found" for name in names], found.stdout
