"""
A fleet of workers on virtual time, around the shipped decision, waitlist, memory store and room.

    python tests/simulation/fleet.py [NAME ...] [--seeds 1,2,3]

Each scenario has a seed: the same seed gives the same history. Stores answer after 1 ms, bells take 2 ms.
"""

from __future__ import annotations

import argparse
import heapq
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from throttlekit import Concurrency, Share, TokenBucket
from throttlekit._core.answer import Asker, Caller, Reason
from throttlekit._core.claim import CLASS, StoreClaim
from throttlekit._core.late import late_owner
from throttlekit._core.storage_keys import bucket_name, holder_name, workflow_name
from throttlekit._core.waitlist import Wake
from throttlekit._engine.room import Room
from throttlekit.stores.base import Lease
from throttlekit.stores.grouped import GroupedStore
from throttlekit.stores.memory import MemoryStore
from throttlekit.stores.parts import Part, ask_in_parts

MS, SECOND = 1_000, 1_000_000
TRIP, BELL = 1 * MS, 2 * MS
EPOCH = 10**15


@dataclass(eq=False)
class Job:
    id: str
    limits: Sequence[tuple[Any, str, int]]
    """Each limit, the key, and the cost."""
    tenant: str = ""
    step: int = 0
    body: int = 2 * MS
    born: int = 0
    asks: int = 0
    deliveries: int = 0
    workflow: str = ""
    expires: int | None = None
    """For how long it wants to wait."""
    late: float = 0.0
    """It comes back by a delay, up to so many seconds late; 0: its process holds it."""
    lost: bool = False
    """It does not come back."""
    ran: list[int] = field(default_factory=list)
    attempt: int = 0
    claims: list[StoreClaim] = field(default_factory=list)
    waits_on: str = ""
    first: int = 0
    """Its place in the order of the first questions."""


