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


def enqueue_denied(site: Site, function: Any = jobs.plain, *args: Any, **options: Any) -> Any:
    """Enqueue a job under a limit without room, and have it denied once."""
    site.shut(jobs.HOURLY)
    job = site.queue.enqueue(function, *args, throttle=HELD, **options)
    site.work()
    assert site.fetch(job).get_status() == JobStatus.SCHEDULED
    assert site.queue.scheduled_job_registry.get_job_ids() == [job.id]
    return job


def retry_after_of_next(site: Site) -> float:
    """Return the estimate for another job, which waits like those of the site's workers."""
    if not site.ours:
        return site.limiter.acquire(jobs.HOURLY, job=Job(id="next")).retry_after
    waker: Waker[None] = site.limiter.make_waker(lambda: 1, lambda *_: None)
    delivery = Delivery(waits=Waiting(waker, None))
    decision = site.limiter.acquire(jobs.HOURLY, job=Job(id="next"), delivery=delivery)
    waker.close()
    return decision.retry_after


def run_all(site: Site) -> None:
    site.open(jobs.HOURLY)
    site.work()


def test_a_denied_job_keeps_its_identity(rq_site: Site) -> None:
    """A denied job's hash only changes in the registry and the data of the wait. Then the job runs, once."""
    site = rq_site
    site.shut(jobs.HOURLY)
    job = site.queue.enqueue(
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
    before = site.raw(job)
    site.work()
    after = site.raw(job)
    kept = LIFE | OURS | {b"meta"}
    assert {k: v for k, v in after.items() if k not in kept} == {k: v for k, v in before.items() if k not in kept}
    assert {k: v for k, v in site.fetch(job).meta.items() if k != "throttlekit"} == {"a": 1}
    assert (after[b"status"], after.get(b"started_at"), after.get(b"worker_name")) == (b"scheduled", b"", b"")
    assert site.noted == []
    run_all(site)
    assert site.noted == ["x", "success of mine: result of x"]
    done = site.fetch(job)
    assert (done.func_name, done.meta, done.return_value(), done.retries_left) == (
        "support.rq.jobs.plain",
        {"a": 1},
        "result of x",
        3,
    )
    assert site.connection.ttl(job.key) <= 77
    assert site.deferrals_left() == []


def test_a_decorated_async_function_is_limited_like_a_job_with_limits(rq_site: Site) -> None:
    """A job with @throttled alone is denied, enqueued again and run once."""
    site = rq_site
    site.shut(jobs.HOURLY)
    job = site.queue.enqueue(jobs.hourly_async, "y")
    site.work()
    assert site.fetch(job).get_status() == JobStatus.SCHEDULED
    run_all(site)
    assert site.noted == ["y"]
    assert site.fetch(job).return_value() == "result of y"
    assert site.deferrals_left() == []


def test_a_spawned_process_does_not_charge_an_admitted_job_again(spawn_site: Site) -> None:
    """In workers that spawn, a denied job is enqueued again, and an admitted one is charged only once."""
    site = spawn_site
    site.shut(jobs.HOURLY)
    carrying = site.queue.enqueue(jobs.plain, "carried", throttle=HELD)
    site.work()
    assert site.fetch(carrying).get_status() == JobStatus.SCHEDULED
    run_all(site)
    assert site.noted == ["carried"]
    site.limiter.reset(jobs.HOURLY)
    decorated = site.queue.enqueue(jobs.hourly, "decorated")
    site.work()
    assert site.fetch(decorated).get_status() == JobStatus.FINISHED
    assert site.limiter.peek(jobs.HOURLY).remaining == 0


def test_dependents_run_after_the_real_run(rq_site: Site) -> None:
    """A job that depends on a denied one stays deferred until that one has run, even if it allows failures."""
    site = rq_site
    job = enqueue_denied(site, jobs.plain, "first")
    after = site.queue.enqueue(jobs.plain, "second", depends_on=job)
    forgiving = site.queue.enqueue(jobs.plain, "second", depends_on=Dependency(jobs=[job], allow_failure=True))
    site.work()
    assert {after.get_status(), forgiving.get_status()} == {JobStatus.DEFERRED}
    run_all(site)
    assert site.noted == ["first", "second", "second"]


def test_a_denied_dependent_waits_for_its_limit(simple_site: Site) -> None:
    """A job whose dependency is done is denied like any other, and runs later with its dependencies still met."""
    site = simple_site
    first = site.queue.enqueue(jobs.plain, "first")
    site.shut(jobs.HOURLY)
    second = site.queue.enqueue(jobs.plain, "second", throttle=HELD, depends_on=first)
    site.work()
    assert site.fetch(second).get_status() == JobStatus.SCHEDULED
    run_all(site)
    assert site.noted == ["first", "second"]


def test_a_group_keeps_its_denied_jobs(simple_site: Site) -> None:
    """Jobs of a group stay in it while they wait, and after they have run."""
    site = simple_site
    site.shut(jobs.HOURLY)
    group = Group.create(connection=site.connection)
    members = group.enqueue_many(site.queue, [site.queue.prepare_data(jobs.plain, ("g",), throttle=HELD)])
    site.work()
    assert [job.id for job in group.get_jobs()] == [job.id for job in members]
    run_all(site)
    assert [job.get_status() for job in group.get_jobs()] == [JobStatus.FINISHED]


def test_unique_applies_while_a_job_waits(rq_site: Site) -> None:
    """unique=True refuses a second job with the id of a denied one."""
    site = rq_site
    duplicate: Any = getattr(rq.exceptions, "DuplicateJobError", None)
    if duplicate is None:
        pytest.skip(f"RQ {rq.VERSION} has no unique=")
    enqueue_denied(site, jobs.plain, "u", job_id="only", unique=True)
    with pytest.raises(duplicate):
        site.queue.enqueue(jobs.plain, "u", throttle=HELD, job_id="only", unique=True)
    run_all(site)
    assert site.noted == ["u"]


def test_a_repeating_job_repeats_after_each_real_run(simple_site: Site) -> None:
    """A denial is not a repetition: the job runs as often as requested."""
    site = simple_site
    repeat = getattr(rq, "Repeat", None)
    if repeat is None:
        pytest.skip(f"RQ {rq.VERSION} has no Repeat")
    job = enqueue_denied(site, jobs.plain, "again", repeat=repeat(times=2))
    assert site.fetch(job).repeats_left == 2
    for runs in (1, 2, 3):
        run_all(site)
        assert site.noted == ["again"] * runs
    assert site.deferrals_left() == []


def test_denials_use_none_of_the_retries_of_a_returned_retry(rq_site: Site) -> None:
    """A denial does not count as one of the runs that a job requests by returning Retry."""
    site = rq_site
    job = enqueue_denied(site, jobs.comes_again, "r", 1)
    site.make_due()
    site.work()
    run_all(site)
    assert site.fetch(job).number_of_retries == 1
    run_all(site)
    assert site.noted == ["r", "r"]
    assert site.fetch(job).return_value() == "done"


def test_counters_of_the_worker_count_real_runs(rq_site: Site) -> None:
    """Denials are neither successes nor failures of a worker."""
    site = rq_site
    site.shut(jobs.HOURLY)
    for _ in range(3):
        site.queue.enqueue(jobs.plain, throttle=HELD)
    site.queue.enqueue(jobs.plain, "free")
    worker = site.work()
    worker.refresh()
    assert (worker.successful_job_count, worker.failed_job_count) == (1, 0)


def test_a_denied_job_can_be_deleted(rq_site: Site) -> None:
    """A job that is deleted while it waits leaves no data, and no worker fails because of it."""
    site = rq_site
    job = enqueue_denied(site)
    site.fetch(job).delete()
    run_all(site)
    assert site.noted == []
    assert not site.connection.exists(job.key)
    assert site.queue.scheduled_job_registry.get_job_ids() == []


def test_a_denied_job_is_in_the_registry_of_scheduled_jobs(rq_site: Site) -> None:
    """The registry has the latest time at which the job is enqueued again: in ten minutes and ten seconds."""
    job = enqueue_denied(rq_site)
    at = rq_site.queue.scheduled_job_registry.get_scheduled_time(job)
    assert 0 < at.timestamp() - time.time() <= 611


def test_the_ttl_is_counted_from_the_enqueueing(simple_site: Site) -> None:
    """Denials do not prolong a job's ttl, however often they happen, and however the job is enqueued again."""
    site = simple_site
    site.shut(jobs.HOURLY)
    job = site.queue.enqueue(jobs.plain, throttle=HELD, ttl=60)
    ten_seconds_ago = utcformat(datetime.now(timezone.utc) - timedelta(seconds=10))
    site.connection.hset(job.key, "enqueued_at", ten_seconds_ago)
    site.connection.pexpire(job.key, 50_000)
    for _ in range(3):
        site.make_due()
        site.work()
        assert 0 < site.connection.pttl(job.key) <= 50_000
    site.connection.pexpire(job.key, 1)
    wait_until(lambda: not site.connection.exists(job.key), description="the job expires")
    run_all(site)
    assert site.noted == []
    assert site.queue.scheduled_job_registry.get_job_ids() == []


def test_a_job_whose_ttl_ends_before_its_turn_gets_no_position(rq_site: Site) -> None:
    """The job is enqueued again when its ttl ends, and then expires. Its position is free for the next job."""
    site = rq_site
    job = enqueue_denied(site, ttl=6)
    at = site.queue.scheduled_job_registry.get_scheduled_time(job)
    assert 0 < at.timestamp() - time.time() <= 8
    wait_until(lambda: not site.connection.exists(job.key), description="the job expires")

    def is_first() -> bool:
        return site.limiter.acquire(jobs.HOURLY, job=Job(id="next")).retry_after <= 3600

    wait_until(is_first, description="no job waits before the next job")


def test_a_job_whose_ttl_ends_after_its_turn_keeps_its_position(rq_site: Site) -> None:
    """A ttl beyond the wait changes nothing. For a job that was denied before, the remaining ttl counts."""
    site = rq_site
    job = enqueue_denied(site, ttl=4000)
    site.make_due()
    site.work()
    at = site.queue.scheduled_job_registry.get_scheduled_time(job)
    assert 590 < at.timestamp() - time.time() < 615, "not at the end of its ttl"
    if site.ours:
        assert retry_after_of_next(site) > 3700
    run_all(site)
    assert (site.noted, site.fetch(job).get_status()) == (["ran"], JobStatus.FINISHED)


def test_a_worker_does_not_wait_for_a_job_past_its_ttl(stock_site: Site) -> None:
    """If no process enqueues scheduled jobs, a stock worker does not wait until the job is expired, and then run it."""
    site = stock_site
    site.shut(TENTHS)
    job = site.queue.enqueue(jobs.plain, throttle=[TENTHS], ttl=3)
    began = time.monotonic()
    site.run(SimpleWorker([site.queue.name], connection=site.connection), max_jobs=1)
    assert time.monotonic() - began < 2.5
    assert 0 < site.connection.pttl(job.key) <= 3000
    assert site.limiter.acquire(TENTHS, job=Job(id="next")).delay <= 6


def test_a_new_job_with_a_used_id_has_no_data_of_the_old_one(simple_site: Site) -> None:
    """The position and the expiry of a denied job do not apply to another job with the same id."""
    site = simple_site
    enqueue_denied(site, ttl=20, job_id="same")
    again = site.queue.enqueue(jobs.plain, "again", throttle=HELD, job_id="same", ttl=60)
    site.work()
    assert site.connection.ttl(again.key) > 50
    run_all(site)
    assert site.noted == ["again"]


def test_at_front_is_restored_when_a_job_runs(simple_site: Site) -> None:
    """
    A waiting job has at_front, so that RQ's scheduler puts it before the backlog. Its own value is restored when it
    runs.
    """
    site = simple_site
    for own in (None, True, False):
        site.shut(jobs.HOURLY)
        job = site.queue.create_job(jobs.plain, throttle=HELD)
        job.enqueue_at_front = own
        site.queue.enqueue_job(job)
        site.work()
        assert site.fetch(job).enqueue_at_front is True
        site.queue.enqueue(jobs.plain, "backlog")
        run_all(site)
        assert site.noted[-2:] == ["ran", "backlog"]
        assert site.fetch(job).enqueue_at_front is own
        site.limiter.reset(jobs.HOURLY)


def test_waiting_uses_at_most_a_quarter_of_a_short_timeout(stock_site: Site) -> None:
    """A job that RQ's scheduler enqueues early waits in its worker for at most a quarter of its job_timeout."""
    site = stock_site
    slow = TokenBucket("slow", "1/4s", burst=1)
    site.limiter.acquire(slow)
    quick = site.queue.enqueue(jobs.plain, throttle=[slow], job_timeout=4)
    for _ in range(40):
        site.work()
        if site.noted:
            break
        due = site.queue.scheduled_job_registry.get_scheduled_time(quick).timestamp()
        wait_until(lambda: time.time() >= math.ceil(due), description="RQ's scheduler can take the job", every=0.01)  # noqa: B023
    assert site.fetch(quick).get_status() == JobStatus.FINISHED
    assert len(site.fetch(quick).results()) == 1


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


def _settle_twice(site: Site) -> list[int]:
    left = []
    for function, options in ((jobs.settles, {"throttle": [jobs.TOKENS]}), (jobs.settles_async, {})):
        job = site.queue.enqueue(function, kwargs={"most": 80, "actual": 10}, **options)
        site.work()
        assert site.fetch(job).get_status() == JobStatus.FINISHED
        left.append(site.limiter.peek(jobs.TOKENS, cost=0).remaining)
    return left


def test_a_body_settles_what_it_used(rq_site: Site) -> None:
    """`throttlekit.current().settle()` returns unused units at once, in a plain or an async body."""
    assert _settle_twice(rq_site) == [90, 80]


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


def test_a_body_settles_in_a_spawned_process(spawn_site: Site) -> None:
    """The receipt of a job that was admitted before is passed to the process that is spawned for it."""
    assert _settle_twice(spawn_site) == [90, 80]
