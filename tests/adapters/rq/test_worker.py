"""
Workers that decide before a job runs: what they override works as in RQ, and a fault neither kills them nor strands a
job.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from rq import Callback, Retry, SimpleWorker, SpawnWorker, Worker
from rq.job import JobStatus

from support.rq import jobs
from support.rq.helpers import IN_PROCESS, QUIET, OwnSpawnWorker, Site
from throttlekit import ConfigurationError, Limiter, TokenBucket
from throttlekit.plugins import LimitsFor
from throttlekit_rq import (
    ThrottledQueue,
    ThrottledSimpleWorker,
    ThrottledWorker,
    WaitedTooLong,
    _worker,
    configure,
    throttled_worker,
)

pytestmark = QUIET

HELD = [jobs.HOURLY]
UNREADABLE = TokenBucket("by-account", "1/hour", key="{account}")


def make_unreadable(job: Any) -> None:
    """Change the limits of *job* to a text that no release has written."""
    job.instance._throttlekit = ('{"v": 99}', None)
    job.data = job.serializer.dumps((job.func_name, job.instance, job.args, job.kwargs))
    job.save()


# As in RQ


def test_queues_have_priorities(simple_site: Site) -> None:
    """
    All jobs of the first queue run before those of the second. A job without limits is not delayed by waiting jobs.
    """
    simple_site.shut(jobs.HOURLY)
    low, high = (ThrottledQueue(name, connection=simple_site.connection) for name in ("low", "high"))
    low.enqueue(jobs.plain, "low")
    for n in range(3):
        high.enqueue(jobs.plain, throttle=HELD)
        high.enqueue(jobs.plain, f"high {n}")
    simple_site.work("high", "low")
    assert simple_site.noted == ["high 0", "high 1", "high 2", "low"]
    assert high.scheduled_job_registry.count == 3
    assert simple_site.connection.llen("rq:queue:high:intermediate") == 0


def test_jobs_run_in_order_and_at_front_is_respected(throttled_site: Site) -> None:
    """The order is first in, first out. A job with at_front runs first."""
    for name in ("first", "second"):
        throttled_site.queue.enqueue(jobs.plain, name, throttle=[jobs.LIVELY])
    throttled_site.queue.enqueue(jobs.plain, "front", at_front=True)
    throttled_site.work()
    assert throttled_site.noted == ["front", "first", "second"]


def test_a_dequeue_strategy_works_as_in_rq(simple_site: Site) -> None:
    """The strategy is round robin."""
    one, two = (ThrottledQueue(name, connection=simple_site.connection) for name in ("one", "two"))
    for n in range(2):
        one.enqueue(jobs.plain, f"one {n}", throttle=[jobs.LIVELY])
        two.enqueue(jobs.plain, f"two {n}")
    simple_site.work("one", "two", dequeue_strategy="round_robin")
    assert simple_site.noted == ["one 0", "two 0", "one 1", "two 1"]


def test_max_jobs_counts_runs(throttled_site: Site) -> None:
    """A denial is not a completed job: a worker with max_jobs=2 denies three jobs, and runs two."""
    throttled_site.shut(jobs.HOURLY)
    for _ in range(3):
        throttled_site.queue.enqueue(jobs.plain, throttle=HELD)
    for n in range(3):
        throttled_site.queue.enqueue(jobs.plain, n)
    throttled_site.work(max_jobs=2)
    assert throttled_site.noted == ["0", "1"]


def test_an_idle_worker_ends_after_its_idle_time(throttled_site: Site) -> None:
    """With max_idle_time, the worker ends by itself, even if a job waits for its limit."""
    throttled_site.shut(jobs.HOURLY)
    throttled_site.queue.enqueue(jobs.plain, throttle=HELD)
    throttled_site.run(ThrottledSimpleWorker(["work"], connection=throttled_site.connection), max_idle_time=1)
    # A worker that is about to end may just have put the job into the queue, for a new decision.
    assert throttled_site.queue.scheduled_job_registry.count + throttled_site.queue.count == 1


def test_a_suspended_worker_runs_nothing(throttled_site: Site) -> None:
    """A worker that RQ has suspended takes no job."""
    throttled_site.connection.set("rq:suspended", 1)
    throttled_site.queue.enqueue(jobs.plain, throttle=[jobs.LIVELY])
    throttled_site.work()
    assert throttled_site.noted == []
    assert throttled_site.queue.count == 1


def test_maintenance_still_runs(throttled_site: Site) -> None:
    """A job that a dead worker left in the intermediate list is found and failed, as in RQ."""
    job = throttled_site.queue.enqueue(jobs.plain, throttle=HELD)
    throttled_site.connection.lmove("rq:queue:work", "rq:queue:work:intermediate")
    throttled_site.connection.set(throttled_site.queue.intermediate_queue.get_first_seen_key(job.id), 1)
    throttled_site.work()
    assert throttled_site.fetch(job).get_status() == JobStatus.FAILED


def test_a_throttled_worker_starts_no_scheduler(throttled_site: Site) -> None:
    """A pool passes with_scheduler=True. A worker of throttlekit promotes due jobs itself, and holds no lock."""
    worker = throttled_site.work(with_scheduler=True)
    assert worker.scheduler is None
    assert not throttled_site.connection.exists("rq:scheduler-lock:work")


# Scheduled jobs


def test_jobs_that_rq_schedules_are_enqueued_as_by_its_scheduler(throttled_site: Site) -> None:
    """
    enqueue_in and retries with an interval put jobs at the end of the queue, or at its front on request, with their
    ttl.
    """
    past = datetime.now(timezone.utc) - timedelta(seconds=5)
    throttled_site.queue.enqueue_at(past, jobs.plain, "due")
    front = throttled_site.queue.create_job(jobs.plain, ("front",), ttl=50)
    front.enqueue_at_front = True
    throttled_site.queue.schedule_job(front, past)
    throttled_site.queue.enqueue_at(datetime.now(timezone.utc) + timedelta(hours=1), jobs.plain, "not yet")
    throttled_site.queue.enqueue(jobs.plain, "backlog")
    throttled_site.work()
    assert throttled_site.noted == ["front", "backlog", "due"]
    assert throttled_site.queue.scheduled_job_registry.count == 1


def test_a_queue_with_rqs_scheduler_is_left_to_that_scheduler(throttled_site: Site) -> None:
    """If one of RQ's schedulers holds the lock, the worker enqueues nothing: both would enqueue the same job."""
    throttled_site.tick()
    throttled_site.queue.enqueue_at(datetime.now(timezone.utc) - timedelta(seconds=5), jobs.plain, "due")
    throttled_site.work()
    assert throttled_site.noted == []
    throttled_site.tick()
    throttled_site.work()
    assert throttled_site.noted == ["due"]


