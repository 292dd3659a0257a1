"""
Denied jobs that a worker of throttlekit holds: what wakes them, and what happens to them if the worker is busy or gone.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import pytest
from rq.job import JobStatus

from support.faults.processes import Command
from support.rq import jobs
from support.rq.flood import OURS, OURS_SIMPLE
from support.rq.helpers import QUIET, Site
from support.rq.workers import rq_worker
from support.waiting import wait_until
from throttlekit import TokenBucket
from throttlekit_rq import ThrottledSimpleWorker, _worker
from throttlekit_rq._holding import GRACE_S
from throttlekit_rq._promoter import wake
from throttlekit_rq._waiting import others_are_idle

pytestmark = QUIET

HELD = [jobs.HOURLY]
FOUR = TokenBucket("four", "4/hour", burst=4)

Start = Callable[..., Command]


@pytest.fixture
def start(redis_url: str, stack: contextlib.ExitStack) -> Start:
    """Return a function that starts a worker on this test's Redis. All workers are stopped afterwards."""

    def start(kind: str = OURS_SIMPLE) -> Command:
        command = Command(rq_worker(redis_url, "work", kind=kind), {"THROTTLEKIT_URL": redis_url})
        return stack.enter_context(contextlib.closing(command))

    return start


@pytest.mark.workers
def test_a_job_that_waits_for_a_slot_is_woken(stock_site: Site, start: Start) -> None:
    """
    The job is woken in its turn, and no other job: not one that the user has scheduled, that waits for a rate, or that
    is cancelled.
    """
    held = stock_site.limiter.acquire(jobs.SLOT)
    names = ("first", "cancelled", "second", "third")
    waiting = [stock_site.queue.enqueue(jobs.plain, name, throttle=[jobs.SLOT]) for name in names]
    stock_site.shut(jobs.HOURLY)
    rate = stock_site.queue.enqueue(jobs.plain, "rate", throttle=HELD)
    start()
    stock_site.wait_until_denied(5)
    stock_site.disable_schedule()
    stock_site.fetch(waiting[1]).cancel()
    stock_site.limiter.release(held)
    stock_site.wait_until_noted("first", "second", "third")
    assert stock_site.queue.scheduled_job_registry.get_job_ids() == [rate.id]


@pytest.mark.workers
@pytest.mark.parametrize("kind", [OURS_SIMPLE, OURS])
def test_deleted_jobs_delay_no_other_job(stock_site: Site, start: Start, kind: str) -> None:
    """
    A hundred deleted jobs are before an existing one. It runs as soon as there are units, however the hundred were
    removed.
    """
    stock_site.limiter.pause(FOUR, 3600)
    gone = [stock_site.queue.enqueue(jobs.plain, n, throttle=[FOUR]) for n in range(100)]
    stock_site.queue.enqueue(jobs.plain, "alive", throttle=[FOUR])
    start(kind)
    stock_site.wait_until_denied(101)
    stock_site.disable_schedule()
    for job in gone:
        stock_site.fetch(job).delete()
    began = time.monotonic()
    stock_site.limiter.resume(FOUR)
    stock_site.wait_until_noted("alive")
    assert time.monotonic() - began < 10


@pytest.mark.workers
def test_jobs_held_by_a_busy_worker_run_in_another(stock_site: Site, start: Start) -> None:
    """The jobs that a worker holds run in an idle worker while it runs a long job."""
    stock_site.limiter.pause(FOUR, 3600)
    for n in range(3):
        stock_site.queue.enqueue(jobs.plain, n, throttle=[FOUR])
    start()
    stock_site.wait_until_denied(3)
    stock_site.disable_schedule()
    stock_site.queue.enqueue(jobs.until_released)
    wait_until(lambda: stock_site.noted == ["begun"], description="the first worker is busy")
    start(OURS_SIMPLE)
    wait_until(lambda: others_are_idle(stock_site.connection, ["work"]), description="the other one is idle")
    stock_site.limiter.resume(FOUR)
    stock_site.wait_until_noted("begun", "0", "1", "2")
    stock_site.connection.set("told", 1)


@pytest.mark.workers
@pytest.mark.parametrize("kind", [OURS_SIMPLE, OURS])
def test_a_worker_that_stops_passes_its_held_jobs_to_others(stock_site: Site, start: Start, kind: str) -> None:
    """The jobs are put at the front of the queue, in order. They need not wait until their scheduled time."""
    stock_site.limiter.pause(FOUR, 3600)
    waiting = [stock_site.queue.enqueue(jobs.plain, n, throttle=[FOUR]) for n in range(250)]
    first = start(kind)
    stock_site.wait_until_denied(250)
    first.stop()
    stock_site.queue.enqueue(jobs.plain, "new")
    assert stock_site.queue.job_ids[:-1] == [job.id for job in waiting]
    assert {job.get_status() for job in waiting} == {JobStatus.QUEUED}
    start(kind)
    stock_site.wait_until_denied(250)
    stock_site.limiter.resume(FOUR)
    stock_site.wait_until_noted("new", "0", "1", "2", "3")


