"""SIGKILL at the worst moments of a denial: no job is lost, and none runs twice if RQ would run it once."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

import pytest
from rq import Retry
from rq.job import JobStatus

from support.faults.processes import Command
from support.rq import jobs
from support.rq.flood import OURS, STOCK
from support.rq.helpers import QUIET, Site
from support.rq.workers import rq_worker
from support.waiting import wait_until

pytestmark = [pytest.mark.workers, *QUIET]

Start = Callable[..., Command]


@pytest.fixture
def start(redis_url: str, stack: contextlib.ExitStack) -> Start:
    """Return a function that starts a worker on this test's Redis. All workers are stopped afterwards."""

    def start(kind: str, deadly: str = "", *queues: str) -> Command:
        environment = {"TK_STORE": redis_url, "TK_DEADLY": deadly, "THROTTLEKIT_URL": redis_url}
        options = ["-c", "support.rq.deadly"] if deadly else []
        worker = Command(rq_worker(redis_url, *(queues or ("work",)), kind=kind, options=options), environment)
        return stack.enter_context(contextlib.closing(worker))

    return start


@pytest.fixture
def site(stock_site: Site) -> Site:
    """A Redis whose limits admit no job. The workers are other processes."""
    stock_site.shut(jobs.HOURLY)
    return stock_site


def status_of(site: Site, job: Any) -> JobStatus:
    found: JobStatus = site.fetch(job).get_status()
    return found


def wait_for_status(site: Site, job: Any, status: JobStatus) -> None:
    wait_until(lambda: status_of(site, job) == status, description=f"the job is {status.value}")


def open_and_finish(site: Site, job: Any) -> None:
    """Let the job run, and wait until it has run. Then no data of it may be left in any registry."""
    site.open(jobs.HOURLY)
    wait_for_status(site, job, JobStatus.FINISHED)
    assert site.queue.job_ids == []
    assert site.queue.scheduled_job_registry.get_job_ids() == []


def test_a_horse_killed_before_it_puts_the_job_back_is_an_ordinary_crash(site: Site, start: Start) -> None:
    """Nothing was scheduled. The job has failed, once, as with any work-horse that dies, and can be requeued."""
    job = site.queue.enqueue(jobs.plain, throttle=[jobs.HOURLY])
    start(STOCK, "asking")
    wait_for_status(site, job, JobStatus.FAILED)
    assert site.queue.scheduled_job_registry.get_job_ids() == []
    site.limiter.reset(jobs.HOURLY)
    site.fetch(job).requeue()
    wait_for_status(site, job, JobStatus.FINISHED)
    assert site.noted == ["ran"]


def test_a_horse_killed_before_it_puts_the_job_back_uses_one_retry_at_most(site: Site, start: Start) -> None:
    """With a Retry the job is tried again, denied, enqueued again, and runs once."""
    job = site.queue.enqueue(jobs.plain, throttle=[jobs.HOURLY], retry=Retry(max=1))
    start(STOCK, "asking")
    wait_for_status(site, job, JobStatus.SCHEDULED)
    open_and_finish(site, job)
    assert site.noted == ["ran"]


@pytest.mark.parametrize("retry", [None, Retry(max=2)], ids=["no-retry", "retry"])
def test_a_horse_killed_after_it_put_the_job_back_runs_it_once(site: Site, start: Start, retry: Any) -> None:
    """RQ counts such a death as a failure, and with a Retry enqueues the job a second time. It still runs only once."""
    job = site.queue.enqueue(jobs.plain, throttle=[jobs.HOURLY], retry=retry)
    start(STOCK, "denied")
    wait_until(lambda: site.connection.exists("died"), description="the horse has died")
    if retry:
        wait_until(lambda: site.fetch(job).retries_left == 1, description="RQ has counted a failure")
    wait_for_status(site, job, JobStatus.SCHEDULED if retry else JobStatus.FAILED)
    site.open(jobs.HOURLY)
    wait_until(lambda: site.noted, description="the job has run")
    wait_for_status(site, job, JobStatus.FINISHED)
    wait_until(
        lambda: not site.queue.job_ids and not site.queue.scheduled_job_registry.get_job_ids(),
        description="no job waits",
    )
    assert site.noted == ["ran"]
    assert site.deferrals_left() == []


