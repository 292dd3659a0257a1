"""
Slots of concurrency limits: the amount is never exceeded, and a slot is returned however a job ends, and used again at
once.
"""

from __future__ import annotations

import os
import signal

import pytest
import rq
from rq.job import JobStatus

from support.flood.checks import assert_calm
from support.flood.slot_record import LONG_LEASE
from support.rq import jobs
from support.rq.flood import OURS, OURS_SIMPLE, STOCK
from support.rq.helpers import QUIET, Site
from support.rq.slots import RqSlotting, Slots
from support.servers.processes import redis_server
from support.waiting import wait_until
from throttlekit_rq import configure

pytestmark = QUIET

# SpawnWorker of an older RQ does not support this redis-py.
SPAWNS = [int(part) for part in rq.VERSION.split(".")[:2]] >= [2, 6]
OURS_SPAWN = "throttlekit_rq.ThrottledSpawnWorker"
SPAWN = pytest.param(OURS_SPAWN, marks=pytest.mark.skipif(not SPAWNS, reason="RQ's SpawnWorker does not work here"))
HELD = [jobs.SLOT]


def starts(slotting: RqSlotting, *names: str) -> bool:
    begun = {event.job for event in slotting.events() if event.what == "start"}
    return begun.issuperset(names)


def process_of(slotting: RqSlotting, name: str) -> int:
    """Return the process in which the job runs."""
    return next(int(event.more) for event in slotting.events() if (event.what, event.job) == ("start", name))


# One process after the other


def test_a_slot_is_held_only_while_the_body_runs(rq_site: Site) -> None:
    """
    A slot is held while the body runs: of a plain function, an async one, one that fails, and one whose limit is its
    queue's.
    """
    for function in (jobs.plain, jobs.plain_async, jobs.fails):
        rq_site.queue.enqueue(function, function.__name__, throttle=HELD)
        rq_site.work()
        assert rq_site.limiter.peek(jobs.SLOT).allowed
    assert rq_site.noted == ["plain", "plain_async", "fails"]


def test_a_slot_of_a_queue_is_held_while_the_body_runs(throttled_site: Site) -> None:
    """The function itself has no limit."""
    configure(throttled_site.limiter, queues={"work": jobs.SLOT})
    throttled_site.queue.enqueue(jobs.notes_slots)
    throttled_site.work()
    assert throttled_site.noted == ["['slot']"]
    assert throttled_site.limiter.peek(jobs.SLOT).allowed


