"""Workers that ask first: what they override behaves as in RQ, and a fault neither kills them nor strands a job."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from rq import Callback, Retry, SimpleWorker, SpawnWorker, Worker
from rq.job import JobStatus

from support.rq import jobs
from support.rq.helpers import IN_PROCESS, QUIET, OwnSpawnWorker, Site
from throttlekit import ConfigurationError, Limiter, TokenBucket
from throttlekit_rq import (
    ThrottledQueue,
    ThrottledSimpleWorker,
    WaitedTooLong,
    _worker,
    configure,
    throttled_worker,
)

pytestmark = QUIET

HELD = [jobs.HOURLY]
UNREADABLE = TokenBucket("by-account", "1/hour", key="{account}")


def unreadable_text(job: Any) -> None:
    """Make what *job* carries into something that no release has written."""
    job.instance._throttlekit = ('{"v": 99}', None)
    job.data = job.serializer.dumps((job.func_name, job.instance, job.args, job.kwargs))
    job.save()


# As in RQ


def test_queues_have_priorities(simple_site: Site) -> None:
    """All of the first queue before any of the second, and a job without limits is not held up by those that wait."""
    site = simple_site
    site.shut(jobs.HOURLY)
    low, high = (ThrottledQueue(name, connection=site.connection) for name in ("low", "high"))
    low.enqueue(jobs.plain, "low")
    for n in range(3):
        high.enqueue(jobs.plain, throttle=HELD)
        high.enqueue(jobs.plain, f"high {n}")
    site.work("high", "low")
    assert site.noted == ["high 0", "high 1", "high 2", "low"]
    assert high.scheduled_job_registry.count == 3
    assert site.connection.llen("rq:queue:high:intermediate") == 0


def test_order_and_at_front(throttled_site: Site) -> None:
    """First in, first out; what asks for the front gets it."""
    site = throttled_site
    for name in ("first", "second"):
        site.queue.enqueue(jobs.plain, name, throttle=[jobs.LIVELY])
    site.queue.enqueue(jobs.plain, "front", at_front=True)
    site.work()
    assert site.noted == ["front", "first", "second"]


def test_round_robin(simple_site: Site) -> None:
    """A dequeue strategy works on the queues as in RQ."""
    site = simple_site
    one, two = (ThrottledQueue(name, connection=site.connection) for name in ("one", "two"))
    for n in range(2):
        one.enqueue(jobs.plain, f"one {n}", throttle=[jobs.LIVELY])
        two.enqueue(jobs.plain, f"two {n}")
    site.work("one", "two", dequeue_strategy="round_robin")
    assert site.noted == ["one 0", "two 0", "one 1", "two 1"]


def test_max_jobs_counts_what_has_run(throttled_site: Site) -> None:
    """Denials are no jobs done: a worker of two jobs looks at three that are denied, and does two."""
    site = throttled_site
    site.shut(jobs.HOURLY)
    for _ in range(3):
        site.queue.enqueue(jobs.plain, throttle=HELD)
    for n in range(3):
        site.queue.enqueue(jobs.plain, n)
    site.work(max_jobs=2)
    assert site.noted == ["0", "1"]


def test_an_idle_worker_ends_after_its_idle_time(throttled_site: Site) -> None:
    """max_idle_time: the worker ends by itself, though a job waits for its limit."""
    site = throttled_site
    site.shut(jobs.HOURLY)
    site.queue.enqueue(jobs.plain, throttle=HELD)
    site.run(ThrottledSimpleWorker(["work"], connection=site.connection), max_idle_time=1)
    # A worker that is about to end may have put it into the queue just then, to ask.
    assert site.queue.scheduled_job_registry.count + site.queue.count == 1


def test_a_suspended_worker_runs_nothing(throttled_site: Site) -> None:
    site = throttled_site
    site.connection.set("rq:suspended", 1)
    site.queue.enqueue(jobs.plain, throttle=[jobs.LIVELY])
    site.work()
    assert site.noted == []
    assert site.queue.count == 1


def test_maintenance_still_runs(throttled_site: Site) -> None:
    """A job that a dead worker left in the intermediate list is found and failed, as in RQ."""
    site = throttled_site
    job = site.queue.enqueue(jobs.plain, throttle=HELD)
    site.connection.lmove("rq:queue:work", "rq:queue:work:intermediate")
    site.connection.set(site.queue.intermediate_queue.get_first_seen_key(job.id), 1)
    site.work()
    assert site.fetch(job).get_status() == JobStatus.FAILED


def test_a_worker_of_ours_starts_no_scheduler(throttled_site: Site) -> None:
    """A pool passes with_scheduler=True: our worker promotes due jobs itself, and holds no lock."""
    site = throttled_site
    worker = site.work(with_scheduler=True)
    assert worker.scheduler is None
    assert not site.connection.exists("rq:scheduler-lock:work")


# Scheduled jobs


def test_scheduled_jobs_of_rqs_own_come_as_with_its_scheduler(throttled_site: Site) -> None:
    """enqueue_in and retries with an interval: at the end of the queue, at its front if they ask, with their ttl."""
    site = throttled_site
    past = datetime.now(timezone.utc) - timedelta(seconds=5)
    site.queue.enqueue_at(past, jobs.plain, "due")
    front = site.queue.create_job(jobs.plain, ("front",), ttl=50)
    front.enqueue_at_front = True
    site.queue.schedule_job(front, past)
    site.queue.enqueue_at(datetime.now(timezone.utc) + timedelta(hours=1), jobs.plain, "not yet")
    site.queue.enqueue(jobs.plain, "backlog")
    site.work()
    assert site.noted == ["front", "backlog", "due"]
    assert site.queue.scheduled_job_registry.count == 1


def test_due_jobs_come_one_by_one_and_in_order(throttled_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Denied jobs whose instants have come run in the order of their slots, before what came later."""
    monkeypatch.setattr(_worker, "_NEW_EVERY", 600.0)
    site, limit = throttled_site, TokenBucket("slow", "5/minute", burst=5)  # the first worker wakes none of them
    site.shut(limit)
    for n in range(4):
        site.queue.enqueue(jobs.plain, n, throttle=[limit])
    site.work()
    for _ in range(2):
        site.queue.enqueue(jobs.plain, "new")
    site.open(limit)
    site.work()
    assert site.noted == ["0", "1", "2", "3", "new", "new"]


