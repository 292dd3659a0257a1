"""A denial only makes a job of RQ wait, in workers of each kind."""

from __future__ import annotations

import math
import time
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import rq
from rq import Callback, Retry, SimpleWorker
from rq.group import Group
from rq.job import Dependency, JobStatus
from rq.utils import utcformat

from support.rq import jobs
from support.rq.flood import OURS_SIMPLE
from support.rq.helpers import QUIET, Site
from support.rq.workers import Fleet, rq_worker
from support.waiting import wait_until
from throttlekit import Job, Limiter, TokenBucket
from throttlekit._util.log_limiter import Every
from throttlekit.adapter import Delivery, Waiting, Waker
from throttlekit_rq import ThrottledQueue, configure

pytestmark = QUIET

HELD = [jobs.HOURLY]
TENTHS = TokenBucket("tenths", "10/minute", burst=1)
LIFE = {b"status", b"last_heartbeat", b"started_at", b"ended_at", b"worker_name", b"enqueue_at_front", b"enqueued_at"}
OURS = {b"throttlekit", b"throttlekit_expires"}


def retry_after_of_next(site: Site) -> float:
    """Return the estimate for another job, which waits like those of the site's workers."""
    if not site.ours:
        return site.limiter.acquire(jobs.HOURLY, job=Job(id="next")).retry_after
    waker: Waker[None] = site.limiter.make_waker(lambda: 1, lambda *_: None)
    delivery = Delivery(waits=Waiting(waker, None))
    decision = site.limiter.acquire(jobs.HOURLY, job=Job(id="next"), delivery=delivery)
    waker.close()
    return decision.retry_after


def test_a_denied_job_keeps_its_identity(rq_site: Site) -> None:
    """A denied job's hash only changes in the registry and the data of the wait. Then the job runs, once."""
    rq_site.shut(jobs.HOURLY)
    job = rq_site.queue.enqueue(
        jobs.plain,
        "x",
        throttle=HELD,
        job_id="mine",
        meta={"a": 1},
        description="do x",
        result_ttl=77,
        failure_ttl=88,
        job_timeout=99,
        on_success=Callback(jobs.succeeded),
        on_failure=Callback(jobs.failed),
        retry=Retry(max=3, interval=5),
    )
    before = rq_site.raw(job)
    rq_site.work()
    after = rq_site.raw(job)
    kept = LIFE | OURS | {b"meta"}
    assert {k: v for k, v in after.items() if k not in kept} == {k: v for k, v in before.items() if k not in kept}
    assert {k: v for k, v in rq_site.fetch(job).meta.items() if k != "throttlekit"} == {"a": 1}
    assert (after[b"status"], after.get(b"started_at"), after.get(b"worker_name")) == (b"scheduled", b"", b"")
    assert rq_site.noted == []
    rq_site.open_and_work(jobs.HOURLY)
    assert rq_site.noted == ["x", "success of mine: result of x"]
    done = rq_site.fetch(job)
    assert (done.func_name, done.meta, done.return_value(), done.retries_left) == (
        "support.rq.jobs.plain",
        {"a": 1},
        "result of x",
        3,
    )
    assert rq_site.connection.ttl(job.key) <= 77
    assert rq_site.deferrals_left() == []


def test_a_decorated_async_function_is_limited_like_a_job_with_limits(rq_site: Site) -> None:
    """A job with @throttled alone is denied, enqueued again and run once."""
    rq_site.shut(jobs.HOURLY)
    job = rq_site.queue.enqueue(jobs.hourly_async, "y")
    rq_site.work()
    assert rq_site.fetch(job).get_status() == JobStatus.SCHEDULED
    rq_site.open_and_work(jobs.HOURLY)
    assert rq_site.noted == ["y"]
    assert rq_site.fetch(job).return_value() == "result of y"
    assert rq_site.deferrals_left() == []


def test_a_spawned_process_does_not_charge_an_admitted_job_again(spawn_site: Site) -> None:
    """In workers that spawn, a denied job is enqueued again, and an admitted one is charged only once."""
    spawn_site.enqueue_denied(jobs.plain, "carried")
    spawn_site.open_and_work(jobs.HOURLY)
    assert spawn_site.noted == ["carried"]
    spawn_site.limiter.reset(jobs.HOURLY)
    decorated = spawn_site.queue.enqueue(jobs.hourly, "decorated")
    spawn_site.work()
    assert spawn_site.fetch(decorated).get_status() == JobStatus.FINISHED
    assert spawn_site.limiter.peek(jobs.HOURLY).remaining == 0


