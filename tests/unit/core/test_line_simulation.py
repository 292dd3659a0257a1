"""
The waiting line at work: a queue, its workers and a delivery that comes late, simulated around the real decision.

What the design promises of the line is a property of many jobs together, and so is its test.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import pytest

from support.claims import claim_of
from throttlekit import FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket
from throttlekit._core.acquire import State, acquire
from throttlekit._core.limit.base import Limit
from throttlekit._core.line import GRACE_US, Place
from throttlekit._core.verdict import Caller, Reason

MS = 1000
SECOND = 1000 * MS
START_US = 1_800_000_000_000_000 // 86_400_000_000 * 86_400_000_000


@dataclass(frozen=True)
class Work:
    """A job: when it comes, and whose it is."""

    at_us: int
    tenant: str = ""
    weight: int = 1


@dataclass
class Outcome:
    """What came of the jobs, which are numbered as they came."""

    limit: Limit
    jobs: Sequence[Work]
    runs_us: dict[int, int] = field(default_factory=dict)
    """When each job ran, in the order of running."""
    delivered: int = 0
    first_due_us: int = 0

    @property
    def deliveries(self) -> float:
        """Deliveries per job that ran."""
        return self.delivered / len(self.runs_us)

    @property
    def use(self) -> float:
        """Share of the limit's rate that was used, from the first instant that a denial gave to the last run."""
        runs_us = list(self.runs_us.values())
        after_us = (sum(run_us >= self.first_due_us for run_us in runs_us) - 1) * self.limit.period_us
        return after_us / self.limit.amount / (runs_us[-1] - self.first_due_us)

    @property
    def moved(self) -> int:
        """By how many places a job ran out of turn, at most."""
        return max(abs(place - job) for place, job in enumerate(self.runs_us))

    def waits_ms(self, tenant: str) -> list[float]:
        """How long each job of *tenant* waited, the longest last."""
        return sorted(
            (run_us - self.jobs[job].at_us) / MS
            for job, run_us in self.runs_us.items()
            if self.jobs[job].tenant == tenant
        )


def _simulate(
    limit: Limit,
    jobs: int | Iterable[Work],
    *,
    late_ms: tuple[int, int] = (0, 50),
    early_ms: int = 0,
    at_once: int = 0,
    longest_ms: int | None = None,
    start_us: int = START_US,
    seed: int = 1,
    die: float = 0.0,
    until_s: float | None = None,
    then: tuple[float, Limit, Callable[[object], object]] | None = None,
) -> Outcome:
    """
    Deliver *jobs* as fast as workers take them, and each denied one again when the limiter said, but late.

    Args:
        die: Of that share of the jobs, none comes back once it was denied.
        then: After so many seconds the limit is another one, with the state that the function returns.
    """
    if isinstance(jobs, int):
        jobs = [Work(start_us + number * 700) for number in range(jobs)]
    works, rnd, state, waiting = sorted(jobs, key=lambda work: work.at_us), random.Random(seed), State(), 0
    outcome, dead = Outcome(limit, works), {job for job in range(len(works)) if rnd.random() < die}
    tight = limit.bind(1).tight(GRACE_US) or limit.capacity * limit.period_us < 50 * MS * limit.amount
    events: list[tuple[int, int, int, Sequence[Place | None], bool]] = [
        (work.at_us, number, number, (), False) for number, work in enumerate(works)
    ]
    heapq.heapify(events)
    serial = len(works)
    while events:
        now_us, _, job, places, in_place = heapq.heappop(events)
        if until_s is not None and now_us > start_us + until_s * SECOND:
            break
        if then is not None and now_us >= start_us + then[0] * SECOND:
            limit, state = then[1], State(then[2](state.taken), state.line)
            then = None
        waiting -= in_place
        outcome.delivered += not in_place
        work = works[job]
        claim = claim_of(limit.bind(1), 1, limit.max_queue, tenant=work.tenant, weight=work.weight)
        verdict, (state,) = acquire([claim], [state], now_us, caller=Caller.JOB, places=places, secret="s")
        if verdict.allowed:
            outcome.runs_us[job] = now_us
            continue
        outcome.first_due_us = outcome.first_due_us or verdict.due_us
        if job in dead:
            continue
        delay_us, in_place = verdict.due_us - now_us, False
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
        heapq.heappush(events, (now_us + delay_us, serial, job, verdict.places, in_place))
    return outcome