def test_a_queue_of_rqs_scheduler_is_left_to_it(throttled_site: Site) -> None:
    """Where one of RQ's schedulers holds the lock, ours takes nothing out: both would enqueue the same job."""
    site = throttled_site
    site.tick()
    site.queue.enqueue_at(datetime.now(timezone.utc) - timedelta(seconds=5), jobs.plain, "due")
    site.work()
    assert site.noted == []
    site.tick()
    site.work()
    assert site.noted == ["due"]


def test_stock_workers_leave_due_jobs_to_ours(stock_site: Site) -> None:
    """A worker of ours is known to stock ones: they put denied jobs among the scheduled, as if a scheduler ran."""
    site = stock_site
    site.shut(jobs.HOURLY)
    site.run(ThrottledSimpleWorker(["work"], connection=site.connection))
    job = site.queue.enqueue(jobs.plain, throttle=HELD)
    site.run(SimpleWorker(["work"], connection=site.connection))
    assert site.fetch(job).get_status() == JobStatus.SCHEDULED
    site.open(jobs.HOURLY)
    site.run(ThrottledSimpleWorker(["work"], connection=site.connection))
    assert site.noted == ["ran"]


def test_without_a_promoter_a_job_goes_to_the_end_of_its_queue(
    stock_site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """No scheduler anywhere: other jobs go first, the denied job comes again, and one warning names what to start."""
    site = stock_site
    site.shut(jobs.HOURLY)
    job = site.queue.enqueue(jobs.plain, "held", throttle=HELD)
    for n in range(3):
        site.queue.enqueue(jobs.plain, n)
    with caplog.at_level(logging.WARNING, logger="throttlekit.rq"):
        site.run(SimpleWorker(["work"], connection=site.connection), max_jobs=5)
    assert site.noted == ["0", "1", "2"]
    assert site.queue.job_ids == [job.id]
    assert site.fetch(job).get_status() == JobStatus.QUEUED
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "throttlekit.rq"]
    assert "--with-scheduler" in warning
    site.limiter.reset(jobs.HOURLY)
    site.run(SimpleWorker(["work"], connection=site.connection))
    assert site.noted[-1] == "held"


def test_without_a_promoter_short_waits_are_waited_out(stock_site: Site) -> None:
    """No scheduler anywhere, and room in a moment: the job waits in place, before the next one in the queue."""
    site = stock_site
    site.shut(jobs.LIVELY)
    for n in range(8):
        site.queue.enqueue(jobs.plain, n, throttle=[jobs.LIVELY])
    site.run(SimpleWorker(["work"], connection=site.connection))
    assert site.noted == [str(n) for n in range(8)]