def test_dependents_run_after_the_real_run(rq_site: Site) -> None:
    """A job that depends on a denied one stays deferred until that one has run, even if it allows failures."""
    job = rq_site.enqueue_denied(jobs.plain, "first")
    after = rq_site.queue.enqueue(jobs.plain, "second", depends_on=job)
    forgiving = rq_site.queue.enqueue(jobs.plain, "second", depends_on=Dependency(jobs=[job], allow_failure=True))
    rq_site.work()
    assert {after.get_status(), forgiving.get_status()} == {JobStatus.DEFERRED}
    rq_site.open_and_work(jobs.HOURLY)
    assert rq_site.noted == ["first", "second", "second"]


def test_a_denied_dependent_waits_for_its_limit(simple_site: Site) -> None:
    """A job whose dependency is done is denied like any other, and runs later with its dependencies still met."""
    first = simple_site.queue.enqueue(jobs.plain, "first")
    simple_site.enqueue_denied(jobs.plain, "second", depends_on=first)
    simple_site.open_and_work(jobs.HOURLY)
    assert simple_site.noted == ["first", "second"]


def test_a_group_keeps_its_denied_jobs(simple_site: Site) -> None:
    """Jobs of a group stay in it while they wait, and after they have run."""
    simple_site.shut(jobs.HOURLY)
    group = Group.create(connection=simple_site.connection)
    members = group.enqueue_many(simple_site.queue, [simple_site.queue.prepare_data(jobs.plain, ("g",), throttle=HELD)])
    simple_site.work()
    assert [job.id for job in group.get_jobs()] == [job.id for job in members]
    simple_site.open_and_work(jobs.HOURLY)
    assert [job.get_status() for job in group.get_jobs()] == [JobStatus.FINISHED]


def test_unique_applies_while_a_job_waits(rq_site: Site) -> None:
    """unique=True refuses a second job with the id of a denied one."""
    duplicate: Any = getattr(rq.exceptions, "DuplicateJobError", None)
    if duplicate is None:
        pytest.skip(f"RQ {rq.VERSION} has no unique=")
    rq_site.enqueue_denied(jobs.plain, "u", job_id="only", unique=True)
    with pytest.raises(duplicate):
        rq_site.queue.enqueue(jobs.plain, "u", throttle=HELD, job_id="only", unique=True)
    rq_site.open_and_work(jobs.HOURLY)
    assert rq_site.noted == ["u"]


def test_a_repeating_job_repeats_after_each_real_run(simple_site: Site) -> None:
    """A denial is not a repetition: the job runs as often as requested."""
    repeat = getattr(rq, "Repeat", None)
    if repeat is None:
        pytest.skip(f"RQ {rq.VERSION} has no Repeat")
    job = simple_site.enqueue_denied(jobs.plain, "again", repeat=repeat(times=2))
    assert simple_site.fetch(job).repeats_left == 2
    for runs in (1, 2, 3):
        simple_site.open_and_work(jobs.HOURLY)
        assert simple_site.noted == ["again"] * runs
    assert simple_site.deferrals_left() == []


def test_denials_use_none_of_the_retries_of_a_returned_retry(rq_site: Site) -> None:
    """A denial does not count as one of the runs that a job requests by returning Retry."""
    job = rq_site.enqueue_denied(jobs.comes_again, "r", 1)
    rq_site.make_due()
    rq_site.work()
    rq_site.open_and_work(jobs.HOURLY)
    assert rq_site.fetch(job).number_of_retries == 1
    rq_site.open_and_work(jobs.HOURLY)
    assert rq_site.noted == ["r", "r"]
    assert rq_site.fetch(job).return_value() == "done"


def test_counters_of_the_worker_count_real_runs(rq_site: Site) -> None:
    """Denials are neither successes nor failures of a worker."""
    rq_site.shut(jobs.HOURLY)
    for _ in range(3):
        rq_site.queue.enqueue(jobs.plain, throttle=HELD)
    rq_site.queue.enqueue(jobs.plain, "free")
    worker = rq_site.work()
    worker.refresh()
    assert (worker.successful_job_count, worker.failed_job_count) == (1, 0)


