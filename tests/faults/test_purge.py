"""An operator purges a queue whose jobs wait for a limit: the counts stay, and the limit is used again."""

from __future__ import annotations

import heapq
import itertools

import pytest

from throttlekit import Concurrency, FixedWindow, Job, Limit, Limiter, TokenBucket
from throttlekit._engine.call import Delivery
from throttlekit.stores import MemoryStore
from throttlekit.testing import FakeClock

HOUR = 3_600.0
_LONGEST_DELAY_S = 600.0  # an adapter redelivers a job at the latest after this time


class Newcomers:
    """Jobs that request at a steady pace, and again after their delays, on a clock that the test advances."""

    def __init__(self, limit: Limit) -> None:
        self.limit, self.clock = limit, FakeClock()
        self.limiter = Limiter(MemoryStore(clock_us=self.clock))
        self.ran: list[float] = []

    def add_purged_jobs(self, waiting: int) -> None:
        """Use the whole limit, and add *waiting* jobs to the waitlist that never request again."""
        assert self.limiter.acquire(self.limit, cost=self.limit.capacity).allowed
        for number in range(waiting):
            assert not self.limiter.acquire(self.limit, job=Job(id=f"purged-{number}")).allowed

    def run(self, every: float, until: float) -> None:
        """Send a job every *every* seconds. `ran` gets the time of each job that runs, in seconds after the purge."""
        numbers = itertools.count()
        jobs: list[tuple[float, int]] = []
        for number in range(1, int(until / every)):
            heapq.heappush(jobs, (number * every, next(numbers)))
        now = 0.0
        while jobs and jobs[0][0] <= until:
            at, number = heapq.heappop(jobs)
            self.clock.advance(max(0.0, at - now))
            now = max(now, at)
            decision = self.limiter.acquire(self.limit, job=Job(id=str(number)))
            if decision.allowed:
                self.ran.append(now)
            else:
                heapq.heappush(jobs, (now + min(decision.delay, _LONGEST_DELAY_S) + 0.001, number))


@pytest.mark.parametrize(
    ("limit", "every", "first", "until"),
    [
        (TokenBucket("day", "1000/d", burst=1000), 60.0, 500.0, 4 * HOUR),
        (TokenBucket("hour", "100/h", burst=100), 20.0, 200.0, HOUR),
        (TokenBucket("second", "10/s"), 0.05, 10.0, 60.0),
        (FixedWindow("window", "1000/h"), 2.0, HOUR + 60.0, 2 * HOUR),
    ],
    ids=lambda value: value.name if isinstance(value, Limit) else "",
)
def test_after_a_purge_the_limit_is_used_again(limit: Limit, every: float, first: float, until: float) -> None:
    """A job is admitted about when the rate alone would admit it, and then the limit is used."""
    newcomers = Newcomers(limit)
    newcomers.add_purged_jobs(2 * limit.capacity)
    newcomers.run(every, until)
    assert newcomers.ran
    assert newcomers.ran[0] <= first
    could = (until - newcomers.ran[0]) * min(1 / every, limit.amount * 1_000_000 / limit.period_us)
    assert len(newcomers.ran) >= 0.8 * could


@pytest.mark.parametrize(
    ("rate", "purged", "more"),
    [
        *((rate, purged, 4) for rate in ("10/s", "10/minute", "10/h") for purged in (10, 100)),
        ("1/s", 1_000, 4),
        ("100/h", 1_000, 4),
        ("10/s", 5_000, 4),
    ],
)
def test_a_new_job_behind_purged_ones_waits_for_an_interval_and_a_few_seconds(
    rate: str, purged: int, more: int
) -> None:
    """
    The new job requests every half second. When 16 purged jobs were woken and made no request, no job waits for the
    others.
    """
    limit = TokenBucket("purged", rate, burst=1)
    newcomers = Newcomers(limit)
    newcomers.add_purged_jobs(purged)
    interval = limit.period_us / 1_000_000 / limit.amount
    now = 0.0
    while not newcomers.limiter.acquire(limit, job=Job(id="new")).allowed:
        newcomers.clock.advance(0.5)
        now += 0.5
    assert interval <= now + 0.5
    assert now <= interval + more


@pytest.mark.parametrize(("rate", "purged"), [("100/s", 100), ("10/s", 1000), ("10/h", 100)])
def test_new_jobs_that_keep_arriving_wait_for_some_units(rate: str, purged: int) -> None:
    """With two new jobs for each unit and a burst of 1, the first one waits for 3.5 units, however many were purged."""
    limit = TokenBucket("purged", rate, burst=1)
    interval = limit.period_us / 1_000_000 / limit.amount
    newcomers = Newcomers(limit)
    newcomers.add_purged_jobs(purged)
    newcomers.run(interval / 2, 10 * interval + 10)
    assert newcomers.ran[0] <= 3.6 * interval + 1.5


@pytest.mark.parametrize(("slots", "purged", "within"), [(1, 1, 3), (1, 15, 9), (1, 300, 19), (4, 300, 8)])
def test_a_slot_waits_for_purged_jobs_for_some_seconds(slots: int, purged: int, within: float) -> None:
    """A slot is kept for each of 16 purged jobs for about a second, and then no job waits for the others."""
    limit, late = Concurrency("slots", slots), Delivery(lateness=2.1)
    clock = FakeClock()
    limiter = Limiter(MemoryStore(clock_us=clock))
    held = [limiter.acquire(limit) for _ in range(slots)]
    for number in range(purged):
        assert not limiter.acquire(limit, job=Job(id=f"purged-{number}"), delivery=late)
    for each in held:
        limiter.release(each)
    began: list[float] = []
    for step in range(round(2 * within / 0.05)):
        if granted := limiter.acquire(limit, job=Job(id="new"), delivery=late):
            began.append(step * 0.05)
            limiter.release(granted)
        clock.advance(0.05)
    assert began[0] <= within
    assert sum(at >= within for at in began) >= within / 0.05 - 2, "after that time each job begins at once"


@pytest.mark.parametrize("limit", [TokenBucket("day", "1000/d", burst=1000), TokenBucket("hour", "100/h", burst=100)])
def test_after_a_cleared_waitlist_the_limit_is_used_at_its_rate(limit: Limit) -> None:
    """Clearing a waitlist keeps the counts, so no burst follows: as many jobs run as the rate admits, and no more."""
    newcomers = Newcomers(limit)
    newcomers.add_purged_jobs(5 * limit.capacity)
    newcomers.limiter.clear_waitlist(limit)
    until = limit.period_us / 1_000_000 / 4
    newcomers.run(until / 1000, until)
    interval = limit.period_us / 1_000_000 / limit.amount
    assert interval <= newcomers.ran[0] <= 2 * interval
    assert 0.9 * limit.amount / 4 <= len(newcomers.ran) <= limit.amount / 4