def test_a_job_that_never_begins_returns_its_slot(throttled_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """RQ fails between the grant and the body."""
    throttled_site.queue.enqueue(jobs.plain, throttle=HELD)
    monkeypatch.setattr(
        "throttlekit_rq.ThrottledSimpleWorker.prepare_job_execution",
        lambda *args, **options: (_ for _ in ()).throw(RuntimeError("as the test wants it")),
    )
    throttled_site.work()
    assert throttled_site.noted == []
    assert throttled_site.limiter.peek(jobs.SLOT).allowed


# Processes


@pytest.mark.workers
@pytest.mark.parametrize(
    ("kinds", "amount", "count", "seconds", "costs"),
    [
        ((OURS_SIMPLE,) * 6, 4, 200, 0.02, ("",)),
        ((OURS_SIMPLE,) * 6, 4, 200, 0.02, ("", "*2", "*4")),
        ((OURS,) * 4, 2, 40, 0.05, ("",)),
        ((STOCK, "rq.SimpleWorker", OURS_SIMPLE), 2, 40, 0.05, ("",)),
        ((STOCK, "rq.SimpleWorker", OURS_SIMPLE), 2, 40, 0.05, ("", "*2")),
        (("rq.Worker", "rq.SimpleWorker", "rq.SimpleWorker"), 1, 20, 0.05, ("",)),
    ],
    ids=["ours-simple", "ours-simple-costs", "ours", "stock-and-ours", "stock-and-ours-costs", "no-scheduler"],
)
def test_never_more_at_once_than_there_are_slots(
    own_redis_base: str, kinds: tuple[str, ...], amount: int, count: int, seconds: float, costs: tuple[str, ...]
) -> None:
    """The jobs' own records show no more at once than there are slots. Each job runs once, and no message is left."""
    jobs = [f"{n}{costs[n % len(costs)]}" for n in range(count)]
    with RqSlotting(Slots(amount=amount, kinds=kinds), own_redis_base) as slotting:
        for job in jobs:
            slotting.work(job, seconds)
        slotting.start()
        slotting.until_ended(count)
        held = slotting.stop()
    assert held.most_at_once() <= amount
    assert held.starts == held.ends == dict.fromkeys(jobs, 1)
    assert {event.more for event in held.events if event.what == "end"} == {"held"}
    assert held.left == 0
    assert_calm(held.log)


@pytest.mark.workers
def test_bodies_that_outlast_their_lease_never_exceed_the_amount(own_redis_base: str) -> None:
    """Plain and async bodies run for twice the lease in any process, and the lease is renewed."""
    slots = Slots(amount=4, lease=4, kinds=(OURS, OURS_SIMPLE, OURS_SPAWN if SPAWNS else OURS, "rq.Worker"))
    with RqSlotting(slots, own_redis_base) as slotting:
        slotting.start()
        for n in range(4):
            slotting.work(n, 9.0, function="work_async" if n % 2 else "work")
        wait_until(lambda: starts(slotting, *map(str, range(4))), description="each kind of worker has a job")
        slotting.start(OURS_SIMPLE)
        slotting.work("next", 0)
        slotting.until_ended(5)
        held = slotting.stop()
    assert held.most_at_once() == 4
    assert {event.more for event in held.events if event.what == "end"} == {"held"}


@pytest.mark.workers
@pytest.mark.parametrize("kind", [OURS, SPAWN])
def test_the_worker_returns_the_slot_of_a_killed_work_horse(own_redis_base: str, kind: str) -> None:
    """The slot is returned at once, long before the lease is over."""
    with RqSlotting(Slots(amount=1, lease=LONG_LEASE, kinds=(kind, OURS_SIMPLE)), own_redis_base) as slotting:
        slotting.start(kind)
        killed = slotting.work("killed", 600)
        wait_until(lambda: starts(slotting, "killed"), description="the job runs")
        slotting.start(OURS_SIMPLE)
        slotting.work("next", 0)
        os.kill(process_of(slotting, "killed"), signal.SIGKILL)
        slotting.until_ended(1)
        wait_until(lambda: killed.get_status(refresh=True) == JobStatus.FAILED, description="RQ has failed the job")


@pytest.mark.workers
@pytest.mark.parametrize("kind", [OURS, OURS_SIMPLE, SPAWN, "rq.Worker", "rq.SimpleWorker"])
def test_a_time_limit_returns_the_slot(own_redis_base: str, kind: str) -> None:
    """The slot is returned at once, in every kind of worker."""
    with RqSlotting(Slots(amount=1, lease=LONG_LEASE, kinds=(kind,)), own_redis_base) as slotting:
        slotting.start()
        killed = slotting.work("killed", 600, job_timeout=2)
        wait_until(lambda: killed.get_status(refresh=True) == JobStatus.FAILED, description="the job has ended")
        slotting.work("next", 0)
        slotting.until_ended(1)


@pytest.mark.workers
def test_a_work_horse_whose_worker_is_killed_keeps_its_slot_until_its_end(own_redis_base: str) -> None:
    """The work-horse continues, and renews its lease itself."""
    with RqSlotting(Slots(amount=1, lease=4), own_redis_base) as slotting:
        fleet = slotting.start(OURS)
        slotting.work("orphan", 9.0)
        wait_until(lambda: starts(slotting, "orphan"), description="the job runs")
        os.kill(fleet.commands[0].pid, signal.SIGKILL)
        slotting.start(OURS_SIMPLE)
        slotting.work("next", 0)
        slotting.until_ended(2)
        order = [(event.what, event.job) for event in slotting.events()]
    assert order == [("start", "orphan"), ("end", "orphan"), ("start", "next"), ("end", "next")]


@pytest.mark.workers
def test_an_outage_longer_than_the_lease_loses_slots_and_no_job(own_redis_base: str) -> None:
    """
    A running body can detect that its slot may be lost. When the store is available again, all other jobs run, each
    once.
    """
    with redis_server() as store, RqSlotting(Slots(amount=2, lease=2), own_redis_base, store) as slotting:
        slotting.start(*[OURS_SIMPLE] * 3)
        for n in range(2):
            slotting.work(f"long-{n}", 6.0)
        wait_until(lambda: starts(slotting, "long-0", "long-1"), description="two jobs run")
        for n in range(10):
            slotting.work(n, 0.05)
        pid = int(slotting.store.info("server")["process_id"])
        os.kill(pid, signal.SIGSTOP)
        try:
            wait_until(lambda: slotting.record.scard("ended") == 2, description="the long jobs have ended")
            assert len(slotting.events()) == 4, "no job starts while the store is unavailable"
        finally:
            os.kill(pid, signal.SIGCONT)
        slotting.until_ended(12)
        held = slotting.stop()
    assert held.starts == {**{f"long-{n}": 1 for n in range(2)}, **{str(n): 1 for n in range(10)}}
    ends = {event.job: event.more for event in held.events if event.what == "end"}
    assert ends["long-0"] == ends["long-1"] == "lost"
    assert held.most_at_once() == 2
    assert held.left == 0