class Process:
    def __init__(self, sim: Sim, number: int, threads: int) -> None:
        self.sim, self.threads, self.free = sim, threads, threads
        self.number, self.generation = number, 0
        self.begin()

    def begin(self) -> None:
        self.name = f"p{self.number}.{self.generation}"
        self.room: Room[Job] = Room()
        self.fresh: deque[Job] = deque()
        self.hands: dict[str, Job] = {}
        self.free, self.dead, self.hung = self.threads, False, 0
        self.planned, self.full = 0, {}
        self.end_listening = self.sim.store.listen(self.name, self.heard, lambda: None)

    def gone(self, generation: int) -> bool:
        return self.dead or generation != self.generation

    def later(self, in_us: int, what: Callable[..., None], *arguments: Any) -> None:
        """Do it unless the process is dead; once it hangs no longer, if it does."""
        generation = self.generation

        def act() -> None:
            if self.gone(generation):
                return
            if self.sim.now < self.hung:
                self.sim.at(self.hung, act)
            else:
                what(*arguments)

        self.sim.at(self.sim.now + in_us, act)

    # What the store tells

    def heard(self, bucket: str, wakes: Sequence[Wake]) -> None:
        self.sim.count["bell"] += 1
        if self.sim.random.random() < self.sim.bells_lost:
            return
        self.later(BELL, self.apply_wakes, bucket, [wake._replace(in_us=wake.in_us - BELL) for wake in wakes])

    def apply_wakes(self, bucket: str, wakes: Sequence[Wake]) -> None:
        unknown = self.room.woken(wakes, self.sim.now)
        if unknown:
            self.sim.count["leave"] += 1
            self.sim.at(self.sim.now + self.sim.leg(), self.sim.forget, bucket, unknown, self.name)
        self.pump()

    # Jobs

    def pump(self) -> None:
        if self.dead or self.sim.now < self.hung:
            return
        while self.free:
            ready = self.room.take_ready(self.sim.now)
            if ready is not None:
                self.question(ready[1])
            elif self.fresh:
                self.question(self.fresh.popleft())
            else:
                break
        next_us = self.room.next_us()
        if next_us is not None and not self.sim.now < self.planned <= max(next_us, self.sim.now + 1):
            self.planned = max(next_us, self.sim.now + 1)
            if self.free or next_us > self.sim.now:
                self.later(self.planned - self.sim.now, self.tick)
        self.sim.hand_out()

    def tick(self) -> None:
        for each in self.room.due(self.sim.now):
            self.look(each.claim, each.ids)
        self.pump()

    def look(self, claim: StoreClaim, ids: Sequence[str] = ()) -> None:
        self.sim.count["look"] += 1
        free = self.free

        def ask() -> None:
            found = self.sim.store.look(claim, self.name, free, ids)
            self.later(self.sim.leg(), self.looked, claim, found)

        self.later(self.sim.leg(), ask)

    def looked(self, claim: StoreClaim, found: Any) -> None:
        unknown = self.room.looked(claim, found, self.sim.now)
        if unknown:
            self.sim.at(self.sim.now + self.sim.leg(), self.sim.forget, claim.bucket, unknown, self.name)
        self.pump()

    def question(self, job: Job) -> None:
        self.free -= 1
        self.hands[job.id] = job
        self.room.asks(job.id)
        job.asks += 1
        job.attempt += 1
        self.sim.count["ask"] += 1
        wait = None if job.expires is None else max(0, job.born + job.expires - self.sim.now)
        owner = late_owner(job.late) if job.late else self.name
        asker = Asker(Caller.JOB, job.id, owner, self.free, wait, denials=int(job.asks > 1))
        generation = self.generation
        attempt = str(job.attempt)
        if not self.free:
            for claim in job.claims:
                self.full[claim.bucket] = claim

        def ask() -> None:
            self.sim.ask(job, asker, attempt, asked, partial(self.gone, generation))

        def asked(answer: Any) -> None:
            if self.sim.random.random() < self.sim.answers_lost:
                self.later(250 * MS, self.lost, job)
            else:
                self.later(self.sim.leg(), self.answered, job, answer)

        self.later(self.sim.leg(), ask)

    def lost(self, job: Job) -> None:
        self.free += 1
        job.attempt -= 1
        for claim in job.claims:  # the answer may have had wakes of other jobs
            self.room.look_in(self.sim.unit[claim.bucket], 0, self.sim.now)
        self.question(job)
        self.tick()

    def answered(self, job: Job, answer: Any) -> None:
        sim, now = self.sim, self.sim.now
        if answer.reason is Reason.ALLOWED:
            wait = answer.retry_us - answer.now_us
            job.ran.append(now + wait)
            self.later(wait + job.body, self.ended, job)
        else:
            self.free += 1
            del self.hands[job.id]
            assert answer.kept is not None, answer
            if job.late:
                self.room.done(job.id)
                back = max(0, answer.retry_us - answer.now_us) + sim.random.randrange(round(job.late * SECOND))
                if not job.lost:
                    sim.at(now + back, sim.arrive, job)
                self.later(0, self.pump)
                return
            claim = job.claims[answer.kept.claim]
            job.waits_on = claim.bucket
            self.room.hold(job.id, job, sim.unit[claim.bucket], answer.kept.epoch, now)
            if job.expires is not None:
                self.later(max(0, job.born + job.expires - now), self.expire, job)
        for number, wake in answer.wakes:
            self.apply_wakes(job.claims[number].bucket, [wake])
        for number, in_us in answer.looks:
            self.room.look_in(sim.unit[job.claims[number].bucket], in_us, now)
        self.pump()

    def expire(self, job: Job) -> None:
        if self.room.release(job.id) is not None:
            self.sim.expired += 1
            self.sim.count["leave"] += 1
            self.sim.at(self.sim.now + self.sim.leg(), self.sim.forget_all, job, self.name)

    def ended(self, job: Job) -> None:
        self.free += 1
        del self.hands[job.id]
        self.room.done(job.id)
        granted_us = EPOCH + self.sim.offset + job.ran[-1]
        leases = [Lease(claim.bucket, claim.algorithm, granted_us) for claim in job.claims if claim.algorithm.estimates]
        if job.workflow:
            self.sim.left[job.workflow] -= 1
            last = not self.sim.left[job.workflow]
            leases = [replace(each, algorithm=replace(each.algorithm, lease_us=0)) for each in leases if last]  # type: ignore[type-var]
        if leases:
            self.sim.count["release"] += 1
            self.sim.at(self.sim.now + self.sim.leg(), self.sim.release, leases)
        self.pump()
        if self.free and self.full:
            full, self.full = self.full, {}
            for bucket in full:
                if self.room.waits_on(bucket):
                    self.look(self.sim.unit[bucket])
                    break


class Walk:
    """Runs a function in a thread of its own, which waits for virtual time: one thread runs at any moment."""

    def __init__(self, sim: Sim, done: Callable[[Any], None], gone: Callable[[], bool]) -> None:
        self._sim, self._done, self._gone = sim, done, gone
        self._goes, self._waits = threading.Semaphore(0), threading.Semaphore(0)
        self._found: list[Any] = []
        self.legs = 0

    def begin(self, function: Callable[[], Any]) -> None:
        def run() -> None:
            self._goes.acquire()
            try:
                self._found.append(function())
            finally:
                self._waits.release()

        threading.Thread(target=run, daemon=True).start()
        self._resume()

    def go_on(self) -> None:
        """In that thread: wait for the round trip to the next store."""
        self.legs += 1
        if self.legs > 1:
            self._sim.count["leg"] += 1
            self._sim.at(self._sim.now + TRIP, self._resume)
            self._waits.release()
            self._goes.acquire()

    def _resume(self) -> None:
        if self._gone():  # its process was killed
            return
        self._goes.release()
        self._waits.acquire()
        if self._found:
            self._done(self._found[0])


