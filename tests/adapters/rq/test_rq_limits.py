"""
RQ 3's own `rate_limit=` together with throttlekit's limits: RQ decides on enqueueing how many jobs are queued or
running.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
from rq import SimpleWorker
from rq.job import JobStatus

from support.rq import jobs
from support.rq.helpers import QUIET, Site
from throttlekit_rq import ThrottledQueue, configure

rate_limit = pytest.importorskip("rq.rate_limit", reason="RQ before 3 has no limits of its own")

pytestmark = QUIET

HELD = [jobs.HOURLY]
ONE = rate_limit.RateLimit("partner", concurrency=1)


def state(site: Site) -> tuple[list[str], list[str]]:
    """Return the jobs that have a slot of RQ's, and those that wait for one."""
    registry = rate_limit.RateLimitRegistry("partner", site.connection)
    return registry.get_allowed_job_ids(), registry.get_rate_limited_job_ids()


def test_a_job_that_waits_passes_its_slot_to_the_next(rq_site: Site) -> None:
    """
    A job that waits for throttlekit's limit passes its RQ slot to the next job. Both limits hold, and no data of either
    is left.
    """
    rq_site.shut(jobs.HOURLY)
    first = rq_site.queue.enqueue(jobs.plain, "first", throttle=HELD, rate_limit=ONE, job_id="first")
    second = rq_site.queue.enqueue(jobs.plain, "second", rate_limit=ONE, job_id="second")
    assert second.get_status() == JobStatus.RATE_LIMITED
    assert state(rq_site) == (["first"], ["second"])
    rq_site.work()
    assert rq_site.noted == ["second"]
    assert rq_site.fetch(first).get_status() == JobStatus.SCHEDULED
    assert state(rq_site) == ([], [])
    rq_site.open_and_work(jobs.HOURLY)
    assert rq_site.noted == ["second", "first"]
    assert state(rq_site) == ([], [])
    assert rq_site.deferrals_left() == []


def test_a_job_that_is_enqueued_again_waits_for_a_slot(rq_site: Site) -> None:
    """
    If another job has the RQ slot when a job is enqueued again, RQ counts that job as waiting, and starts it after the
    other.
    """
    job = rq_site.enqueue_denied(jobs.plain, "back", rate_limit=ONE, job_id="back")
    other = ThrottledQueue("other", connection=rq_site.connection)
    other.enqueue(jobs.plain, "other", rate_limit=ONE, job_id="other")
    rq_site.open_and_work(jobs.HOURLY)
    assert (rq_site.fetch(job).get_status(), state(rq_site)) == (JobStatus.RATE_LIMITED, (["other"], ["back"]))
    rq_site.run(SimpleWorker(["other"], connection=rq_site.connection), burst=True)
    assert state(rq_site) == (["back"], [])
    rq_site.work()
    assert rq_site.noted == ["other", "back"]
    assert state(rq_site) == ([], [])


def test_a_job_that_is_dropped_returns_its_slot(rq_site: Site) -> None:
    """The job is cancelled, although RQ cancels no such job within a transaction."""
    configure(rq_site.limiter, max_deferrals=0, on_waited_too_long="drop")
    rq_site.shut(jobs.HOURLY)
    job = rq_site.queue.enqueue(jobs.plain, throttle=HELD, rate_limit=ONE)
    rq_site.queue.enqueue(jobs.plain, "next", rate_limit=ONE)
    rq_site.work()
    assert (rq_site.fetch(job).get_status(), rq_site.noted, state(rq_site)) == (JobStatus.CANCELED, ["next"], ([], []))


def test_a_job_at_the_end_of_its_queue_keeps_its_slot(stock_site: Site) -> None:
    """If no process enqueues scheduled jobs, a 429 puts a job back into the queue at once."""
    job = stock_site.queue.enqueue(jobs.receives_429, throttle=[jobs.DAILY], rate_limit=ONE, job_id="called")
    stock_site.run(SimpleWorker(["work"], connection=stock_site.connection), burst=True, max_jobs=1)
    assert stock_site.noted == ["called"]
    assert (stock_site.fetch(job).get_status(), state(stock_site)) == (JobStatus.QUEUED, (["called"], []))


def test_a_job_that_the_user_schedules_needs_a_slot(throttled_site: Site) -> None:
    """Workers of throttlekit enqueue it as RQ's scheduler would."""
    site = throttled_site
    other = ThrottledQueue("other", connection=site.connection)
    other.enqueue(jobs.plain, "other", rate_limit=ONE, job_id="other")
    job = site.queue.enqueue_in(timedelta(hours=1), jobs.plain, "later", rate_limit=ONE, job_id="later")
    site.make_due()
    site.work()
    assert (site.fetch(job).get_status(), state(site)) == (JobStatus.RATE_LIMITED, (["other"], ["later"]))
