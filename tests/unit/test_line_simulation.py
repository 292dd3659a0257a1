"""
The waiting line at work: a queue, its workers and a delivery that comes late, simulated around the real decision.

What the design promises of the line is a property of many jobs together, and so is its test.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from throttlekit._core.acquire import Ask, Caller, Place, State, acquire
from throttlekit._core.gcra import Bucket
from throttlekit._core.line import GRACE_US, spacing_us

MS = 1000


@dataclass
class Outcome:
    deliveries: float
    """Deliveries per job that ran."""
    use: float
    """Share of the limit that was used, from the first run to the last."""
    order: Sequence[int]
    """The jobs, as they ran."""
    runs_us: Sequence[int]

    @property
    def moved(self) -> int:
        """By how many places a job ran out of turn, at most."""
        return max(abs(place - job) for place, job in enumerate(self.order))


def _simulate(
    rate: int,
    burst: int,
    jobs: int,
    *,
    late_ms: tuple[int, int],
    early_ms: int = 0,
    at_once: int = 0,
    longest_ms: int | None = None,
    seed: int = 1,
) -> Outcome:
    """Deliver *jobs* as fast as workers take them, and each denied one again when the limiter said, but late."""
    rnd = random.Random(seed)
    bucket = Bucket.of(rate, 1_000_000, burst)
    charge = bucket.charge(1)
    ask = Ask(charge, spacing_us(charge, late_ms[1] * MS))
    tight = charge.headroom_us < late_ms[1] * MS
    state, waiting, deliveries = State(), 0, 0
    events: list[tuple[int, int, int, Place | None, bool]] = [(i * 700, i, i, None, False) for i in range(jobs)]
    serial, order, runs = jobs, [], []
    while events:
        now_us, _, job, place, in_place = heapq.heappop(events)
        waiting -= in_place
        deliveries += not in_place
        verdict, (state,) = acquire([ask], [state], now_us, caller=Caller.JOB, place=place)
        if verdict.allowed:
            order.append(job)
            runs.append(now_us)
            continue
        delay_us, place, in_place = verdict.slot_us - now_us, Place(0, verdict.slot_us), False
        if delay_us <= 50 * MS and waiting < at_once:
            waiting, in_place = waiting + 1, True
            delay_us += rnd.randint(0, 1 * MS)
        else:
            if tight and delay_us > 2 * early_ms * MS:
                delay_us -= early_ms * MS
            if longest_ms is not None:
                delay_us = min(delay_us, longest_ms * MS)
            delay_us += rnd.randint(late_ms[0] * MS, late_ms[1] * MS)
        serial += 1
        heapq.heappush(events, (now_us + delay_us, serial, job, place, in_place))
    ideal_us = (jobs - burst) * bucket.interval_us
    return Outcome(deliveries / jobs, ideal_us / (runs[-1] - runs[0]), order, runs)


@pytest.mark.parametrize("burst", [10, 50])
@pytest.mark.parametrize("jobs", [400, 4000])
def test_a_backlog_costs_one_deferral_a_job(burst: int, jobs: int) -> None:
    """With room for the delivery's lateness, a job is delivered about twice, and the limit is fully used."""
    outcome = _simulate(50, burst, jobs, late_ms=(0, 50))
    assert outcome.deliveries <= 2.05
    assert outcome.use >= 0.98


@pytest.mark.parametrize("jobs", [400, 4000])
def test_first_in_is_first_out(jobs: int) -> None:
    """Jobs run in the order they came, but for what the delivery's lateness shuffles."""
    assert _simulate(50, 50, jobs, late_ms=(0, 50)).moved <= 5


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_tight_limit_is_used_too(seed: int) -> None:
    """At burst 1, asking a little early and waiting in place keeps the limit busy, at about two deliveries a job."""
    outcome = _simulate(10, 1, 400, late_ms=(5, 50), early_ms=40, at_once=2, seed=seed)
    assert outcome.use >= 0.93
    assert outcome.deliveries <= 2.2


def test_capped_delays_keep_their_place() -> None:
    """Jobs whose delay is capped come back early, keep their slots, and run in turn."""
    outcome = _simulate(50, 50, 2000, late_ms=(0, 50), longest_ms=10_000)
    assert outcome.use >= 0.98
    assert outcome.moved <= 5
    assert outcome.deliveries <= 2 + 40 / 10


@pytest.mark.parametrize(("burst", "late_ms"), [(1, (0, 50)), (5, (0, 500)), (50, (0, 5000))])
def test_bound_holds_however_late_the_delivery(burst: int, late_ms: tuple[int, int]) -> None:
    """The bucket alone admits: no lateness makes a window pass more than its bound."""
    runs = _simulate(50, burst, 300, late_ms=late_ms).runs_us
    for first in range(len(runs)):
        for last in range(first + burst, len(runs)):
            assert last - first + 1 <= burst + (runs[last] - runs[first]) / 20_000


def test_queue_that_was_emptied_leaves_no_gap() -> None:
    """After thousands of waiting jobs were deleted, newcomers use the limit again once the grace time is over."""
    charge = Bucket.of(50, 1_000_000, 50).charge(1)
    ask, state, passed_us = Ask(charge, charge.charge_us), State(), []
    for _ in range(50 + 5000):
        _, (state,) = acquire([ask], [state], 0, caller=Caller.JOB)
    for i in range(30 * 60):
        verdict, (state,) = acquire([ask], [state], i * 33_333, caller=Caller.JOB)
        if verdict.allowed:
            passed_us.append(i * 33_333)
    assert passed_us[0] <= 1_000_000 + GRACE_US + 33_333
    assert len(passed_us) >= 0.98 * 30 * (60 - 6)