class Leg:
    """A store that is a round trip away from the one that was asked before."""

    def __init__(self, walk: Walk, store: Any) -> None:
        self._walk, self._store = walk, store

    def ask(self, *arguments: Any, **options: Any) -> Any:
        self._walk.go_on()
        return self._store.ask(*arguments, **options)

    def return_units(self, *arguments: Any) -> None:
        self._walk.go_on()
        self._store.return_units(*arguments)


class Sim:
    def __init__(
        self, seed: int, processes: int = 8, threads: int = 8, legs: tuple[int, int] | None = None, **options: float
    ) -> None:
        self.random, self.now = random.Random(seed), 0
        self.events: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self.number = self.asked = self.expired = 0
        self.legs = legs
        self.offset = 0
        self.stores = [self.new_store() for _ in range(2 if options.get("two_stores") else 1)]
        self.store: Any = self.stores[0]
        if len(self.stores) > 1:
            self.store = GroupedStore(self.store, [("own", self.stores[1])])
        self.queue: deque[Job] = deque()
        self.jobs: list[Job] = []
        self.left: dict[str, int] = {}
        self.unit: dict[str, StoreClaim] = {}
        self.granted: dict[str, list[tuple[int, int, Job]]] = {}
        self.count = dict.fromkeys(("ask", "leg", "look", "bell", "leave", "release"), 0)
        self.bells_lost, self.answers_lost = options.get("bells_lost", 0.0), options.get("answers_lost", 0.0)
        self.redeliver = int(options.get("redeliver", 30) * SECOND)
        self.processes = [Process(self, number, threads) for number in range(processes)]

    def leg(self) -> int:
        """How long a request or an answer takes."""
        return self.random.randint(*self.legs) if self.legs else TRIP // 2

    def new_store(self) -> MemoryStore:
        return MemoryStore(clock_us=lambda: self.now + EPOCH + self.offset)

    def at(self, at_us: int, what: Callable[..., None], *arguments: Any) -> None:
        self.number += 1
        heapq.heappush(self.events, (at_us, self.number, what, arguments))

    def run(self, until_us: int) -> None:
        while self.events and self.events[0][0] <= until_us:
            self.now, _, what, arguments = heapq.heappop(self.events)
            what(*arguments)
        self.now = until_us

    def job(
        self, at_us: int, *limits: tuple[Any, str, int], tenant: str = "", step: int = 0, lead: int = 0, **more: Any
    ) -> Job:
        job = Job(f"job{len(self.jobs):06d}", limits, tenant, step, born=at_us, **more)
        for limit, key, cost in limits:
            bucket = bucket_name(limit.name, key, limit.fingerprint)
            holder = ""
            if isinstance(limit, Concurrency):
                holder = workflow_name(job.workflow) if job.workflow else holder_name(job.id, "0", 0)
            job.claims.append(
                StoreClaim(bucket, limit.bind(cost, 0, holder), cost, limit.max_queue, tenant, step, lead)
            )
            if bucket not in self.unit:
                self.unit[bucket] = StoreClaim(bucket, limit.bind(1, 0, ""))
        self.jobs.append(job)
        self.at(at_us, self.arrive, job)
        return job

    def arrive(self, job: Job) -> None:
        self.queue.append(job)
        self.hand_out()

    def hand_out(self) -> None:
        """The broker delivers to processes with threads that have nothing to do."""
        while self.queue:
            able = [p for p in self.processes if not p.dead and self.now >= p.hung and p.free > len(p.fresh)]
            if not able:
                return
            process, job = self.random.choice(able), self.queue.popleft()
            job.deliveries += 1
            process.fresh.append(job)
            process.later(self.random.randint(1, 5) * MS, process.pump)

    def ask(self, job: Job, asker: Asker, attempt: str, done: Callable[[Any], None], gone: Callable[[], bool]) -> None:
        """Put a question to the store, or to one store after the other; then call *done* with the answer."""
        if not job.first:
            self.asked += 1
            job.first = self.asked

        def asked(answer: Any) -> None:
            if answer.reason is Reason.ALLOWED and answer.now_us == self.now + EPOCH + self.offset:  # it is no repeat
                instants = answer.asked_us or (answer.now_us,) * len(job.claims)
                for claim, instant in zip(job.claims, instants, strict=True):
                    begins = instant - EPOCH - self.offset + answer.retry_us - answer.now_us
                    self.granted.setdefault(claim.bucket, []).append((begins, claim.cost, job))
            done(answer)

        if isinstance(self.store, MemoryStore):
            asked(self.store.ask(job.claims, asker, attempt=attempt))
            return
        numbers: dict[Any, list[int]] = {}
        for number, claim in enumerate(job.claims):
            numbers.setdefault(self.store._of(claim.bucket).store, []).append(number)
        walk = Walk(self, asked, gone)
        parts = [Part(Leg(walk, store), those) for store, those in numbers.items()]
        walk.begin(lambda: ask_in_parts(parts, job.claims, asker, attempt=attempt))

    def forget(self, bucket: str, ids: Sequence[str], owner: str) -> None:
        self.store.forget([self.unit[bucket]], ids, owner)

    def forget_all(self, job: Job, owner: str) -> None:
        self.store.forget([self.unit[claim.bucket] for claim in job.claims], [job.id], owner)

    def release(self, leases: Sequence[Lease]) -> None:
        self.store.release(leases)

    def kill(self, process: Process, back_us: int | None) -> None:
        process.dead = True
        process.end_listening()
        waits = [held.item for held in process.room._held.values()]
        for job in {each.id: each for each in (*process.fresh, *process.hands.values(), *waits)}.values():
            if not job.ran:
                self.at(self.now + self.redeliver, self.arrive, job)
        if back_us is not None:
            self.at(self.now + back_us, self.revive, process)

    def revive(self, process: Process) -> None:
        process.generation += 1
        process.begin()
        self.hand_out()