def test_a_worker_killed_after_its_denial_leaves_the_job_to_the_next(site: Site, start: Start) -> None:
    """One call puts the job back. If the worker dies then, the next one runs the job."""
    job = site.queue.enqueue(jobs.plain, throttle=[jobs.HOURLY])
    first = start(OURS)
    wait_for_status(site, job, JobStatus.SCHEDULED)
    first.kill()
    assert site.connection.llen("rq:queue:work:intermediate") == 0
    start(OURS)
    open_and_finish(site, job)
    assert site.noted == ["ran"]


@pytest.mark.parametrize("queues", [["work"], ["other", "work"]], ids=["one-queue", "two-queues"])
@pytest.mark.parametrize("instant", ["popped", "asking"])
def test_a_worker_killed_with_a_job_leaves_it_where_rq_finds_it(
    site: Site, start: Start, instant: str, queues: list[str]
) -> None:
    """
    Before the denial is stored, the job is in the intermediate list, as with RQ, whose maintenance then fails it. This
    also holds with several queues, with which RQ itself would lose the job.
    """
    job = site.queue.enqueue(jobs.plain, throttle=[jobs.HOURLY])
    worker = start(OURS, instant, *queues)
    wait_until(lambda: not worker.running, description="the worker has died")
    assert status_of(site, job) == JobStatus.QUEUED
    assert site.queue.intermediate_queue.get_job_ids() == [job.id]
    key = site.queue.intermediate_queue.get_first_seen_key(job.id)
    site.connection.set(key, 1)  # the minute has passed
    start(OURS)
    wait_for_status(site, job, JobStatus.FAILED)
    wait_until(
        lambda: site.queue.intermediate_queue.get_job_ids() == [], description="the job is not in the list either"
    )


def test_a_sigterm_during_a_request_strands_no_job(site: Site, start: Start) -> None:
    """
    The worker counts as busy from the moment when it has a job. The signal waits until the job is put back, or has run.
    """
    for _ in range(300):
        site.queue.enqueue(jobs.plain, throttle=[jobs.HOURLY])
    for enough in (20, 80, 160):
        worker = start(OURS)
        registry = site.queue.scheduled_job_registry
        wait_until(lambda: registry.count >= enough, description=f"{enough} jobs have been denied", every=0.001)  # noqa: B023
        worker.stop()
    assert site.queue.intermediate_queue.get_job_ids() == []
    assert site.queue.count + site.queue.scheduled_job_registry.count == 300


@pytest.mark.parametrize(
    ("command", "variables"),
    [
        (["worker"], {"RQ_WORKER_CLASS": "throttlekit_rq.ThrottledWorker"}),
        (["worker", "--worker-class", "throttlekit_rq.ThrottledSimpleWorker"], {}),
        (["worker-pool", "-n", "2", "--worker-class", "throttlekit_rq.ThrottledWorker"], {}),
        (["worker-pool", "-n", "2"], {}),
    ],
    ids=["variable", "option", "pool", "stock-pool"],
)
def test_every_way_to_start_workers_limits_jobs(
    site: Site, redis_url: str, command: list[str], variables: dict[str, str]
) -> None:
    """
    By a variable, by an option or in a pool, the job is denied and then runs. A stock pool has its own schedulers.
    """
    job = site.queue.enqueue(jobs.plain, throttle=[jobs.HOURLY])
    full = [sys.executable, "-m", "rq.cli", *command, "work", "--url", redis_url]
    with contextlib.closing(Command(full, {"THROTTLEKIT_URL": redis_url, **variables})):
        wait_for_status(site, job, JobStatus.SCHEDULED)
        open_and_finish(site, job)
    assert site.noted == ["ran"]