# Whole queues


def test_a_limit_on_a_whole_queue_holds_everything_in_it(throttled_site: Site) -> None:
    """configure(queues=…): jobs with limits of their own and without, from any producer, but of no other queue."""
    site = throttled_site
    configure(site.limiter, queues={"work": jobs.HOURLY})
    other = ThrottledQueue("other", connection=site.connection)
    site.queue.enqueue(jobs.plain, "first")
    held = [site.queue.enqueue(jobs.plain), site.queue.enqueue(jobs.plain, throttle=[jobs.LIVELY])]
    other.enqueue(jobs.plain, "other")
    site.work("work", "other")
    assert site.noted == ["first", "other"]
    assert {job.get_status() for job in held} == {JobStatus.SCHEDULED}
    assert site.limiter.peek(jobs.LIVELY).remaining == jobs.LIVELY.burst


def test_a_whole_queues_key_that_a_job_lacks_fails_the_job(throttled_site: Site) -> None:
    """It is never run unthrottled: it fails like a function that fails, callback, retries and all."""
    site = throttled_site
    configure(site.limiter, queues={"work": UNREADABLE})
    job = site.queue.enqueue(jobs.plain, on_failure=Callback(jobs.failed), retry=Retry(max=1), job_id="keyless")
    site.work()
    assert site.noted == ["failure of keyless: ConfigurationError"] * 2
    result = site.fetch(job).latest_result()
    assert "account" in str(result and result.exc_string)
    assert site.deferrals_left() == []


# Jobs that have waited too long


@pytest.mark.parametrize("retry", [None, Retry(max=3)], ids=["no-retry", "retry"])
def test_a_job_past_its_wait_fails_for_good(rq_site: Site, retry: Any) -> None:
    """on_waited_too_long="fail": WaitedTooLong, by its callback and in its result, even with a Retry."""
    site = rq_site
    configure(site.limiter, max_wait=60)
    site.shut(jobs.HOURLY)
    job = site.queue.enqueue(
        jobs.plain, throttle=HELD, on_failure=Callback(jobs.failed), job_id="late", throttle_max_wait=0, retry=retry
    )
    site.work()
    assert site.noted == ["failure of late: WaitedTooLong"]
    assert site.fetch(job).get_status() == JobStatus.FAILED
    result = site.fetch(job).latest_result()
    assert "job late: limit 'hourly' denied this job" in str(result and result.exc_string)
    assert WaitedTooLong.__name__ in str(result and result.exc_string)
    assert site.deferrals_left() == []


def test_a_job_past_its_deferrals_is_dropped(rq_site: Site) -> None:
    """on_waited_too_long="drop": cancelled, unrun, where RQ keeps cancelled jobs."""
    site = rq_site
    configure(site.limiter, max_deferrals=0, on_waited_too_long="drop")
    site.shut(jobs.HOURLY)
    job = site.queue.enqueue(jobs.plain, throttle=HELD)
    site.work()
    assert site.noted == []
    assert site.fetch(job).get_status() == JobStatus.CANCELED
    assert site.queue.canceled_job_registry.get_job_ids() == [job.id]
    assert site.queue.job_ids == site.queue.scheduled_job_registry.get_job_ids() == []
    assert site.deferrals_left() == []


def test_a_spawning_worker_fails_what_is_refused(spawn_site: Site) -> None:
    """A spawned process would fetch the job anew and run it: what is refused before is failed in another way."""
    site = spawn_site
    site.shut(jobs.HOURLY)
    job = site.queue.enqueue(jobs.plain, throttle=HELD, throttle_max_wait=0)
    site.work()
    assert site.noted == []
    assert site.fetch(job).get_status() == JobStatus.FAILED


def test_a_class_of_its_own_spawns_too(spawn_site: Site) -> None:
    """A spawned process finds the class that it was made of: RQ 3 sends it the name."""
    site = spawn_site
    site.queue.enqueue(jobs.plain, throttle=HELD)
    site.work(worker=throttled_worker(OwnSpawnWorker)(["work"], connection=site.connection))
    assert site.noted == ["ran"]


# Faults


@pytest.mark.parametrize("function", ["support.rq.jobs.no_such_function", "no_such_module.function"])
def test_a_function_that_cannot_be_imported_fails_as_in_rq(rq_site: Site, function: str) -> None:
    """The worker lives, the job has failed, with or without limits, and the next one runs."""
    site = rq_site
    lost = [site.queue.enqueue(function), site.queue.enqueue(function, throttle=[jobs.LIVELY])]
    site.queue.enqueue(jobs.plain, "next")
    site.work()
    assert site.noted == ["next"]
    assert {job.get_status() for job in lost} == {JobStatus.FAILED}
    assert site.deferrals_left() == []


