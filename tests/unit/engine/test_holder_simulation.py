"""
Processes that hold waiting jobs: how often they ask, simulated around the real limiter and the real `WaitingRoom`.

A heavy tenant has a backlog, and ten light ones come in front of it, so that every instant that it was given is too
early by and by. A process asks for its first job, and its answer counts for all behind it.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from throttlekit import Job, Limiter, Share, TokenBucket
from throttlekit._core.limit.with_rate import altered
from throttlekit._engine.call import Call
from throttlekit._engine.delivery import Delivery
from throttlekit._engine.inline import InlineWaits
from throttlekit._engine.ticket import Ticket
from throttlekit._wiring import wiring_of
from throttlekit.adapter import Entry, Run, WaitingRoom, lane_behind, lane_in
from throttlekit.stores import MemoryStore
from throttlekit.stores.base import Wait
from throttlekit.testing import FakeClock

SECOND = 1_000_000
THREADS, BODY_US, LOOK_S = 4, 1000, 0.5
LIMIT = TokenBucket("partner", "50/s", burst=10, share="{tenant}")


class Asleep(InlineWaits):
    """Sleeps nowhere, and remembers whether a thread would have."""

    asked = False

    def wait(self, seconds: float) -> bool:
        self.asked = seconds <= self.longest
        return False


@dataclass
class Work:
    tenant: str
    at_us: int
    number: int
    ticket: Mapping[str, Any] | None = None
    ran_us: int = 0


@dataclass
class Process:
    room: WaitingRoom[Work] = field(default_factory=WaitingRoom)
    busy: int = 0
    asleep: bool = False
    timer_us: int = 0


class Fleet:
    """
    Processes that work as Dramatiq's and Celery's do with throttlekit: a job that was denied is held, and asks when it
    is due. One that is granted before it was expected, or that leaves units, has the next one ask at once.

    Args:
        sleeps: A thread of each process sleeps until a job is due that is due soon, as Dramatiq's do.

    Attributes:
        limit: As it is now; an operator may have set its rate.
        processes: Those that run.
        asks: When the store was asked, by the simulated clock.
        ran: The jobs, in the order of running.
    """

    def __init__(
        self, processes: int, works: list[Work], seed: int, limit: TokenBucket = LIMIT, *, sleeps: bool = True
    ) -> None:
        self.limit, self._sleeps = limit, sleeps
        self._clock = FakeClock()
        self._limiter = Limiter(MemoryStore(clock_us=self._clock))
        self._start_us, self._random = self._clock(), random.Random(seed)
        self.processes = [Process() for _ in range(processes)]
        self._queue: deque[Work] = deque()
        self._events: list[tuple[int, int, Any, tuple[Any, ...]]] = []
        self.asks: list[int] = []
        self.ran: list[Work] = []
        for work in works:
            self._later(work.at_us, self._arrive, work)
        for process in self.processes:
            self._later(self._random.randrange(50_000), self._look, process)

    @property
    def now_us(self) -> int:
        return self._clock() - self._start_us

    def run(self, until_us: int) -> None:
        while self._events and self._events[0][0] <= until_us:
            at_us, _, what, arguments = heapq.heappop(self._events)
            self._clock.advance((at_us - self.now_us) / SECOND)
            what(*arguments)

    def leave(self, work: Work) -> None:
        """*work*, which waits, ends."""
        (claim,) = self._limiter.claims(Call((self.limit,), _job(work)))
        (place,) = Ticket.read(work.ticket).places_in([claim.limit])
        assert place is not None
        wiring_of(self._limiter).stores.shared.leave([Wait(claim.claim, place)])

    def _later(self, at_us: int, what: Any, *arguments: Any) -> None:
        heapq.heappush(self._events, (at_us, self._random.getrandbits(62), what, arguments))

    def _arrive(self, work: Work) -> None:
        self._queue.append(work)
        self._fill()

    def _fill(self) -> None:
        while self._queue and (free := [each for each in self.processes if each.busy < THREADS]):
            self._hand_over(self._random.choice(free), self._queue.popleft(), None)

    def _hand_over(self, process: Process, work: Work, last: Entry[Work] | None) -> None:
        process.busy += 1
        self._later(self.now_us + self._random.randint(100, 300), self._ask, process, work, last)

    def _take_up(self, process: Process, entry: Entry[Work]) -> None:
        process.room.remove(entry)
        self._hand_over(process, entry.item, entry)

    def _ask(self, process: Process, work: Work, last: Entry[Work] | None) -> None:
        self.asks.append(self.now_us)
        inline = Asleep(at_once=0 if process.asleep else 1) if self._sleeps else None
        job = _job(work)
        delivery = Delivery(lateness=0.05, inline=inline, held=last is not None)
        decision = self._limiter.acquire(self.limit, job=job, delivery=delivery)
        if decision.allowed:
            work.ran_us = self.now_us
            self.ran.append(work)
            early = 0.0 if last is None else last.expected - self.now_us / SECOND
            behind = lane_behind(Run(job, (self.limit,), decision, delivery), early=early)
            free = process.busy < THREADS
            self._later(self.now_us + BODY_US, self._end, process, "" if free else behind)
            self._ask_next(process, behind)
            return
        work.ticket = decision.ticket
        delay_us = round(decision.delay * SECOND)
        if inline is not None and inline.asked and not process.asleep:
            process.asleep = True
            self._later(self.now_us + delay_us + 200, self._wake, process, work, last)
            return
        process.busy -= 1
        due_us = self.now_us + delay_us
        due = -(-due_us // 1000) / 1000 if self._sleeps else due_us / SECOND  # Dramatiq counts in milliseconds
        process.room.put(work, due, lane_in(work.ticket), now=self.now_us / SECOND, before=last and last.waited)
        self._release(process)
        self._fill()

    def _ask_next(self, process: Process, lane: str) -> None:
        entry = process.room.first_in(lane)
        if entry is not None and process.busy < THREADS:
            self._take_up(process, entry)

    def _wake(self, process: Process, work: Work, last: Entry[Work] | None) -> None:
        process.asleep = False
        self._ask(process, work, last)

    def _end(self, process: Process, behind: str) -> None:
        process.busy -= 1
        self._ask_next(process, behind)
        self._release(process)
        self._fill()

    def _release(self, process: Process) -> None:
        while (entry := process.room.first()) is not None and process.busy < THREADS:
            if entry.due > self.now_us / SECOND:
                due_us = round(entry.due * SECOND)
                if not self.now_us < process.timer_us <= due_us + 200:
                    process.timer_us = due_us + self._random.randint(200, 3000)
                    self._later(process.timer_us, self._release, process)
                return
            self._take_up(process, entry)

    def _look(self, process: Process) -> None:
        self._later(self.now_us + 50_000, self._look, process)
        now = self.now_us / SECOND
        entry = process.room.to_look_at(now, LOOK_S, now + LOOK_S / 2) if process.busy < THREADS else None
        if entry is not None:
            self._take_up(process, entry)


def _job(work: Work) -> Job:
    return Job(id=str(work.number), args=(work.tenant,), function=_function, ticket=work.ticket)


def _function(tenant: str) -> None: ...


def works_of(coming: list[tuple[int, str]]) -> list[Work]:
    return [Work(tenant, at_us, number) for number, (at_us, tenant) in enumerate(coming)]


each_kind = pytest.mark.parametrize("sleeps", [True, False], ids=["as Dramatiq", "as Celery"])
each_fleet = pytest.mark.parametrize("processes", [1, 2, 4])


@each_kind
@pytest.mark.parametrize(("processes", "most_asks"), [(1, 2.4), (2, 2.5), (4, 2.75)])
def test_a_held_backlog_behind_light_tenants_is_asked_for_little_more_than_once(
    processes: int, most_asks: float, sleeps: bool
) -> None:
    """2 of these a job has to have: one that gives it its place, and one that is granted. The limit is fully used."""
    backlog, seconds, begin_us = 400, 6, 1 * SECOND
    heavy = [Work("heavy", number * 500, number) for number in range(backlog)]
    light = [Work(f"light {k % 10}", begin_us + k * SECOND // 10, backlog + k) for k in range(10 * seconds)]
    fleet = Fleet(processes, [*heavy, *light], seed=1, sleeps=sleeps)
    fleet.run(begin_us + seconds * SECOND)
    ran = [work for work in fleet.ran if work.ran_us > begin_us]
    before = sum(work.at_us < begin_us for work in ran)
    asks = sum(at_us > begin_us for at_us in fleet.asks) + before
    assert asks / len(ran) <= most_asks
    assert len(ran) >= 0.99 * 50 * seconds
    order = [work.number for work in fleet.ran if work.tenant == "heavy"]
    assert max(abs(place - number) for place, number in enumerate(order)) <= 3
    waits = sorted(work.ran_us - work.at_us for work in ran if work.tenant != "heavy")
    assert len(waits) >= 10 * seconds - 2
    assert waits[-1] <= 0.1 * SECOND


@each_kind
@each_fleet
def test_a_burst_of_others_leaves_the_limit_used(processes: int, sleeps: bool) -> None:
    """Jobs come before it, amid it and after it: the last knew of it, and are not to be as late as the first."""
    backlog = [(number * 700, "a") for number in range(200)]
    coming = [(SECOND + number * SECOND // 45, "a") for number in range(45 * 14)]
    bursts = [(4 * SECOND + n * 300, f"b{n % 20}") for n in range(100)]
    bursts += [(8 * SECOND + n * 300, f"b{n % 5}") for n in range(60)]
    fleet = Fleet(processes, works_of(backlog + coming + bursts), seed=1, sleeps=sleeps)
    fleet.run(14 * SECOND)
    assert len(fleet.ran) >= 0.985 * 50 * 14
    each = Counter(work.ran_us // SECOND for work in fleet.ran)
    assert min(each[second] for second in range(1, 14)) >= 0.85 * 50


@each_kind
@each_fleet
@pytest.mark.parametrize("share", [None, "{tenant}"], ids=["in order", "shared"])
@pytest.mark.parametrize(
    ("bursts", "most_inverted"),
    [((4, 40, 4), 0.05), ((8, 8, 8), 0.05), ((2, 2, 2), 0.15)],
)
def test_a_rate_that_rises_and_falls_tenfold_is_used_in_order(
    processes: int, sleeps: bool, bursts: tuple[int, ...], share: str | None, most_inverted: float
) -> None:
    """
    By each process: what it was told at the old rate says on time, when its line is ten times as fast. With shares a
    job that comes far too late loses its place: it calls for the next one all the same.
    """
    works, less = [Work("a", number * 1000, number) for number in range(3000)], 0.05 if share else 0.0
    fleet = Fleet(processes, works, seed=1, sleeps=sleeps, limit=TokenBucket("partner", "50/s", burst=10, share=share))
    fleet.run(4 * SECOND)
    for rate, burst in zip((20, 200, 20), bursts, strict=True):
        fleet.limit = altered(fleet.limit, f"{rate}/s", burst)
        fleet.run(fleet.now_us + SECOND)
        before = len(fleet.ran)
        fleet.run(fleet.now_us + 3 * SECOND)
        assert len(fleet.ran) - before >= ((0.95 if burst > 2 else 0.9) - less) * rate * 3
    order = [work.number for work in fleet.ran]
    assert sum(one > other for one, other in pairwise(order)) <= (most_inverted + less) * len(order)


@each_kind
@each_fleet
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("strict", [False, True], ids=["weights", "strict"])
def test_a_lowered_rate_is_used_in_each_second_whatever_the_weights(
    processes: int, sleeps: bool, seed: int, strict: bool
) -> None:
    """Jobs come too early by what they were told, and are set aside for that: they keep their turn."""
    weights = {f"t{n}": float(1 + n % 13) for n in range(10)}
    works = [Work(f"t{number % 10}", number * 1000, number) for number in range(1500)]
    limit = TokenBucket("partner", "50/s", burst=3, share=Share("{tenant}", weight=weights, strict=strict))
    fleet = Fleet(processes, works, seed=seed, sleeps=sleeps, limit=limit)
    fleet.run(4 * SECOND)
    fleet.limit = altered(fleet.limit, "20/s", 3)
    fleet.run(16 * SECOND)
    each = Counter(work.ran_us // SECOND for work in fleet.ran)
    used = [each[second] for second in range(6, 16)]
    assert sum(used) >= 0.95 * 20 * len(used)
    assert min(used) >= 0.6 * 20


@each_kind
@each_fleet
@pytest.mark.parametrize(("burst", "least"), [(1, 0.85), (2, 0.95), (10, 0.98)])
def test_the_limit_is_used_soon_after_most_jobs_have_left_the_line(
    processes: int, sleeps: bool, burst: int, least: float
) -> None:
    """
    Nine of ten are revoked, or expire: those that are left were told instants ten times as far apart as they can run.
    A bucket of so few units has none left for the next job when one has passed.
    """
    works = [Work("a", number * 1000, number) for number in range(2500)]
    fleet = Fleet(processes, works, seed=1, sleeps=sleeps, limit=TokenBucket("partner", "50/s", burst=burst))
    fleet.run(4 * SECOND)
    for process in fleet.processes:
        for entry in list(process.room):
            if entry.item.number % 10:
                process.room.remove(entry)
                fleet.leave(entry.item)
    fleet.run(5 * SECOND)
    before = len(fleet.ran)
    fleet.run(8 * SECOND)
    assert len(fleet.ran) - before >= least * 50 * 3


@each_kind
@pytest.mark.parametrize("rate", [10, 50, 100])
def test_half_of_a_tight_limit_is_used_where_half_of_the_jobs_are_dead(rate: int, sleeps: bool) -> None:
    """No unit lies there by which a dead job could be known: those that live come as they were told, and no later."""
    works = [Work("a", number * 1000, number) for number in range(rate * 40)]
    fleet = Fleet(2, works, seed=1, sleeps=sleeps, limit=TokenBucket("partner", f"{rate}/s", burst=1))
    fleet.run(6 * SECOND)
    died = fleet.processes.pop()
    for entry in list(died.room):
        died.room.remove(entry)
    fleet.run(8 * SECOND)
    before, asks = len(fleet.ran), len(fleet.asks)
    fleet.run(14 * SECOND)
    assert len(fleet.ran) - before >= 0.38 * rate * 6
    assert len(fleet.asks) - asks <= 3.5 * (len(fleet.ran) - before)


@each_kind
@each_fleet
def test_jobs_ask_no_more_often_after_a_long_pause(processes: int, sleeps: bool) -> None:
    """Each look of the pause is answered "in ten minutes", again and again: that makes no line sooner as it ends."""
    fleet = Fleet(processes, [Work("a", number * 1000, number) for number in range(1500)], seed=1, sleeps=sleeps)
    fleet.run(4 * SECOND)
    for rate, seconds in (("1/h", 10), ("50/s", 8)):
        fleet.limit = altered(fleet.limit, rate, 10)
        ran, asks = len(fleet.ran), len(fleet.asks)
        fleet.run(fleet.now_us + seconds * SECOND)
    assert len(fleet.ran) - ran >= 0.95 * 50 * 8
    assert len(fleet.asks) - asks <= 1.5 * (len(fleet.ran) - ran)


@pytest.mark.parametrize(("weight", "part"), [(10.0, 10 / 11), (0.1, 1 / 11)])
def test_a_new_weight_counts_once_those_have_run_that_waited(weight: float, part: float) -> None:
    """Of two tenants that always wait: the old parts up to then, and the new ones at once."""
    weights, waiting, begin_us = {"a": 1.0, "b": 1.0}, 100, 1 * SECOND
    backlog = [(number * 500, tenant) for number in range(waiting + 25) for tenant in "ab"]
    coming = [(begin_us + number * SECOND // 50, tenant) for number in range(600) for tenant in "ab"]
    works = works_of([*backlog, *coming])
    share = Share("{tenant}", weight=lambda job: weights[job.args[0]])
    fleet = Fleet(2, works, seed=1, limit=TokenBucket("partner", "50/s", burst=10, share=share))
    fleet.run(begin_us)
    weights["a"] = weight
    ran = sum(work.tenant == "a" for work in fleet.ran)
    follows_us = begin_us + (waiting + 25 - ran) * SECOND // 25
    fleet.run(follows_us + 5 * SECOND)
    before = [work.tenant == "a" for work in fleet.ran if begin_us < work.ran_us <= follows_us]
    after = [work.tenant == "a" for work in fleet.ran if work.ran_us > follows_us + SECOND // 2]
    assert sum(before) / len(before) == pytest.approx(0.5, abs=0.03)
    assert sum(after) / len(after) == pytest.approx(part, abs=0.03)
    assert len(after) >= 0.99 * 50 * 4.5