@pytest.mark.parametrize("burst", [10, 50])
@pytest.mark.parametrize("jobs", [400, 4000])
def test_a_backlog_costs_one_deferral_a_job(burst: int, jobs: int) -> None:
    """With room for the delivery's lateness, a job is delivered twice, in turn, and the limit is fully used."""
    outcome = _simulate(TokenBucket("x", "50/s", burst=burst), jobs)
    assert outcome.deliveries <= 2.05
    assert outcome.use >= 0.99
    assert outcome.moved <= 3


ALGORITHMS = (
    # limit, deferrals per job at most, use at least, places out of turn at most
    (TokenBucket("token", "50/s"), 1.0, 0.99, 5),
    (TokenBucket("token", "100/minute"), 1.0, 0.95, 5),
    # Units closer together than the delivery is late, and nothing to store what comes late: at its worst.
    (LeakyBucket("leaky", "50/s"), 3.5, 0.87, 200),
    (LeakyBucket("leaky", "20/s"), 1.0, 0.95, 5),
    (LeakyBucket("leaky", "100/minute"), 1.0, 0.95, 5),
    # All jobs of a window are due as it begins, in no order.
    (FixedWindow("fixed", "50/s"), 1.0, 0.99, 60),
    (FixedWindow("fixed", "100/minute"), 1.0, 0.99, 100),
    (SlidingWindow("sliding", "50/s"), 1.0, 0.91, 5),
    (SlidingWindow("sliding", "100/minute"), 1.0, 0.99, 5),
    (SlidingLog("log", "50/s"), 1.0, 0.95, 60),
    (SlidingLog("log", "100/minute"), 1.0, 0.99, 100),
)


@pytest.mark.parametrize("jobs", [500, 2000])
@pytest.mark.parametrize("begun", [0, 0.5, 0.98], ids=["fresh", "mid-window", "window's end"])
@pytest.mark.parametrize(
    ("limit", "deferrals", "use", "moved"), ALGORITHMS, ids=[f"{each[0].name} {each[0].rate}" for each in ALGORITHMS]
)
def test_every_algorithm_works_off_its_backlog(
    limit: Limit, deferrals: float, use: float, moved: int, begun: float, jobs: int
) -> None:
    """Behind every algorithm, whenever its window began: few deferrals, a limit in use, and order."""
    start_us = START_US + round(begun * limit.period_us)
    outcome = _simulate(limit, jobs, early_ms=40, at_once=2, start_us=start_us)
    assert outcome.deliveries - 1 <= deferrals
    assert outcome.use >= use
    assert outcome.moved <= moved


@pytest.mark.parametrize("queue", [0, 1, 20])
@pytest.mark.parametrize("rate", ["50/s", "100/minute", "7/hour"])
def test_queue_of_a_leaky_bucket_holds_what_it_says(queue: int, rate: str) -> None:
    """Of many who come at once one passes, as many as the queue holds wait, and all others are refused."""
    limit, state = LeakyBucket("x", rate, queue=queue), State()
    claim, reasons = claim_of(limit.bind(1), 1, limit.max_queue), list[Reason]()
    for _ in range(60):
        verdict, (state,) = acquire([claim], [state], START_US, caller=Caller.JOB)
        reasons.append(verdict.reason)
    assert reasons == [Reason.ALLOWED] + [Reason.EXHAUSTED] * queue + [Reason.FULL] * (59 - queue)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_tight_limit_is_used_too(seed: int) -> None:
    """At burst 1, asking a little early and waiting in place keeps the limit busy, at two deliveries a job."""
    outcome = _simulate(TokenBucket("x", "10/s", burst=1), 400, late_ms=(5, 50), early_ms=40, at_once=2, seed=seed)
    assert outcome.use >= 0.95
    assert outcome.deliveries <= 2.05


def test_capped_delays_keep_their_place() -> None:
    """Jobs whose delay is capped come back early, keep their places, and run in turn."""
    outcome = _simulate(TokenBucket("x", "50/s", burst=50), 2000, longest_ms=10_000)
    assert outcome.use >= 0.99
    assert outcome.moved <= 5
    assert outcome.deliveries <= 2 + 40 / 10


@pytest.mark.parametrize(("burst", "late_ms"), [(1, (0, 50)), (5, (0, 500)), (50, (0, 5000))])
def test_bound_holds_however_late_the_delivery(burst: int, late_ms: tuple[int, int]) -> None:
    """The bucket alone admits: no lateness makes a window pass more than its bound."""
    outcome = _simulate(TokenBucket("x", "50/s", burst=burst), 300, late_ms=late_ms)
    runs_us = list(outcome.runs_us.values())
    assert len(runs_us) == 300, "every job runs"
    for first in range(len(runs_us)):
        for last in range(first + burst, len(runs_us)):
            assert last - first + 1 <= burst + (runs_us[last] - runs_us[first]) / 20_000