def test_a_denied_job_can_be_deleted(rq_site: Site) -> None:
    """A job that is deleted while it waits leaves no data, and no worker fails because of it."""
    job = rq_site.enqueue_denied()
    rq_site.fetch(job).delete()
    rq_site.open_and_work(jobs.HOURLY)
    assert rq_site.noted == []
    assert not rq_site.connection.exists(job.key)
    assert rq_site.queue.scheduled_job_registry.get_job_ids() == []


def test_a_denied_job_is_in_the_registry_of_scheduled_jobs(rq_site: Site) -> None:
    """The registry has the latest time at which the job is enqueued again: in ten minutes and ten seconds."""
    job = rq_site.enqueue_denied()
    at = rq_site.queue.scheduled_job_registry.get_scheduled_time(job)
    assert 0 < at.timestamp() - time.time() <= 611


def test_the_ttl_is_counted_from_the_enqueueing(simple_site: Site) -> None:
    """Denials do not prolong a job's ttl, however often they happen, and however the job is enqueued again."""
    simple_site.shut(jobs.HOURLY)
    job = simple_site.queue.enqueue(jobs.plain, throttle=HELD, ttl=60)
    ten_seconds_ago = utcformat(datetime.now(timezone.utc) - timedelta(seconds=10))
    simple_site.connection.hset(job.key, "enqueued_at", ten_seconds_ago)
    simple_site.connection.pexpire(job.key, 50_000)
    for _ in range(3):
        simple_site.make_due()
        simple_site.work()
        assert 0 < simple_site.connection.pttl(job.key) <= 50_000
    simple_site.connection.pexpire(job.key, 1)
    wait_until(lambda: not simple_site.connection.exists(job.key), description="the job expires")
    simple_site.open_and_work(jobs.HOURLY)
    assert simple_site.noted == []
    assert simple_site.queue.scheduled_job_registry.get_job_ids() == []


def test_a_job_whose_ttl_ends_before_its_turn_gets_no_position(rq_site: Site) -> None:
    """The job is enqueued again when its ttl ends, and then expires. Its position is free for the next job."""
    job = rq_site.enqueue_denied(ttl=6)
    at = rq_site.queue.scheduled_job_registry.get_scheduled_time(job)
    assert 0 < at.timestamp() - time.time() <= 8
    wait_until(lambda: not rq_site.connection.exists(job.key), description="the job expires")

    def is_first() -> bool:
        return rq_site.limiter.acquire(jobs.HOURLY, job=Job(id="next")).retry_after <= 3600

    wait_until(is_first, description="no job waits before the next job")


def test_a_job_whose_ttl_ends_after_its_turn_keeps_its_position(rq_site: Site) -> None:
    """A ttl beyond the wait changes nothing. For a job that was denied before, the remaining ttl counts."""
    job = rq_site.enqueue_denied(ttl=4000)
    rq_site.make_due()
    rq_site.work()
    at = rq_site.queue.scheduled_job_registry.get_scheduled_time(job)
    assert 590 < at.timestamp() - time.time() < 615, "not at the end of its ttl"
    if rq_site.ours:
        assert retry_after_of_next(rq_site) > 3700
    rq_site.open_and_work(jobs.HOURLY)
    assert (rq_site.noted, rq_site.fetch(job).get_status()) == (["ran"], JobStatus.FINISHED)


def test_a_worker_does_not_wait_for_a_job_past_its_ttl(stock_site: Site) -> None:
    """If no process enqueues scheduled jobs, a stock worker does not wait until the job is expired, and then run it."""
    stock_site.shut(TENTHS)
    job = stock_site.queue.enqueue(jobs.plain, throttle=[TENTHS], ttl=3)
    began = time.monotonic()
    stock_site.run(SimpleWorker([stock_site.queue.name], connection=stock_site.connection), max_jobs=1)
    assert time.monotonic() - began < 2.5
    assert 0 < stock_site.connection.pttl(job.key) <= 3000
    assert stock_site.limiter.acquire(TENTHS, job=Job(id="next")).delay <= 6