def test_limits_that_cannot_be_read_fail_the_job_and_say_why(rq_site: Site) -> None:
    """Written by a newer release, or forged: never run unthrottled, never asked for ever."""
    site = rq_site
    newer = site.queue.enqueue(jobs.plain, throttle=[jobs.LIVELY])
    unreadable_text(newer)
    site.queue.enqueue(jobs.plain, "next")
    site.work()
    assert site.noted == ["next"]
    result = site.fetch(newer).latest_result()
    assert "Update the workers first" in str(result and result.exc_string)


def test_a_place_in_the_line_that_nobody_wrote_gains_nothing(rq_site: Site) -> None:
    """What stands in the job's hash is not trusted: a job that has not waited, decided like any other."""
    site = rq_site
    site.shut(jobs.HOURLY)
    job = site.queue.enqueue(jobs.plain, throttle=HELD)
    for forged in (b"x", b"5", b"{}", b'{"v": 1}', b'{"v": 1, "of": 5, "waited": 7, "front": []}'):
        site.connection.hset(job.key, "throttlekit", forged)
        site.work()
        assert site.fetch(job).get_status() == JobStatus.SCHEDULED
        site.make_due()
    assert site.noted == []


def test_a_fault_of_ours_leaves_the_job_to_where_it_runs(
    throttled_site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If something goes wrong between the pop and the fork, the worker lives; the job asks for itself."""
    site = throttled_site
    site.shut(jobs.HOURLY)

    def broken(job: Any) -> None:
        raise RuntimeError("as the test wants it")

    monkeypatch.setattr(_worker, "read_record", broken)
    site.tick()
    job = site.queue.enqueue(jobs.plain, throttle=HELD)
    site.work()
    assert site.fetch(job).get_status() == JobStatus.SCHEDULED
    assert "could not be checked before it began" in caplog.text


def test_while_the_store_is_away_jobs_wait(rq_site: Site) -> None:
    """A store that does not answer defers for about a second: no job fails, none runs unthrottled."""
    site = rq_site
    configure(Limiter("redis://127.0.0.1:1/0"))
    job = site.queue.enqueue(jobs.plain, throttle=[jobs.LIVELY], retry=Retry(max=1))
    site.work()
    assert site.noted == []
    assert (site.fetch(job).get_status(), site.fetch(job).retries_left) == (JobStatus.SCHEDULED, 1)
    configure(site.limiter)
    site.make_due()
    site.work()
    assert site.noted == ["ran"]


def test_denials_are_quiet(throttled_site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """One line at INFO for the limit, none of a job's arguments."""
    site = throttled_site
    site.shut(jobs.HOURLY)
    for _ in range(5):
        site.queue.enqueue(jobs.plain, "geheim", throttle=HELD)
    with caplog.at_level(logging.INFO, logger="throttlekit"):
        site.work()
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("throttlekit")]
    assert len(ours) == 1
    assert "geheim" not in caplog.text


# The factory


def test_a_class_of_the_users_own_asks_first(throttled_site: Site) -> None:
    """throttled_worker(MyWorker): all that the class does, and asking."""
    site = throttled_site
    taken: list[str] = []

    class Mine(SimpleWorker):
        def execute_job(self, job: Any, queue: Any) -> None:
            taken.append(job.description)
            super().execute_job(job, queue)

    site.shut(jobs.HOURLY)
    site.queue.enqueue(jobs.plain, throttle=HELD)
    site.queue.enqueue(jobs.plain, "free")
    kind = throttled_worker(Mine)
    assert (kind.__name__, issubclass(kind, Mine)) == ("ThrottledMine", True)
    site.work(worker=kind(["work"], connection=site.connection))
    assert site.noted == ["free"]
    assert taken == ["support.rq.jobs.plain('free')"]


@pytest.mark.parametrize("base", [Worker, SimpleWorker, SpawnWorker, *IN_PROCESS.values()])
def test_every_class_of_rqs_can_be_made_to_ask(base: Any) -> None:
    assert issubclass(throttled_worker(base), base)


@pytest.mark.parametrize("wrong", [object, "rq.Worker", ThrottledQueue])
def test_what_is_no_class_of_workers_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="class of RQ workers"):
        throttled_worker(wrong)
