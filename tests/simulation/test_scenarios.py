"""The scenarios of scenarios.py keep the promises: the bound, no job lost or run twice, the limit used, in order."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCENARIOS = Path(__file__).parent / "scenarios.py"
CHUNK = 7
LEAST_USE = 0.98
AT_MOST: dict[str, dict[str, float]] = {
    "slow1": {"asks": 2.05, "requests": 6, "late %": 0},
    "r10b1": {"asks": 2.05, "requests": 4, "late %": 0},
    "r50b1": {"asks": 2.05, "requests": 3.3, "late %": 0},
    "r50b10": {"asks": 2.05, "requests": 3.3, "late %": 0},
    "legs_b1": {"asks": 2.3, "requests": 5, "late %": 10, "worst": 3},
    "legs_b10": {"asks": 2.05, "requests": 3.3, "late %": 6, "worst": 3},
    "fast1000": {"asks": 2.05, "requests": 2.5, "late %": 0},
    "lost_bells": {"asks": 2.05, "requests": 3.5, "late %": 0},
    "no_bells": {"late %": 0},
    "lost_answers": {"asks": 2.5, "requests": 3.5, "late %": 0},
    "many_processes": {"asks": 2.05, "requests": 13, "late %": 0},
    "clock_back": {"asks": 2.05, "requests": 3.3, "worst": 20},
    "flushed": {"asks": 3.1, "requests": 4.4, "left": 0},
    "rolling": {"asks": 2.6, "requests": 4},
    "clock_back_and_hung": {"asks": 2.05, "requests": 4, "worst": 3},
    "dead_for_good": {"asks": 2.6, "deliveries": 1.5, "requests": 3.6},
    "hung": {"asks": 2.6, "requests": 8},
    "paused": {"asks": 2.1, "requests": 3.6, "worst": 10},
    "paused_slow": {"asks": 2.05, "requests": 5, "late %": 6, "worst": 4},
    "costs": {"asks": 2.05, "requests": 6, "late %": 0},
    "expiring": {"asks": 2.05, "requests": 11, "late %": 5},
    "keys": {"asks": 2.05, "requests": 6, "late %": 0},
    "flood": {"asks": 2.05, "requests": 3.3, "late %": 0, "light p99": 0.1},
    "expiring_tenant": {"asks": 2.05, "requests": 7},
    "classes": {"asks": 2.05, "requests": 3.5, "late %": 0, "high p99": 0.2},
    "zipf": {"asks": 2.05, "requests": 4.2, "late %": 0},
    "slots": {"asks": 2.05, "requests": 4, "worst": 5},
    "one_slot": {"asks": 2.05, "requests": 7.5, "late %": 0},
    "workflows": {"asks": 2.1, "left": 0, "seconds": 9},
    "rate_and_slots": {"asks": 2.3, "requests": 6, "late %": 2},
    "two_limits": {"asks": 2.4, "requests": 4.8, "late %": 2, "worst": 9, "heavy asks": 3.3},
    "two_stores": {"asks": 2.4, "requests": 7.5, "late %": 2, "worst": 9, "heavy asks": 3.3, "heavy late %": 2},
    "fast_and_slow": {"asks": 2.6, "requests": 4},
    **{
        f"late_{late}_b{burst}{kind}": {"asks": 4}
        for late in (0.05, 2.1)
        for burst in (10, 1)
        for kind in ("", "_mixed", "_few", "_over", "_slow")
    },
    **{f"late_slots_{late}{kind}": {"asks": 6.5} for late in (0.05, 2.1) for kind in ("", "_mixed", "_few")},
    "late_two_limits": {"asks": 6.5},
    "late_two_stores": {"asks": 6.5},
    "late_paused": {"asks": 4},
    "late_flood": {"asks": 4, "light p99": 0.3},
    "late_lost_b10": {"asks": 4, "left": 0, "seconds": 30},
    "late_lost_b1": {"asks": 4, "left": 0, "seconds": 30},
    **{f"everything_{seed}_{stores}": {"left": 0} for seed in range(8) for stores in (1, 2)},
}
"""At most so much of each number."""
AT_LEAST: dict[str, dict[str, float]] = {
    "legs_b1": {"use": 0.55},
    "no_bells": {"use": 0.5},
    "clock_back": {"use": 0.94},
    "clock_back_and_hung": {"use": 0.65, "after": 0.95},
    "dead_for_good": {"after": 0.98},
    "hung": {"use": 0.93, "after": 0.9},
    "paused": {"after": 0.98},
    "keys": {"worst key": 0.9},
    "expiring_tenant": {"brief use": 0.98},
    "slots": {"use": 0.95},
    "two_limits": {"heavy key": 0.98},
    "two_stores": {"heavy key": 0.98},
    **{name: {"use": 0.95} for name in AT_MOST if name.startswith("late_")},
    **{name: {"use": 0.65} for name in AT_MOST if name.startswith(("late_2.1_b", "late_slots"))},
    "late_0.05_b1_mixed": {"use": 0.85},
    **{name: {"use": 0} for name in AT_MOST if name.startswith(("late_lost", "everything"))},
}
"""At least so much of each; of the use, where it is not named, `LEAST_USE`."""


CHUNKS = [[*AT_MOST][first : first + CHUNK] for first in range(0, len(AT_MOST), CHUNK)]


def run(*options: str) -> str:
    """What `scenarios.py` prints in a process of its own: there throttlekit is on virtual time."""
    command = [sys.executable, str(SCENARIOS), *options]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


@pytest.mark.parametrize("names", CHUNKS, ids=[f"{chunk[0]}-{chunk[-1]}" for chunk in CHUNKS])
def test_scenarios_keep_the_promises(names: list[str]) -> None:
    """No scenario breaks a promise, and every number of each is within its bounds."""
    wrong: list[str] = []
    for found in map(json.loads, run(*names).splitlines()):
        most, least = AT_MOST[found["name"]], {"use": LEAST_USE} | AT_LEAST.get(found["name"], {})
        beyond = [what for what, bound in most.items() if found[what] > bound]
        below = [what for what, bound in least.items() if found[what] < bound]
        wrong += [f"{beyond} too high, {below} too low: {found}"] if beyond or below or found["broken"] else []
    assert wrong == []


def test_every_scenario_has_bounds() -> None:
    assert sorted(run("--list").split()) == sorted(AT_MOST)