def backlog(sim: Sim, n: int, *limits: tuple[Any, str, int], **more: Any) -> None:
    for number in range(n):
        sim.job(number * 100, *limits, **more)


def report(sim: Sim, limit: Any, key: str, rate: float, begin: int, end: int) -> dict[str, Any]:
    """What a limit's jobs had: its use, asks and operations a job, and the order."""
    bucket = bucket_name(limit.name, key, limit.fingerprint)
    granted = [each for each in sim.granted.get(bucket, []) if begin <= each[0] < end]
    jobs = [job for _, _, job in granted]
    units = sum(cost for _, cost, _ in granted)
    late, worst = 0, 0
    order: dict[str, list[Job]] = {}
    for _, _, job in granted:
        order.setdefault(job.tenant, []).append(job)
    for those in order.values():
        ranks = {job.id: rank for rank, job in enumerate(sorted(those, key=lambda each: each.first))}
        for place, job in enumerate(those):
            off = abs(ranks[job.id] - place)
            late, worst = late + (off > 0), max(worst, off)
    n = max(1, len(jobs))
    ops = sum(sim.count[what] for what in ("ask", "leg", "look", "leave", "release"))
    done = max(1, sum(1 for job in sim.jobs if job.ran))
    return {
        "use": round(units / (rate * (end - begin) / SECOND), 3),
        "asks": round(sum(job.asks for job in jobs) / n, 2),
        "deliveries": round(sum(job.deliveries for job in jobs) / n, 2),
        "operations": round(ops / done, 2),
        "late %": round(100 * late / n, 1),
        "worst": worst,
        "excess": round(excess(sim, bucket, limit, rate), 3),
        "twice": sum(len(job.ran) > 1 for job in sim.jobs),
    }


def excess(sim: Sim, bucket: str, limit: Any, rate: float) -> float:
    """By how many units a window had more than the bound; at most 0 if it holds."""
    if isinstance(limit, Concurrency):
        return 0.0
    lowest, passed, worst = 0.0, 0.0, -1e9
    for at, cost, _ in sorted(sim.granted.get(bucket, []), key=lambda each: each[0]):
        came = at * rate / SECOND
        lowest = min(lowest, passed - came) if passed else passed - came
        passed += cost
        worst = max(worst, passed - came - lowest - limit.capacity)
    return worst


SCENARIOS: dict[str, Callable[[int], dict[str, Any]]] = {}


def scenario(make: Callable[[int], dict[str, Any]]) -> Callable[[int], dict[str, Any]]:
    SCENARIOS[make.__name__] = make
    return make


def rates(name: str, rate: float, text: str, burst: int, seconds: int = 40, **options: Any) -> None:
    def run(seed: int) -> dict[str, Any]:
        sim, limit = Sim(seed, **options), TokenBucket("partner", text, burst=burst)
        backlog(sim, int(rate * seconds * 1.2) + burst, (limit, "", 1))
        sim.run(seconds * SECOND)
        return report(sim, limit, "", rate, 3 * SECOND, seconds * SECOND)

    run.__name__ = name
    scenario(run)