def test_a_new_job_with_a_used_id_has_no_data_of_the_old_one(simple_site: Site) -> None:
    """The position and the expiry of a denied job do not apply to another job with the same id."""
    simple_site.enqueue_denied(ttl=20, job_id="same")
    again = simple_site.queue.enqueue(jobs.plain, "again", throttle=HELD, job_id="same", ttl=60)
    simple_site.work()
    assert simple_site.connection.ttl(again.key) > 50
    simple_site.open_and_work(jobs.HOURLY)
    assert simple_site.noted == ["again"]


def test_at_front_is_restored_when_a_job_runs(simple_site: Site) -> None:
    """
    A waiting job has at_front, so that RQ's scheduler puts it before the backlog. Its own value is restored when it
    runs.
    """
    for own in (None, True, False):
        simple_site.shut(jobs.HOURLY)
        job = simple_site.queue.create_job(jobs.plain, throttle=HELD)
        job.enqueue_at_front = own
        simple_site.queue.enqueue_job(job)
        simple_site.work()
        assert simple_site.fetch(job).enqueue_at_front is True
        simple_site.queue.enqueue(jobs.plain, "backlog")
        simple_site.open_and_work(jobs.HOURLY)
        assert simple_site.noted[-2:] == ["ran", "backlog"]
        assert simple_site.fetch(job).enqueue_at_front is own
        simple_site.limiter.reset(jobs.HOURLY)


def test_waiting_uses_at_most_a_quarter_of_a_short_timeout(stock_site: Site) -> None:
    """A job that RQ's scheduler enqueues early waits in its worker for at most a quarter of its job_timeout."""
    slow = TokenBucket("slow", "1/4s", burst=1)
    stock_site.limiter.acquire(slow)
    quick = stock_site.queue.enqueue(jobs.plain, throttle=[slow], job_timeout=4)
    for _ in range(40):
        stock_site.work()
        if stock_site.noted:
            break
        due = stock_site.queue.scheduled_job_registry.get_scheduled_time(quick).timestamp()
        wait_until(lambda: time.time() >= math.ceil(due), description="RQ's scheduler can take the job", every=0.01)  # noqa: B023
    assert stock_site.fetch(quick).get_status() == JobStatus.FINISHED
    assert len(stock_site.fetch(quick).results()) == 1


def test_limits_in_memory_log_a_warning(
    throttled_site: Site, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A work-horse would lose them. The warning names the store to configure."""
    monkeypatch.setattr("throttlekit_rq._admission._memory_warning", Every(float("inf")))
    configure(Limiter())
    for _ in range(2):
        throttled_site.queue.enqueue(jobs.plain, throttle=[jobs.LIVELY])
    throttled_site.work()
    assert sum("in memory" in record.getMessage() for record in caplog.records) == 1


def test_a_body_settles_what_it_used(any_site: Site) -> None:
    """
    `throttlekit.current().settle()` returns unused units at once, in a plain or an async body. The receipt of a job
    that was admitted before is passed to the process that is spawned for it.
    """
    for function, options, left in ((jobs.settles, {"throttle": [jobs.TOKENS]}, 90), (jobs.settles_async, {}, 80)):
        job = any_site.queue.enqueue(function, kwargs={"most": 80, "actual": 10}, **options)
        any_site.work()
        assert any_site.fetch(job).get_status() == JobStatus.FINISHED
        assert any_site.limiter.peek(jobs.TOKENS, cost=0).remaining == left


@pytest.mark.workers
@pytest.mark.parametrize(("actual", "runs"), [(10, True), (80, False)])
def test_units_that_a_body_returns_wake_the_next_job(actual: int, runs: bool, rq_site: Site) -> None:
    """The first job that waits for units, in another worker, runs at once. If none are returned, it stays scheduled."""
    site, options = rq_site, {"most": 80, "actual": actual}
    other = ThrottledQueue("other", connection=site.connection)
    other.enqueue(jobs.settles_before_another, kwargs=options, throttle=[jobs.TOKENS])
    with Fleet([rq_worker(site.url, "work", kind=OURS_SIMPLE)], {"THROTTLEKIT_URL": site.url}):
        site.work("other")
        another = site.queue.fetch_job("another")
        if runs:
            wait_until(lambda: another.get_status() == JobStatus.FINISHED, description="the job runs")
        else:
            assert another.get_status() == JobStatus.SCHEDULED