def test_stock_workers_leave_due_jobs_to_throttled_workers(stock_site: Site) -> None:
    """Stock workers detect a worker of throttlekit. They schedule denied jobs as if a scheduler ran."""
    stock_site.shut(jobs.HOURLY)
    stock_site.run(ThrottledSimpleWorker(["work"], connection=stock_site.connection))
    job = stock_site.queue.enqueue(jobs.plain, throttle=HELD)
    stock_site.run(SimpleWorker(["work"], connection=stock_site.connection))
    assert stock_site.fetch(job).get_status() == JobStatus.SCHEDULED
    stock_site.open(jobs.HOURLY)
    stock_site.run(ThrottledSimpleWorker(["work"], connection=stock_site.connection))
    assert stock_site.noted == ["ran"]


def test_without_a_promoter_a_job_is_put_at_the_end_of_its_queue(
    stock_site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """
    Without any scheduler, other jobs run first, the denied job is decided again, and one warning names what to start.
    """
    stock_site.shut(jobs.HOURLY)
    job = stock_site.queue.enqueue(jobs.plain, "held", throttle=HELD)
    for n in range(3):
        stock_site.queue.enqueue(jobs.plain, n)
    with caplog.at_level(logging.WARNING, logger="throttlekit.rq"):
        stock_site.run(SimpleWorker(["work"], connection=stock_site.connection), max_jobs=5)
    assert stock_site.noted == ["0", "1", "2"]
    assert stock_site.queue.job_ids == [job.id]
    assert stock_site.fetch(job).get_status() == JobStatus.QUEUED
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "throttlekit.rq"]
    assert "--with-scheduler" in warning
    stock_site.limiter.reset(jobs.HOURLY)
    stock_site.run(SimpleWorker(["work"], connection=stock_site.connection))
    assert stock_site.noted[-1] == "held"