def test_a_job_that_a_burst_worker_leaves_is_enqueued_at_its_turn(throttled_site: Site) -> None:
    """
    A burst worker that ends schedules its jobs at their turn, because there may be no other worker. While a worker
    holds a job, its schedule is some seconds later.
    """
    site, minute = throttled_site, TokenBucket("minutely", "1/minute", burst=1)
    site.shut(minute)
    job = site.queue.enqueue(jobs.plain, throttle=[minute])
    site.work()
    registry = site.queue.scheduled_job_registry
    turn = registry.get_scheduled_time(job).timestamp() - time.time()
    assert 20 < turn <= 60
    site.run(ThrottledSimpleWorker(["work"], connection=site.connection), max_idle_time=1)
    assert registry.count == 1, "the job is not enqueued before that"


@pytest.mark.workers
def test_jobs_of_a_killed_worker_are_enqueued_by_their_schedule(stock_site: Site, start: Start) -> None:
    """Any running worker takes the jobs of a killed worker some seconds after their turn."""
    site, second = stock_site, TokenBucket("secondly", "1/s", burst=1)
    first = start()
    wait_until(lambda: others_are_idle(site.connection, ["work"]), description="the worker is ready")
    site.limiter.pause(second, 5)
    waiting = [site.queue.enqueue(jobs.plain, n, throttle=[second]) for n in range(3)]
    site.wait_until_denied(3)
    registry = site.queue.scheduled_job_registry
    delays = [registry.get_scheduled_time(job).timestamp() - time.time() for job in waiting]
    assert all(GRACE_S < seconds < GRACE_S + 8 for seconds in delays)
    first.kill()
    start()
    wait_until(lambda: sorted(site.noted) == ["0", "1", "2"], description="all jobs have run")


def test_a_job_that_rqs_scheduler_is_about_to_take_is_left_to_it(throttled_site: Site) -> None:
    """The scheduler does not check whether another process has enqueued the job. A job that is due later is safe."""
    job = throttled_site.enqueue_denied()
    throttled_site.tick()
    key = throttled_site.queue.scheduled_job_registry.key
    throttled_site.connection.zadd(key, {job.id: time.time() + 1})
    assert wake(throttled_site.connection, "work", [job.id]) == 0
    assert throttled_site.queue.count == 0
    throttled_site.connection.zadd(key, {job.id: time.time() + 60})
    assert wake(throttled_site.connection, "work", [job.id]) == 0
    assert throttled_site.queue.job_ids == [job.id]


@pytest.mark.parametrize(("end", "gone"), [("delete", 1), ("cancel", 1), ("run", 1), ("queue", 0), ("nothing", 0)])
def test_a_job_that_will_not_run_is_removed_from_its_waitlist(throttled_site: Site, end: str, gone: int) -> None:
    """The limit removes the job, so that the next one is woken at once."""
    job = throttled_site.enqueue_denied()
    if end in ("delete", "cancel"):
        getattr(throttled_site.fetch(job), end)()
    elif end == "run":
        throttled_site.open_and_work(jobs.HOURLY)
    elif end == "queue":
        wake(throttled_site.connection, "work", [job.id])
    assert wake(throttled_site.connection, "work", [job.id]) == gone


def test_new_jobs_are_processed_while_others_are_due(site_of_many: Site) -> None:
    """If jobs are due all the time because the workers are the bottleneck, every second job is taken from the queue."""
    for n in range(4):
        site_of_many.queue.enqueue(jobs.plain, f"new {n}")
    site_of_many.work()
    assert site_of_many.noted == ["0", "new 0", "1", "new 1", "2", "new 2", "3", "new 3"]


def test_due_jobs_usually_run_first(site_of_many: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Due jobs run before new jobs, until the interval for a new job is over."""
    monkeypatch.setattr(_worker, "_NEW_EVERY", 600.0)
    site_of_many.queue.enqueue(jobs.plain, "new")
    site_of_many.work()
    assert site_of_many.noted == ["0", "1", "2", "3", "new"]


@pytest.fixture
def site_of_many(throttled_site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A site with four denied jobs that are due."""
    throttled_site.shut(FOUR)
    for n in range(4):
        throttled_site.queue.enqueue(jobs.plain, n, throttle=[FOUR])
    throttled_site.work()
    throttled_site.open(FOUR)
    monkeypatch.setattr(_worker, "_NEW_EVERY", 0.0)
    return throttled_site
