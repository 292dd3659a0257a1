"""The scenarios of fleet.py keep the promises: the bound, no job lost or run twice, the limit used, in order."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import fleet
from fleet import SCENARIOS, SECOND

from throttlekit import TokenBucket

NEVER = 1e-9
MOST_OF_ALL = {"excess": NEVER, "twice": 0}
LEAST_OF_ALL = {"use": 0.98}
AT_MOST: dict[str, dict[str, float]] = {
    "slow1": {"asks": 2.05, "operations": 6, "late %": 0},
    "r10b1": {"asks": 2.05, "operations": 4, "late %": 0},
    "r50b1": {"asks": 2.05, "operations": 3.3, "late %": 0},
    "r50b10": {"asks": 2.05, "operations": 3.3, "late %": 0},
    "legs_b1": {"asks": 2.3, "operations": 4.5, "late %": 10, "worst": 3},
    "legs_b10": {"asks": 2.05, "operations": 3.3, "late %": 6, "worst": 3},
    "fast1000": {"asks": 2.05, "operations": 2.5, "worst": 60},
    "lost_bells": {"asks": 2.05, "operations": 3.5, "worst": 75},
    "no_bells": {},
    "lost_answers": {"asks": 2.1, "operations": 3.5, "worst": 30},
    "flood": {"asks": 2.05, "operations": 3.3, "late %": 0, "light p99": 0.1},
    "classes": {"asks": 2.05, "operations": 3.5, "high p99": 0.2},
    "zipf": {"asks": 2.05, "operations": 4.2, "late %": 0},
    "costs": {"asks": 2.05, "operations": 5.5, "late %": 0},
    "expiring": {"asks": 2.05, "operations": 9, "late %": 5},
    "expiring_tenant": {"asks": 2.05, "operations": 7},
    "slots": {"asks": 2.05, "operations": 4, "worst": 5},
    "workflows": {"asks": 2.1, "left": 0, "seconds": 9},
    "one_slot": {"asks": 2.05, "operations": 7.5, "late %": 0},
    "keys": {"asks": 2.05, "operations": 6, "late %": 0},
    "clock_back": {"asks": 2.05, "operations": 3.3, "excess": 10, "worst": 20},
    "clock_back_and_hung": {"asks": 2.05, "operations": 4, "worst": 3},
    "dead_for_good": {"asks": 2.6, "deliveries": 1.5, "operations": 3.6},
    "rate_and_slots": {"asks": 2.3, "operations": 6, "late %": 2},
    "two_limits": {"asks": 2.4, "operations": 4.8, "late %": 2, "worst": 9, "heavy asks": 3.3},
    "two_stores": {
        "asks": 2.4,
        "operations": 7.5,
        "late %": 2,
        "worst": 9,
        "heavy asks": 3.3,
        "heavy late %": 2,
        "excess of key": NEVER,
    },
    "fast_and_slow": {"asks": 2.6, "operations": 4},
    "hung": {"asks": 2.6, "operations": 8},
    "rolling": {"asks": 2.6, "operations": 4},
    "flushed": {"asks": 3, "operations": 4, "excess": 10, "left": 0},
    "many_processes": {"asks": 2.05, "operations": 13, "late %": 0},
    "paused_slow": {"asks": 2.05, "operations": 5, "late %": 6, "worst": 4},
    "paused": {"asks": 2.1, "operations": 3.6, "in pause": 0, "worst": 10},
}
"""At most so much of each; where not named, `MOST_OF_ALL`."""
AT_MOST |= {name: {"asks": 6.5 if "slots" in name or "two" in name else 4} for name in SCENARIOS if name[:5] == "late_"}
AT_MOST["late_lost"] |= {"left": 0, "seconds": 60}
AT_MOST["late_lost_b1"] |= {"left": 0, "seconds": 60}
AT_MOST["late_paused"] |= {"in pause": 0}
AT_MOST["late_flood"] |= {"light p99": 0.3}
AT_LEAST: dict[str, dict[str, float]] = {
    "slots": {"use": 0.95},
    "legs_b1": {"use": 0.65},
    "no_bells": {"use": 0.5},
    "clock_back": {"use": 0.97},
    "hung": {"use": 0.96, "next 20 s": 0.9},
    "clock_back_and_hung": {"use": 0.65, "after": 0.95},
    "dead_for_good": {"after": 0.98},
    "two_limits": {"heavy key": 0.98},
    "two_stores": {"heavy key": 0.98},
    "keys": {"worst key": 0.9},
    "expiring_tenant": {"brief use": 0.98},
    **{name: {"use": 0.95} for name in SCENARIOS if name[:5] == "late_"},
    **{name: {"use": 0.65} for name in SCENARIOS if name[:10] in ("late_2.1_b", "late_slots")},
    "late_0.05_b1_mixed": {"use": 0.85},
    "late_lost": {"use": 0.2},
    "late_lost_b1": {"use": 0.2},
}
"""At least so much of each; where not named, `LEAST_OF_ALL`."""


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_keeps_the_promises(name: str) -> None:
    """Every number of its report is within its bounds."""
    found = SCENARIOS[name](1)
    most, least = MOST_OF_ALL | AT_MOST[name], LEAST_OF_ALL | AT_LEAST.get(name, {})
    beyond = {what: found[what] for what, bound in most.items() if found[what] > bound}
    assert beyond == {}, found
    below = {what: found[what] for what, bound in least.items() if found[what] < bound}
    assert below == {}, found


def test_a_seed_replays_its_history() -> None:
    """The same seed gives the same history, to the microsecond; another seed another one."""

    def history(seed: int) -> list[tuple[int, str]]:
        sim, limit = fleet.Sim(seed, answers_lost=0.05, bells_lost=0.05), TokenBucket("partner", "50/s", burst=10)
        fleet.backlog(sim, 300, (limit, "", 1))
        sim.run(8 * SECOND)
        ((_, granted),) = sim.granted.items()
        return [(at, job.id) for at, _, job in granted]

    assert history(1) == history(1) != history(2)


@pytest.mark.parametrize("two_stores", [False, True], ids=["one store", "two stores"])
@pytest.mark.parametrize("seed", range(20))
def test_everything_at_once_loses_nothing(seed: int, two_stores: bool) -> None:
    """
    Processes are killed and hang, bells and answers are lost, the store loses its state, the clock steps, and the limit
    is paused, at random: each job runs in the end, and no window had more than its bound, apart from a burst for each
    loss of state and each step of the clock.
    """
    choose = random.Random(seed)
    sim = fleet.Sim(seed, answers_lost=0.02, bells_lost=0.02, redeliver=5, two_stores=two_stores)
    limit, other = TokenBucket("partner", "50/s", burst=10), TokenBucket("own", "30/s", burst=5)
    for _ in range(900):
        limits = [(limit, "", 1), (other, "", 1)] if choose.random() < 0.3 else [(limit, "", choose.randint(1, 3))]
        sim.job(choose.randrange(20 * SECOND), *limits)
    bursts = 0
    for _ in range(12):
        at, what = choose.randrange(2 * SECOND, 25 * SECOND), choose.choice(("kill", "hang", "flush", "step", "pause"))
        process = choose.choice(sim.processes)
        if what == "kill":
            sim.at(at, lambda process=process: None if process.dead else sim.kill(process, 2 * SECOND))
        elif what == "hang":
            sim.at(at, lambda process=process: setattr(process, "hung", sim.now + 3 * SECOND))
        elif what == "flush":
            sim.at(at, lambda: [store._values.clear() for store in sim.stores])
            bursts += 1
        elif what == "step":
            by = choose.choice((-1, 1)) * choose.randrange(2 * SECOND)
            sim.at(at, lambda by=by: setattr(sim, "offset", sim.offset + by))
            bursts += by > 0
        else:
            sim.at(at, lambda: sim.store.pause([*sim.unit.values()], 2 * SECOND))
    sim.run(120 * SECOND)
    assert [job.id for job in sim.jobs if not job.ran] == []
    for bucket, rate, each in ((limit, 50, limit), (other, 30, other)):
        name = fleet.bucket_name(bucket.name, "", bucket.fingerprint)
        assert fleet.excess(sim, name, each, rate) <= bursts * each.capacity + NEVER