def test_without_a_promoter_a_job_waits_in_its_worker_for_a_short_time(stock_site: Site) -> None:
    """
    Without any scheduler, and with room in a moment, the job waits in its worker, before the next one in the queue.
    """
    stock_site.shut(jobs.LIVELY)
    for n in range(8):
        stock_site.queue.enqueue(jobs.plain, n, throttle=[jobs.LIVELY])
    stock_site.run(SimpleWorker(["work"], connection=stock_site.connection))
    assert stock_site.noted == [str(n) for n in range(8)]


# Whole queues


def test_a_limit_on_a_whole_queue_applies_to_all_of_its_jobs(throttled_site: Site) -> None:
    """
    configure(queues=…) applies to jobs with and without their own limits, from any producer, but to no other queue.
    """
    configure(throttled_site.limiter, queues={"work": jobs.HOURLY})
    other = ThrottledQueue("other", connection=throttled_site.connection)
    throttled_site.queue.enqueue(jobs.plain, "first")
    held = [throttled_site.queue.enqueue(jobs.plain), throttled_site.queue.enqueue(jobs.plain, throttle=[jobs.LIVELY])]
    other.enqueue(jobs.plain, "other")
    throttled_site.work("work", "other")
    assert throttled_site.noted == ["first", "other"]
    assert {job.get_status() for job in held} == {JobStatus.SCHEDULED}
    assert throttled_site.limiter.peek(jobs.LIVELY).remaining == jobs.LIVELY.burst


def test_a_whole_queues_key_that_a_job_lacks_fails_the_job(throttled_site: Site) -> None:
    """The job never runs unthrottled. It fails like a function that fails, with its callback and retries."""
    site = throttled_site
    configure(site.limiter, queues={"work": UNREADABLE})
    job = site.queue.enqueue(jobs.plain, on_failure=Callback(jobs.failed), retry=Retry(max=1), job_id="keyless")
    site.work()
    assert site.noted == ["failure of keyless: ConfigurationError"] * 2
    result = site.fetch(job).latest_result()
    assert "account" in str(result and result.exc_string)
    assert site.deferrals_left() == []


# Jobs that have waited too long


def test_a_job_past_its_max_wait_fails(rq_site: Site) -> None:
    """With on_waited_too_long="fail", its callback and its result have WaitedTooLong, even with a Retry."""
    configure(rq_site.limiter, max_wait=60)
    rq_site.shut(jobs.HOURLY)
    options: dict[str, Any] = {"on_failure": Callback(jobs.failed), "retry": Retry(max=3), "job_id": "late"}
    job = rq_site.queue.enqueue(jobs.plain, throttle=HELD, throttle_max_wait=0, **options)
    rq_site.work()
    assert rq_site.noted == ["failure of late: WaitedTooLong"]
    assert rq_site.fetch(job).get_status() == JobStatus.FAILED
    result = rq_site.fetch(job).latest_result()
    assert "job late: limit 'hourly' denied this job" in str(result and result.exc_string)
    assert WaitedTooLong.__name__ in str(result and result.exc_string)
    assert rq_site.deferrals_left() == []