# Shares


def _steady(tenant: str, per_s: float, seconds: float, weight: int = 1, from_s: float = 0) -> list[Work]:
    count = round(per_s * seconds)
    return [Work(START_US + round((from_s + number / per_s) * SECOND), tenant, weight) for number in range(count)]


def _flood(tenant: str, jobs: int, weight: int = 1) -> list[Work]:
    return [Work(START_US + number * 700, tenant, weight) for number in range(jobs)]


def test_light_tenant_does_not_wait_out_the_heavy_ones_backlog() -> None:
    """1 000 jobs wait, 20 s of the limit; a tenant with a job a second waits an interval or two, if at all."""
    jobs = [*_flood("heavy", 1000), *_steady("light", 1, 15, from_s=1)]
    outcome = _simulate(TokenBucket("x", "50/s", burst=10), jobs)
    assert len(outcome.runs_us) == 1015
    assert outcome.waits_ms("light")[-1] <= 2 * 20 + 50
    assert outcome.use >= 0.99
    assert outcome.deliveries <= 3.2, "each light job puts the heavy ones off by one unit; they come, and learn it"


def test_weights_are_shares() -> None:
    """Three tenants with more than they can run, weights 1, 5 and 25: the units of 20 s are shared so, within 3 %."""
    weights = {"one": 1, "five": 5, "many": 25}
    jobs = [work for tenant, weight in weights.items() for work in _flood(tenant, 1500, weight)]
    outcome = _simulate(TokenBucket("x", "50/s", burst=10), jobs, until_s=22)
    late = [outcome.jobs[job] for job, run_us in outcome.runs_us.items() if run_us > START_US + 2 * SECOND]
    for tenant, weight in weights.items():
        share = sum(work.tenant == tenant for work in late) / len(late)
        assert share == pytest.approx(weight / 31, rel=0.03, abs=1.5 / len(late)), tenant


# What does not come back, and what changes


def test_dead_jobs_leave_the_limit_in_use() -> None:
    """Half of the waiting jobs never come back: the others run, and most of the limit is used for them."""
    outcome = _simulate(TokenBucket("x", "50/s", burst=10), 2000, die=0.5)
    waiting = 2000 - 10
    assert len(outcome.runs_us) >= 0.48 * waiting
    assert outcome.use >= 0.5


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [
        (TokenBucket("x", "1000/d", burst=1000), 1), (TokenBucket("x", "50/s", burst=50), 1),
        (TokenBucket("x", "50/s", burst=10), 1), (TokenBucket("x", "50/s", burst=1), 6), (FixedWindow("x", "50/s"), 1),
        (SlidingWindow("x", "50/s"), 1), (SlidingWindow("x", "1000/d"), 6), (SlidingLog("x", "50/s"), 1),
    ],
    ids=lambda given: given if isinstance(given, int) else f"{given.algorithm} {given.rate} {given.capacity}",
)  # fmt: skip
def test_queue_that_was_emptied_stops_no_newcomer_for_long(limit: Limit, seconds: int) -> None:
    """After 4 000 were deleted, newcomers of the next day, or minute, pass; also where one unit lies there."""
    jobs = [Work(START_US + number * 100) for number in range(limit.capacity + 4000)]
    day_us = START_US + (limit.period_us if limit.period_us > SECOND else 60 * SECOND) + SECOND
    newcomers = [Work(day_us + number * 33_333, "new") for number in range(200)]
    outcome = _simulate(limit, [*jobs, *newcomers], die=1.0)
    passed_us = [run_us for job, run_us in outcome.runs_us.items() if outcome.jobs[job].tenant == "new"]
    assert passed_us
    assert passed_us[0] <= day_us + seconds * SECOND


def test_rate_that_was_raised_is_used_by_those_who_wait() -> None:
    """Ten times the rate: each finds it out as it asks, at least every half second where its process does so."""
    slow, fast = TokenBucket("x", "10/s", burst=10), TokenBucket("x", "100/s", burst=100)
    outcome = _simulate(slow, 1000, longest_ms=500, then=(5.0, fast, lambda taken: taken))
    last_us = max(outcome.runs_us.values()) - START_US
    assert len(outcome.runs_us) == 1000
    assert last_us <= (5 + 0.5 + (1000 - 60 - 100) / 100 + 0.5) * SECOND