rates("slow1", 1, "1/s", 1, 60)
rates("r10b1", 10, "10/s", 1)
rates("r50b1", 50, "50/s", 1)
rates("r50b10", 50, "50/s", 10)
rates("legs_b1", 50, "50/s", 1, legs=(MS // 2, 20 * MS))
rates("legs_b10", 50, "50/s", 10, legs=(MS // 2, 20 * MS))
rates("fast1000", 1000, "1000/s", 100, 10, processes=16)
rates("lost_bells", 50, "50/s", 10, bells_lost=0.05)
rates("no_bells", 50, "50/s", 10, bells_lost=1.0)
rates("lost_answers", 50, "50/s", 10, answers_lost=0.02)


@scenario
def flood(seed: int) -> dict[str, Any]:
    """A heavy tenant's backlog, and ten light ones whose jobs come one by one."""
    return _flood(Sim(seed))


def _flood(sim: Sim, **more: Any) -> dict[str, Any]:
    limit = TokenBucket("partner", "50/s", burst=10, share=Share("{tenant}"))
    backlog(sim, 2400, (limit, "", 1), tenant="heavy", step=SECOND, **more)
    lights = [
        sim.job(
            sim.random.randrange(2 * SECOND, 38 * SECOND), (limit, "", 1), tenant=f"light{n % 10}", step=SECOND, **more
        )
        for n in range(100)
    ]
    sim.run(40 * SECOND)
    waits = sorted((job.ran[0] - job.born) / SECOND if job.ran else 99.0 for job in lights)
    return {**report(sim, limit, "", 50, 3 * SECOND, 40 * SECOND), "light p99": round(waits[98], 2)}


@scenario
def slots(seed: int) -> dict[str, Any]:
    sim, limit = Sim(seed), Concurrency("slots", 8, lease=30)
    for number in range(3600):
        sim.job(number * 100, (limit, "", 1), body=sim.random.randint(80, 120) * MS)
    sim.run(40 * SECOND)
    return report(sim, limit, "", 80, 3 * SECOND, 40 * SECOND)


@scenario
def workflows(seed: int) -> dict[str, Any]:
    """60 workflows of three jobs, all queued at once, hold two slots."""
    sim, limit = Sim(seed, processes=4, threads=4), Concurrency("flows", 2, lease=3600, held_by="{workflow}")
    for number in range(180):
        sim.left[f"w{number % 60}"] = 3
        sim.job(number * 100, (limit, "", 1), body=200 * MS, workflow=f"w{number % 60}")
    sim.run(20 * SECOND)
    asks = sum(job.asks for job in sim.jobs) / len(sim.jobs)
    last = max((job.ran[0] for job in sim.jobs if job.ran), default=0) / SECOND
    return {
        "use": 1.0, "asks": round(asks, 2), "left": sum(not job.ran for job in sim.jobs), "seconds": round(last, 1),
        "excess": 0.0, "twice": sum(len(job.ran) > 1 for job in sim.jobs),
    }  # fmt: skip


@scenario
def one_slot(seed: int) -> dict[str, Any]:
    sim, limit = Sim(seed), Concurrency("slots", 1, lease=30)
    backlog(sim, 300, (limit, "", 1), body=200 * MS)
    sim.run(40 * SECOND)
    return report(sim, limit, "", 5, 3 * SECOND, 40 * SECOND)


@scenario
def two_limits(seed: int) -> dict[str, Any]:
    """A limit that all share, and a key's own: one key has more jobs than its limit lets pass."""
    return _two_limits(Sim(seed))


@scenario
def two_stores(seed: int) -> dict[str, Any]:
    """The same, with the keys' limits in another store."""
    return _two_limits(Sim(seed, two_stores=True))


def _two_limits(sim: Sim, **more: Any) -> dict[str, Any]:
    shared, own = TokenBucket("shared", "50/s", burst=10), TokenBucket("own", "10/s", burst=5, key="{k}")
    for tick in range(40 * 40):
        sim.job(tick * SECOND // 40, (shared, "", 1), (own, "k0", 1), tenant="k0", **more)
    for key in range(1, 4):
        for tick in range(8 * 40):
            sim.job(tick * SECOND // 8 + key, (shared, "", 1), (own, f"k{key}", 1), tenant=f"k{key}", **more)
    for tick in range(30 * 40):
        sim.job(tick * SECOND // 30 + 7, (shared, "", 1), tenant="none", **more)
    sim.run(40 * SECOND)
    heavy = report(sim, own, "k0", 10, 10 * SECOND, 40 * SECOND)
    return {
        **report(sim, shared, "", 50, 10 * SECOND, 40 * SECOND),
        "heavy key": heavy["use"],
        "excess of key": heavy["excess"],
        "heavy late %": heavy["late %"],
        "heavy worst": heavy["worst"],
        "heavy asks": heavy["asks"],
    }


@scenario
def costs(seed: int) -> dict[str, Any]:
    """Jobs that cost 1 to 10 of a burst of 10."""
    sim, limit = Sim(seed), TokenBucket("partner", "50/s", burst=10)
    for number in range(600):
        sim.job(number * 100, (limit, "", sim.random.randint(1, 10)))
    sim.run(40 * SECOND)
    return report(sim, limit, "", 50, 3 * SECOND, 40 * SECOND)


@scenario
def expiring(seed: int) -> dict[str, Any]:
    """Of jobs that come four times as fast as they may run, each wants to wait for 3 s."""
    sim, limit = Sim(seed), TokenBucket("partner", "50/s", burst=10)
    for number in range(200 * 30):
        sim.job(number * SECOND // 200, (limit, "", 1), expires=3 * SECOND)
    sim.run(30 * SECOND)
    return report(sim, limit, "", 50, 5 * SECOND, 30 * SECOND)


@scenario
def expiring_tenant(seed: int) -> dict[str, Any]:
    """Two equal tenants. The jobs of one come three times as fast as they may run, and wait for at most 3 s."""
    sim, limit = Sim(seed), TokenBucket("partner", "50/s", burst=10, share=Share("{tenant}"))
    for number in range(75 * 40):
        sim.job(number * SECOND // 75, (limit, "", 1), tenant="brief", step=SECOND, expires=3 * SECOND)
        sim.job(number * SECOND // 75, (limit, "", 1), tenant="patient", step=SECOND)
    sim.run(40 * SECOND)
    brief = sum(bool(job.ran) and job.ran[0] >= 10 * SECOND for job in sim.jobs if job.tenant == "brief")
    return {**report(sim, limit, "", 50, 10 * SECOND, 40 * SECOND), "brief use": round(brief / (25 * 30), 3)}


@scenario
def classes(seed: int) -> dict[str, Any]:
    """Strict priorities: jobs of the first class come before a backlog of the second."""
    sim, limit = Sim(seed), TokenBucket("partner", "50/s", burst=10)
    backlog(sim, 2400, (limit, "", 1), tenant="low", step=1)
    firsts = [
        sim.job(sim.random.randrange(2 * SECOND, 38 * SECOND), (limit, "", 1), tenant="high", step=1, lead=CLASS)
        for _ in range(300)
    ]
    sim.run(40 * SECOND)
    waits = sorted((job.ran[0] - job.born) / SECOND if job.ran else 99.0 for job in firsts)
    return {**report(sim, limit, "", 50, 3 * SECOND, 40 * SECOND), "high p99": round(waits[296], 2)}


@scenario
def zipf(seed: int) -> dict[str, Any]:
    """300 tenants, twice as many jobs as may run."""
    sim, limit = Sim(seed), TokenBucket("partner", "50/s", burst=10)
    for number in range(100 * 40):
        tenant = min(299, int(300 ** sim.random.random()) - 1)
        sim.job(number * SECOND // 100, (limit, "", 1), tenant=f"t{tenant}", step=SECOND)
    sim.run(40 * SECOND)
    return report(sim, limit, "", 50, 5 * SECOND, 40 * SECOND)


@scenario
def keys(seed: int) -> dict[str, Any]:
    """400 keys of 1/s each, all with a backlog."""
    sim, limit = Sim(seed, threads=40), TokenBucket("own", "1/s", burst=1, key="{k}")
    for number in range(400 * 30):
        sim.job(number * 50, (limit, f"k{number % 400}", 1))
    sim.run(20 * SECOND)
    each = [report(sim, limit, f"k{key}", 1, 5 * SECOND, 20 * SECOND) for key in range(400)]
    uses = sorted(found["use"] for found in each)
    return {
        "use": round(sum(uses) / 400, 3), "worst key": uses[0], "operations": each[0]["operations"],
        "asks": round(sum(found["asks"] for found in each) / 400, 2),
        "late %": max(found["late %"] for found in each), "excess": max(found["excess"] for found in each),
        "twice": each[0]["twice"],
    }  # fmt: skip


@scenario
def clock_back(seed: int) -> dict[str, Any]:
    """The store's clock steps back by a second, and by a minute forwards."""
    sim, limit = Sim(seed), TokenBucket("partner", "50/s", burst=10)
    backlog(sim, 2400, (limit, "", 1))

    def step(by: int) -> None:
        sim.offset += by

    sim.at(10 * SECOND, step, -SECOND)
    sim.at(20 * SECOND, step, 60 * SECOND)
    sim.run(40 * SECOND)
    return report(sim, limit, "", 50, 3 * SECOND, 40 * SECOND)


@scenario
def clock_back_and_hung(seed: int) -> dict[str, Any]:
    """The store's clock steps back by ten minutes as four of eight processes hang, with wakes of that clock."""
    sim, limit = Sim(seed), TokenBucket("partner", "50/s", burst=1)
    backlog(sim, 2400, (limit, "", 1))

    def step() -> None:
        sim.offset -= 600 * SECOND
        for process in sim.processes[:4]:
            process.hung = sim.now + 60 * SECOND

    sim.at(10 * SECOND, step)
    sim.run(40 * SECOND)
    return {
        **report(sim, limit, "", 50, 3 * SECOND, 40 * SECOND),
        "after": report(sim, limit, "", 50, 11 * SECOND, 15 * SECOND)["use"],
    }


@scenario
def dead_for_good(seed: int) -> dict[str, Any]:
    """Four of eight processes are killed, and their messages come back after 10 s."""
    sim, limit = Sim(seed, redeliver=10), TokenBucket("partner", "50/s", burst=10)
    backlog(sim, 2400, (limit, "", 1))
    for number in range(4):
        sim.at(10 * SECOND, sim.kill, sim.processes[number], None)
    sim.run(45 * SECOND)
    return {
        **report(sim, limit, "", 50, 3 * SECOND, 40 * SECOND),
        "after": report(sim, limit, "", 50, 10 * SECOND, 12 * SECOND)["use"],
    }


@scenario
def rate_and_slots(seed: int) -> dict[str, Any]:
    """20/s, and four slots that bodies of .15 s hold: the rate binds, and the slots nearly."""
    sim, rate, slots = Sim(seed), TokenBucket("rate", "20/s", burst=2), Concurrency("slots", 4, lease=30)
    for number in range(900):
        sim.job(number * 100, (rate, "", 1), (slots, "", 1), body=sim.random.randint(120, 180) * MS)
    sim.run(40 * SECOND)
    return report(sim, rate, "", 20, 5 * SECOND, 40 * SECOND)


@scenario
def fast_and_slow(seed: int) -> dict[str, Any]:
    """A fast limit with a small burst, and one with a burst of 1 for which half of the jobs are granted early."""
    sim = Sim(seed)
    fast, slow = TokenBucket("fast", "1000/s", burst=10), TokenBucket("slow", "200/s", burst=1)
    for number in range(8000):
        limits = [(fast, "", 1), (slow, "", 1)] if number % 4 == 0 else [(fast, "", 1)]
        sim.job(number * 100, *limits)
    sim.run(6 * SECOND)
    found = report(sim, fast, "", 1000, SECOND, 6 * SECOND)
    return {**found, "excess": max(found["excess"], report(sim, slow, "", 200, SECOND, 6 * SECOND)["excess"])}


@scenario
def hung(seed: int) -> dict[str, Any]:
    """At 1/s, four of eight processes hang for a minute."""
    sim, limit = Sim(seed), TokenBucket("partner", "1/s", burst=1)
    backlog(sim, 150, (limit, "", 1))

    def hang() -> None:
        for process in sim.processes[:4]:
            process.hung = sim.now + 60 * SECOND

    sim.at(10 * SECOND, hang)
    sim.run(90 * SECOND)
    return {
        **report(sim, limit, "", 1, 3 * SECOND, 90 * SECOND),
        "next 20 s": report(sim, limit, "", 1, 10 * SECOND, 30 * SECOND)["use"],
    }


@scenario
def rolling(seed: int) -> dict[str, Any]:
    """Fifty processes, of which one is killed each second, and comes back as another."""
    sim, limit = Sim(seed, processes=50, threads=4), TokenBucket("partner", "50/s", burst=10)
    backlog(sim, 3600, (limit, "", 1))
    for number in range(50):
        sim.at((5 + number) * SECOND, sim.kill, sim.processes[number], 2 * SECOND)
    sim.run(60 * SECOND)
    return report(sim, limit, "", 50, 3 * SECOND, 60 * SECOND)


@scenario
def flushed(seed: int) -> dict[str, Any]:
    """The store loses its state while 2 000 wait."""
    sim, limit = Sim(seed), TokenBucket("partner", "50/s", burst=10)
    backlog(sim, 2400, (limit, "", 1))
    sim.at(15 * SECOND, lambda: sim.store._values.clear())
    sim.run(60 * SECOND)
    left = sum(not job.ran for job in sim.jobs)
    return {**report(sim, limit, "", 50, 3 * SECOND, 45 * SECOND), "left": left}


@scenario
def many_processes(seed: int) -> dict[str, Any]:
    """200 processes have jobs that wait for 1/s."""
    sim, limit = Sim(seed, processes=200, threads=1), TokenBucket("partner", "1/s", burst=1)
    backlog(sim, 400, (limit, "", 1))
    sim.run(120 * SECOND)
    return report(sim, limit, "", 1, 3 * SECOND, 120 * SECOND)


@scenario
def paused(seed: int) -> dict[str, Any]:
    sim, limit = Sim(seed), TokenBucket("partner", "50/s", burst=10)
    backlog(sim, 2400, (limit, "", 1))
    bucket = bucket_name(limit.name, "", limit.fingerprint)
    sim.at(10 * SECOND, lambda: sim.store.pause([sim.unit[bucket]], 10 * SECOND))
    sim.run(45 * SECOND)
    return {
        **report(sim, limit, "", 50, 20 * SECOND, 44 * SECOND),
        "in pause": report(sim, limit, "", 50, 10 * SECOND + 5 * MS, 20 * SECOND)["use"],
    }


@scenario
def paused_slow(seed: int) -> dict[str, Any]:
    """At 1/s, a burst gathers in a pause, and many jobs come as it ends."""
    sim, limit = Sim(seed), TokenBucket("partner", "1/s", burst=20)
    backlog(sim, 40, (limit, "", 1))
    sim.at(5 * SECOND, lambda: sim.store.pause([*sim.unit.values()], 30 * SECOND))
    for number in range(100):
        sim.job(34_900 * MS + number * 4 * MS, (limit, "", 1))
    sim.run(100 * SECOND)
    return report(sim, limit, "", 1, 35 * SECOND, 100 * SECOND)


def late(name: str, seconds: float, burst: int, *, held: int = 0, rate: int = 50, new: float = 0.0) -> None:
    """
    Jobs that come back by a delay, up to so many seconds late.

    Args:
        held: Besides each of them, so many jobs are held by their processes.
        new: So much of the rate comes as new jobs all the time, besides a backlog.
    """

    def run(seed: int) -> dict[str, Any]:
        sim, limit = Sim(seed), TokenBucket("partner", f"{rate}/s", burst=burst)
        for number in range(rate * (20 if new else 48)):
            sim.job(number * 100, (limit, "", 1), late=0 if number % (held + 1) else seconds)
        for number in range(int(40 * rate * new)):
            sim.job(int(number * SECOND / (rate * new)), (limit, "", 1), late=seconds)
        sim.run(40 * SECOND)
        found = report(sim, limit, "", rate, 5 * SECOND, 40 * SECOND)
        return {**found, **_by_kind(sim)}

    run.__name__ = name
    scenario(run)


for _late in (0.05, 2.1):
    for _burst in (10, 1):
        late(f"late_{_late}_b{_burst}", _late, _burst)
        late(f"late_{_late}_b{_burst}_mixed", _late, _burst, held=1)
        late(f"late_{_late}_b{_burst}_few", _late, _burst, held=9)
        late(f"late_{_late}_b{_burst}_over", _late, _burst, new=1.2)
        late(f"late_{_late}_b{_burst}_slow", _late, _burst, rate=5)


def late_slots(name: str, seconds: float, amount: int, held: int) -> None:
    """The same for slots, which bodies of .1 s hold."""

    def run(seed: int) -> dict[str, Any]:
        sim, limit = Sim(seed), Concurrency("slots", amount, lease=30)
        for number in range(amount * 10 * 46):
            body = sim.random.randint(80, 120) * MS
            sim.job(number * 100, (limit, "", 1), late=0 if number % (held + 1) else seconds, body=body)
        sim.run(40 * SECOND)
        found = report(sim, limit, "", amount * 10, 5 * SECOND, 40 * SECOND)
        return {**found, **_by_kind(sim)}

    run.__name__ = name
    scenario(run)


for _late in (0.05, 2.1):
    for _kind, _held in (("", 0), ("_mixed", 1), ("_few", 9)):
        late_slots(f"late_slots_{_late}{_kind}", _late, 8, _held)


@scenario
def late_two_limits(seed: int) -> dict[str, Any]:
    """As two_limits, with jobs that come back by a delay."""
    return {**_two_limits(sim := Sim(seed), late=0.05), **_by_kind(sim)}


@scenario
def late_two_stores(seed: int) -> dict[str, Any]:
    return {**_two_limits(sim := Sim(seed, two_stores=True), late=0.05), **_by_kind(sim)}


@scenario
def late_paused(seed: int) -> dict[str, Any]:
    sim, limit = Sim(seed), TokenBucket("partner", "50/s", burst=10)
    backlog(sim, 2400, (limit, "", 1), late=0.05)
    sim.at(10 * SECOND, lambda: sim.store.pause([*sim.unit.values()], 10 * SECOND))
    sim.run(45 * SECOND)
    return {
        **report(sim, limit, "", 50, 20 * SECOND, 44 * SECOND),
        "in pause": report(sim, limit, "", 50, 10 * SECOND + 5 * MS, 20 * SECOND)["use"],
        **_by_kind(sim),
    }


def late_lost(name: str, burst: int) -> None:
    """Three of four jobs that were denied never come back."""

    def run(seed: int) -> dict[str, Any]:
        sim, limit = Sim(seed), TokenBucket("partner", "50/s", burst=burst)
        for number in range(2000):
            sim.job(number * 100, (limit, "", 1), late=0.05, lost=number % 4 > 0)
        sim.run(60 * SECOND)
        ran = [job.ran[0] for job in sim.jobs if job.ran]
        return {
            **report(sim, limit, "", 50, 0, 40 * SECOND),
            "left": 500 - sum(not job.lost for job in sim.jobs if job.ran),
            "seconds": max(ran) / SECOND,
            **_by_kind(sim),
        }

    run.__name__ = name
    scenario(run)


late_lost("late_lost", 10)
late_lost("late_lost_b1", 1)


@scenario
def late_flood(seed: int) -> dict[str, Any]:
    """A heavy tenant's backlog, and ten light ones whose jobs come one by one: all come back by a delay."""
    return {**_flood(sim := Sim(seed), late=0.05), **_by_kind(sim)}


def _by_kind(sim: Sim) -> dict[str, Any]:
    found: dict[str, Any] = {}
    ran = [job for job in sim.jobs if job.ran]
    for late, name in ((True, "late"), (False, "held")):
        asks = [job.asks for job in ran if bool(job.late) is late]
        if asks:
            found |= {f"{name} asks": round(sum(asks) / len(asks), 2), f"most {name} asks": max(asks)}
    return {**found, "late share": round(sum(bool(job.late) for job in ran) / max(1, len(ran)), 2)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", default="1,2,3")
    options = parser.parse_args()
    for name in options.names or SCENARIOS:
        for seed in map(int, options.seeds.split(",")):
            print(f"{name} seed {seed}:", " ".join(f"{k} {v} ·" for k, v in SCENARIOS[name](seed).items()), flush=True)


if __name__ == "__main__":
    main()