def test_a_job_past_its_max_deferrals_is_dropped(rq_site: Site) -> None:
    """
    With on_waited_too_long="drop", the job is cancelled without a run, and is in the registry of cancelled jobs. It is
    no failure.
    """
    configure(rq_site.limiter, max_deferrals=0, on_waited_too_long="drop")
    rq_site.shut(jobs.HOURLY)
    job = rq_site.queue.enqueue(jobs.plain, throttle=HELD)
    worker = rq_site.work()
    worker.refresh()
    assert (rq_site.noted, worker.failed_job_count) == ([], 0)
    assert rq_site.fetch(job).get_status() == JobStatus.CANCELED
    assert rq_site.queue.canceled_job_registry.get_job_ids() == [job.id]
    assert rq_site.queue.job_ids == rq_site.queue.scheduled_job_registry.get_job_ids() == []
    assert rq_site.deferrals_left() == []


def test_a_spawning_worker_fails_refused_jobs(spawn_site: Site) -> None:
    """
    A spawned process would fetch the job again and run it. A job that is refused before that is failed in another way.
    """
    spawn_site.shut(jobs.HOURLY)
    job = spawn_site.queue.enqueue(jobs.plain, throttle=HELD, throttle_max_wait=0)
    spawn_site.work()
    assert spawn_site.noted == []
    assert spawn_site.fetch(job).get_status() == JobStatus.FAILED


def test_a_custom_class_of_workers_can_spawn(spawn_site: Site) -> None:
    """A spawned process finds the original class, whose name RQ 3 sends to it."""
    spawn_site.queue.enqueue(jobs.plain, throttle=HELD)
    spawn_site.work(worker=throttled_worker(OwnSpawnWorker)(["work"], connection=spawn_site.connection))
    assert spawn_site.noted == ["ran"]


# Faults


@pytest.mark.parametrize("function", ["support.rq.jobs.no_such_function", "no_such_module.function"])
def test_a_function_that_cannot_be_imported_fails_as_in_rq(rq_site: Site, function: str) -> None:
    """The worker continues, the job has failed, with or without limits, and the next one runs."""
    lost = [rq_site.queue.enqueue(function), rq_site.queue.enqueue(function, throttle=[jobs.LIVELY])]
    rq_site.queue.enqueue(jobs.plain, "next")
    rq_site.work()
    assert rq_site.noted == ["next"]
    assert {job.get_status() for job in lost} == {JobStatus.FAILED}
    assert rq_site.deferrals_left() == []


def test_unreadable_limits_fail_the_job_with_the_reason(rq_site: Site) -> None:
    """
    Limits that were written by a newer release or forged neither run the job unthrottled nor are decided repeatedly.
    """
    newer = rq_site.queue.enqueue(jobs.plain, throttle=[jobs.LIVELY])
    make_unreadable(newer)
    rq_site.queue.enqueue(jobs.plain, "next")
    rq_site.work()
    assert rq_site.noted == ["next"]
    result = rq_site.fetch(newer).latest_result()
    assert "Update the workers first" in str(result and result.exc_string)


def test_a_forged_position_has_no_effect(rq_site: Site) -> None:
    """The data of a wait in the job's hash is not trusted. A job that has not waited is decided like any other."""
    rq_site.shut(jobs.HOURLY)
    job = rq_site.queue.enqueue(jobs.plain, throttle=HELD)
    for forged in (b"x", b"5", b"{}", b'{"v": 1}', b'{"v": 1, "of": 5, "waited": 7, "front": []}'):
        rq_site.connection.hset(job.key, "throttlekit", forged)
        rq_site.work()
        assert rq_site.fetch(job).get_status() == JobStatus.SCHEDULED
        rq_site.make_due()
    assert rq_site.noted == []


