"""
The waiting line at work: a queue, its workers and a delivery that comes late, simulated around the real decision.

What the design promises of the line is a property of many jobs together, and so is its test.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from support.claims import claim_of
from throttlekit import FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket
from throttlekit._core.acquire import Caller, Place, Reason, State, acquire
from throttlekit._core.limit.base import Limit
from throttlekit._core.line import GRACE_US

MS = 1000
START_US = 1_800_000_000_000_000 // 86_400_000_000 * 86_400_000_000


@dataclass
class Outcome:
    deliveries: float
    """Deliveries per job that ran."""
    use: float
    """Share of the limit's rate that was used, from the first slot to the last run."""
    herd: int
    """The most jobs that came back in one millisecond."""
    order: Sequence[int]
    """The jobs, as they ran."""
    runs_us: Sequence[int]

    @property
    def moved(self) -> int:
        """By how many places a job ran out of turn, at most."""
        return max(abs(place - job) for place, job in enumerate(self.order))


def _simulate(
    limit: Limit,
    jobs: int,
    *,
    late_ms: tuple[int, int],
    early_ms: int = 0,
    at_once: int = 0,
    longest_ms: int | None = None,
    start_us: int = START_US,
    seed: int = 1,
) -> Outcome:
    """Deliver *jobs* as fast as workers take them, and each denied one again when the limiter said, but late."""
    rnd = random.Random(seed)
    charge = limit.bind(1)
    ask = claim_of(charge, charge.spacing_us(late_ms[1] * MS), limit.max_queue_us(charge))
    tight = charge.needs_slack(late_ms[1] * MS)
    state, waiting, deliveries, first_slot_us = State(), 0, 0, 0
    events: list[tuple[int, int, int, Place | None, bool]] = [
        (start_us + i * 700, i, i, None, False) for i in range(jobs)
    ]
    serial, order, runs, returns = jobs, [], [], Counter[int]()
    while events:
        now_us, _, job, place, in_place = heapq.heappop(events)
        waiting -= in_place
        deliveries += not in_place
        returns[now_us // MS] += place is not None
        verdict, (state,) = acquire([ask], [state], now_us, caller=Caller.JOB, place=place)
        if verdict.allowed:
            order.append(job)
            runs.append(now_us)
            continue
        first_slot_us = first_slot_us or verdict.due_us
        delay_us, place, in_place = verdict.due_us - now_us, Place(0, verdict.due_us), False
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
    after_us = (sum(run_us >= first_slot_us for run_us in runs) - 1) * limit.period_us / limit.amount
    use = after_us / (runs[-1] - first_slot_us)
    return Outcome(deliveries / jobs, use, max(returns.values()), order, runs)


@pytest.mark.parametrize("burst", [10, 50])
@pytest.mark.parametrize("jobs", [400, 4000])
def test_a_backlog_costs_one_deferral_a_job(burst: int, jobs: int) -> None:
    """With room for the delivery's lateness, a job is delivered about twice, and the limit is fully used."""
    outcome = _simulate(TokenBucket("x", "50/s", burst=burst), jobs, late_ms=(0, 50))
    assert outcome.deliveries <= 2.05
    assert outcome.use >= 0.98


ALGORITHMS = (
    # limit, deferrals per job at most, use at least, places out of turn at most
    (TokenBucket("token", "50/s"), 1.0, 0.99, 5),
    (TokenBucket("token", "100/minute"), 1.0, 0.95, 5),
    # Slots closer together than the delivery is late, and nothing to store what comes late: at its worst.
    (LeakyBucket("leaky", "50/s"), 2.7, 0.78, 1500),
    (LeakyBucket("leaky", "20/s"), 1.0, 0.95, 5),
    (LeakyBucket("leaky", "100/minute"), 1.0, 0.95, 5),
    (FixedWindow("fixed", "50/s"), 1.0, 0.95, 5),
    (FixedWindow("fixed", "100/minute"), 1.0, 0.99, 5),
    # Slots without slack: a line that has fallen behind, as jobs came around an edge, does not catch up.
    (SlidingWindow("sliding", "50/s"), 2.5, 0.95, 400),
    (SlidingWindow("sliding", "100/minute"), 1.0, 0.99, 5),
    (SlidingLog("log", "50/s"), 1.0, 0.95, 5),
    (SlidingLog("log", "100/minute"), 1.0, 0.99, 5),
)


@pytest.mark.parametrize("jobs", [500, 2000])
@pytest.mark.parametrize("begun", [0, 0.5, 0.98], ids=["fresh", "mid-window", "window's end"])
@pytest.mark.parametrize(
    ("limit", "deferrals", "use", "moved"), ALGORITHMS, ids=[f"{each[0].name} {each[0].rate}" for each in ALGORITHMS]
)
def test_every_algorithm_works_off_its_backlog(
    limit: Limit, deferrals: float, use: float, moved: int, begun: float, jobs: int
) -> None:
    """Behind every algorithm, whenever its window began: few deferrals, a limit in use, order, and no herd."""
    start_us = START_US + round(begun * limit.period_us)
    outcome = _simulate(limit, jobs, late_ms=(0, 50), early_ms=40, at_once=2, start_us=start_us)
    assert outcome.deliveries - 1 <= deferrals
    assert outcome.use >= use
    assert outcome.moved <= moved
    assert outcome.herd <= 5


@pytest.mark.parametrize("algorithm", [FixedWindow, SlidingWindow, SlidingLog])
@pytest.mark.parametrize("rate", ["50/s", "7/10s", "100/minute"])
def test_edge_of_a_window_brings_no_herd(algorithm: type[FixedWindow], rate: str) -> None:
    """Though a whole amount is there again at once, those who wait come back one by one, as the rate has it."""
    limit = algorithm("x", rate)
    charge = limit.bind(1)
    ask, state, now_us = claim_of(charge, charge.spacing_us(0)), State(), START_US + 123_456
    slots: list[int] = []
    for _ in range(limit.amount + 300):
        verdict, (state,) = acquire([ask], [state], now_us, caller=Caller.JOB)
        if not verdict.allowed:
            slots.append(verdict.due_us)
    assert len(slots) == 300
    steps_us = {second - first for first, second in itertools.pairwise(slots)}
    assert steps_us == {-(-limit.period_us // limit.amount)}


@pytest.mark.parametrize("queue", [0, 1, 20])
@pytest.mark.parametrize("rate", ["50/s", "100/minute", "7/hour"])
@pytest.mark.parametrize("late_ms", [0, 50])
def test_queue_of_a_leaky_bucket_holds_what_it_says(queue: int, rate: str, late_ms: int) -> None:
    """Of many who come at once one passes, as many as the queue holds wait, and all others are refused."""
    limit = LeakyBucket("x", rate, queue=queue)
    charge = limit.bind(1)
    ask, state = claim_of(charge, charge.spacing_us(late_ms * MS), limit.max_queue_us(charge)), State()
    told: list[Reason] = []
    for _ in range(60):
        verdict, (state,) = acquire([ask], [state], START_US, caller=Caller.JOB)
        told.append(verdict.reason)
    waiting = [reason for reason in told if reason in (Reason.EXHAUSTED, Reason.IN_LINE)]
    assert told[0] is Reason.ALLOWED
    assert len(waiting) == queue
    assert told[1 + queue :] == [Reason.FULL] * (59 - queue)


@pytest.mark.parametrize("jobs", [400, 4000])
def test_first_in_is_first_out(jobs: int) -> None:
    """Jobs run in the order they came, but for what the delivery's lateness shuffles."""
    assert _simulate(TokenBucket("x", "50/s", burst=50), jobs, late_ms=(0, 50)).moved <= 5


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_tight_limit_is_used_too(seed: int) -> None:
    """At burst 1, asking a little early and waiting in place keeps the limit busy, at about two deliveries a job."""
    limit = TokenBucket("x", "10/s", burst=1)
    outcome = _simulate(limit, 400, late_ms=(5, 50), early_ms=40, at_once=2, seed=seed)
    assert outcome.use >= 0.93
    assert outcome.deliveries <= 2.2


def test_capped_delays_keep_their_place() -> None:
    """Jobs whose delay is capped come back early, keep their slots, and run in turn."""
    outcome = _simulate(TokenBucket("x", "50/s", burst=50), 2000, late_ms=(0, 50), longest_ms=10_000)
    assert outcome.use >= 0.98
    assert outcome.moved <= 5
    assert outcome.deliveries <= 2 + 40 / 10


@pytest.mark.parametrize(("burst", "late_ms"), [(1, (0, 50)), (5, (0, 500)), (50, (0, 5000))])
def test_bound_holds_however_late_the_delivery(burst: int, late_ms: tuple[int, int]) -> None:
    """The bucket alone admits: no lateness makes a window pass more than its bound."""
    runs = _simulate(TokenBucket("x", "50/s", burst=burst), 300, late_ms=late_ms).runs_us
    for first in range(len(runs)):
        for last in range(first + burst, len(runs)):
            assert last - first + 1 <= burst + (runs[last] - runs[first]) / 20_000


@pytest.mark.parametrize("algorithm", [TokenBucket, FixedWindow, SlidingWindow, SlidingLog])
def test_queue_that_was_emptied_leaves_no_gap(algorithm: type[TokenBucket]) -> None:
    """After thousands of waiting jobs were deleted, newcomers use the limit again once the grace time is over."""
    charge = algorithm("x", "50/s").bind(1)
    ask, state, passed_us = claim_of(charge, charge.spacing_us(0)), State(), []
    for _ in range(50 + 5000):
        _, (state,) = acquire([ask], [state], START_US, caller=Caller.JOB)
    for i in range(30 * 60):
        verdict, (state,) = acquire([ask], [state], START_US + i * 33_333, caller=Caller.JOB)
        if verdict.allowed:
            passed_us.append(i * 33_333)
    assert passed_us[0] <= 2_000_000 + GRACE_US + 33_333
    assert len(passed_us) >= 0.98 * 30 * (60 - 7)


@pytest.mark.parametrize("algorithm", [TokenBucket, LeakyBucket, FixedWindow, SlidingWindow, SlidingLog])
def test_line_of_a_slow_limit_is_given_up_too(algorithm: type[TokenBucket]) -> None:
    """Of a limit of minutes too, a line that nobody comes for holds newcomers up little longer than one unit takes."""
    limit = algorithm("x", "6/minute")
    charge = limit.bind(1)
    ask, state, now_us = claim_of(charge, charge.spacing_us(0)), State(), START_US
    for _ in range(limit.capacity + 100):
        _, (state,) = acquire([ask], [state], now_us, caller=Caller.JOB)
    opens_us = charge.ready_us(state.taken, now_us)
    interval_us = limit.period_us // limit.amount
    verdict, _ = acquire([ask], [state], opens_us + interval_us + GRACE_US, caller=Caller.JOB)
    assert verdict.allowed
    verdict, _ = acquire([ask], [state], opens_us + GRACE_US - 1, caller=Caller.JOB)
    assert not verdict.allowed
