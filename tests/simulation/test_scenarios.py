"""
The scenarios of scenarios.py keep the promises: the bound is kept, no job is lost or run twice, and limits are used in
order.
"""

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
    "slow1": {"decisions": 2.05, "requests": 6, "late %": 0},
    "r10b1": {"decisions": 2.05, "requests": 4, "late %": 0},
    "r50b1": {"decisions": 2.05, "requests": 3.3, "late %": 0},
    "r50b10": {"decisions": 2.05, "requests": 3.3, "late %": 0},
    "legs_b1": {"decisions": 2.3, "requests": 5, "late %": 10, "worst": 3},
    "legs_b10": {"decisions": 2.05, "requests": 3.3, "late %": 6, "worst": 3},
    "fast1000": {"decisions": 2.05, "requests": 2.5, "late %": 0},
    "lost_bells": {"decisions": 2.05, "requests": 3.5, "late %": 0},
    "no_bells": {"late %": 0},
    "lost_answers": {"decisions": 2.5, "requests": 3.5, "late %": 0},
    "many_processes": {"decisions": 2.05, "requests": 13, "late %": 0},
    "clock_back": {"decisions": 2.05, "requests": 3.3, "worst": 20},
    "flushed": {"decisions": 3.1, "requests": 4.4, "left": 0},
    "rolling": {"decisions": 2.6, "requests": 4},
    "clock_back_and_hung": {"decisions": 2.05, "requests": 4, "worst": 3},
    "dead_for_good": {"decisions": 2.6, "deliveries": 1.5, "requests": 3.6},
    "hung": {"decisions": 2.6, "requests": 8},
    "paused": {"decisions": 2.1, "requests": 3.6, "worst": 10},
    "paused_slow": {"decisions": 2.05, "requests": 5, "late %": 6, "worst": 4},
    "costs": {"decisions": 2.05, "requests": 6, "late %": 0},
    "expiring": {"decisions": 2.05, "requests": 11, "late %": 5},
    "keys": {"decisions": 2.05, "requests": 6, "late %": 0},
    "flood": {"decisions": 2.05, "requests": 3.3, "late %": 0, "light p99": 0.1},
    "expiring_tenant": {"decisions": 2.05, "requests": 7},
    "classes": {"decisions": 2.05, "requests": 3.5, "late %": 0, "high p99": 0.2},
    "zipf": {"decisions": 2.05, "requests": 4.2, "late %": 0},
    "slots": {"decisions": 2.05, "requests": 4, "worst": 5},
    "one_slot": {"decisions": 2.05, "requests": 7.5, "late %": 0},
    "workflows": {"decisions": 2.1, "left": 0, "seconds": 9},
    "rate_and_slots": {"decisions": 2.3, "requests": 6, "late %": 2},
    "two_limits": {"decisions": 2.4, "requests": 4.8, "late %": 2, "worst": 9, "heavy decisions": 3.3},
    "two_stores": {
        "decisions": 2.4,
        "requests": 7.5,
        "late %": 2,
        "worst": 9,
        "heavy decisions": 3.3,
        "heavy late %": 2,
    },
    "fast_and_slow": {"decisions": 2.6, "requests": 4},
    **{
        f"late_{late}_b{burst}{kind}": {"decisions": 4}
        for late in (0.05, 2.1)
        for burst in (10, 1)
        for kind in ("", "_mixed", "_few", "_over", "_slow")
    },
    **{f"late_slots_{late}{kind}": {"decisions": 6.5} for late in (0.05, 2.1) for kind in ("", "_mixed", "_few")},
    "late_two_limits": {"decisions": 6.5},
    "late_two_stores": {"decisions": 6.5},
    "late_paused": {"decisions": 4},
    "late_flood": {"decisions": 4, "light p99": 0.3},
    "late_lost_b10": {"decisions": 4, "left": 0, "seconds": 30},
    "late_lost_b1": {"decisions": 4, "left": 0, "seconds": 30},
    **{f"everything_{seed}_{stores}": {"left": 0} for seed in range(8) for stores in (1, 2)},
}
"""The upper bounds of the numbers."""
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
"""The lower bounds of the numbers. The default for "use" is `LEAST_USE`."""


CHUNKS = [[*AT_MOST][first : first + CHUNK] for first in range(0, len(AT_MOST), CHUNK)]


def run(*options: str) -> str:
    """Return what `scenarios.py` prints in another process, in which throttlekit is on virtual time."""
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
    """The table of bounds has each scenario, and no other."""
    assert sorted(run("--list").split()) == sorted(AT_MOST)