def test_an_error_before_the_fork_leaves_the_decision_to_the_work_horse(
    throttled_site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """
    If an error occurs between taking the job and the fork, the worker continues, and the work-horse decides the job. A
    job of a limited queue fails, because a spawned process does not know the limits of queues. So does a job to which
    only plugins may add limits, because its process does not check it.
    """
    throttled_site.shut(jobs.HOURLY)

    def broken(*_: Any) -> None:
        raise RuntimeError("as the test wants it")

    monkeypatch.setattr(_worker, "Check", SimpleNamespace(of=broken))
    throttled_site.tick()
    job = throttled_site.queue.enqueue(jobs.plain, throttle=HELD)
    throttled_site.work()
    assert throttled_site.fetch(job).get_status() == JobStatus.SCHEDULED
    assert "could not be checked before it began" in caplog.text
    with Limiter(throttled_site.url, plugins=[LimitsFor(queue={"work": jobs.HOURLY})]) as plugged:
        for limiter, queues in ((throttled_site.limiter, {"work": HELD}), (plugged, {})):
            configure(limiter, queues=queues)
            job = throttled_site.queue.enqueue(jobs.plain)
            throttled_site.work()
            assert (throttled_site.fetch(job).get_status(), throttled_site.noted) == (JobStatus.FAILED, [])


def test_a_work_horse_that_was_waited_for_holds_no_slots(rq_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is told to end at once kills its work-horse and waits for it. Then it releases the job's slots."""
    worker: Any = ThrottledWorker([rq_site.queue], connection=rq_site.connection)
    monkeypatch.setattr(Worker, "wait_for_horse", lambda _: (17, 9, None))
    worker._horse_pid = 17
    assert worker.wait_for_horse() == (17, 9, None)
    assert worker.horse_pid == 0


def test_jobs_wait_while_the_store_is_unavailable(rq_site: Site) -> None:
    """A store that does not answer defers jobs for about a second: no job fails, and none runs unthrottled."""
    configure(Limiter("redis://127.0.0.1:1/0"))
    job = rq_site.queue.enqueue(jobs.plain, throttle=[jobs.LIVELY], retry=Retry(max=1))
    rq_site.work()
    assert rq_site.noted == []
    assert (rq_site.fetch(job).get_status(), rq_site.fetch(job).retries_left) == (JobStatus.SCHEDULED, 1)
    configure(rq_site.limiter)
    rq_site.make_due()
    rq_site.work()
    assert rq_site.noted == ["ran"]


# The factory


def test_a_custom_class_of_workers_decides_first(throttled_site: Site) -> None:
    """throttled_worker(MyWorker) works like the class, and decides before each job."""
    taken: list[str] = []

    class CustomWorker(SimpleWorker):
        def execute_job(self, job: Any, queue: Any) -> None:
            taken.append(job.description)
            super().execute_job(job, queue)

    throttled_site.shut(jobs.HOURLY)
    throttled_site.queue.enqueue(jobs.plain, throttle=HELD)
    throttled_site.queue.enqueue(jobs.plain, "free")
    kind = throttled_worker(CustomWorker)
    assert (kind.__name__, issubclass(kind, CustomWorker)) == ("ThrottledCustomWorker", True)
    throttled_site.work(worker=kind(["work"], connection=throttled_site.connection))
    assert throttled_site.noted == ["free"]
    assert taken == ["support.rq.jobs.plain('free')"]


@pytest.mark.parametrize("base", [Worker, SimpleWorker, SpawnWorker, *IN_PROCESS.values()])
def test_every_worker_class_of_rq_is_supported(base: Any) -> None:
    """`throttled_worker` accepts each worker class of RQ, and returns a subclass of it."""
    assert issubclass(throttled_worker(base), base)


@pytest.mark.parametrize("wrong", [object, "rq.Worker", ThrottledQueue])
def test_values_other_than_worker_classes_are_refused(wrong: Any) -> None:
    """`throttled_worker` raises for a value that is not a class of RQ workers."""
    with pytest.raises(ConfigurationError, match="class of RQ workers"):
        throttled_worker(wrong)
