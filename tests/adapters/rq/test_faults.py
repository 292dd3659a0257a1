"""Jobs that cannot be read, that end without a run and are sent again, or that have a short timeout: no job is lost."""

from __future__ import annotations

import signal
import time
from pkgutil import resolve_name
from typing import Any

import pytest
import redis
from rq import SimpleWorker
from rq.job import JobStatus

import throttlekit_rq._worker
from support.rq import jobs
from support.rq.helpers import QUIET, Site
from throttlekit import Decision, Job, LeakyBucket, Limiter
from throttlekit.plugins import LimitsFor
from throttlekit_rq import ThrottledSimpleWorker, configure
from throttlekit_rq._waiting import return_taken

pytestmark = QUIET

HELD = [jobs.HOURLY]


def break_once(monkeypatch: pytest.MonkeyPatch, name: str, error: BaseException, *, done: bool = False) -> None:
    """Let the function *name* raise *error* at its first call: after its work if *done*, otherwise before."""
    within, _, function = name.rpartition(".")
    real, calls = getattr(resolve_name(within), function), list[None]()

    def broken(*args: Any, **options: Any) -> Any:
        calls.append(None)
        result = real(*args, **options) if len(calls) > 1 or done else None
        if len(calls) == 1:
            raise error
        return result

    monkeypatch.setattr(name, broken)


def test_unreadable_data_fails_its_job_and_no_worker(rq_site: Site) -> None:
    """The data of a job is broken, or names a class that the worker does not have. The worker continues."""
    job = rq_site.queue.enqueue(jobs.plain, "broken")
    rq_site.queue.enqueue(jobs.plain, "after")
    rq_site.connection.hset(job.key, "data", b"broken")
    rq_site.work()
    assert rq_site.connection.hget(job.key, "status") == b"failed"
    assert rq_site.noted == ["after"]


def test_a_requeued_job_that_waited_too_long_starts_a_new_wait(rq_site: Site) -> None:
    """The ttl and the wait of a requeued job are counted from the requeueing."""
    configure(rq_site.limiter, max_wait=0.2)
    rq_site.shut(jobs.HOURLY)
    over = time.monotonic() + 10
    job = rq_site.queue.enqueue(
        jobs.plain, "x", throttle=HELD, ttl=10
    )  # on a busy machine the job must outlive the following steps
    rq_site.work()
    time.sleep(0.3)
    rq_site.make_due()
    rq_site.work()
    assert rq_site.fetch(job).get_status() == JobStatus.FAILED
    assert rq_site.deferrals_left() == []
    time.sleep(max(0.0, over - time.monotonic()))
    rq_site.limiter.reset(jobs.HOURLY)
    rq_site.fetch(job).requeue()
    rq_site.work()
    assert rq_site.noted == ["x"]


@pytest.mark.parametrize(
    ("on_waited_too_long", "end"),
    [("fail", JobStatus.FAILED), ("drop", JobStatus.CANCELED), ("run", JobStatus.FINISHED)],
)
def test_a_job_that_finds_the_queue_full_gets_the_chosen_outcome(
    rq_site: Site, on_waited_too_long: Any, end: JobStatus
) -> None:
    """
    Of four jobs under a leaky bucket with room for one waiting job, one runs, one waits, and the others get the chosen
    outcome.
    """
    leaky = LeakyBucket("leaky", "1/hour", queue=1)
    configure(rq_site.limiter, on_waited_too_long=on_waited_too_long)
    sent = [rq_site.queue.enqueue(jobs.plain, n, throttle=[leaky]) for n in range(4)]
    worker = rq_site.work()
    worker.refresh()
    assert worker.failed_job_count == (2 if on_waited_too_long == "fail" else 0)
    assert [rq_site.fetch(job).get_status() for job in sent] == [JobStatus.FINISHED, JobStatus.SCHEDULED, end, end]
    assert rq_site.deferrals_left() == [f"rq:job:{sent[1].id}"]


def test_waits_in_a_worker_use_at_most_a_quarter_of_the_timeout(
    stock_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    However often a job is denied while no process can enqueue it again, it does not use up its own timeout by waiting.
    """
    stock_site.shut(jobs.HOURLY)
    requested: list[Any] = []
    real = Limiter.acquire

    def deny_briefly(self: Any, *limits: Any, **options: Any) -> Any:
        """
        Other jobs are always faster. The denial has a short delay, for which the worker waits, since no process
        promotes jobs.
        """
        requested.append(limits)
        decision = real(self, *limits, **options)
        object.__setattr__(decision, "delay", 0.04 if len(requested) % 2 else 0.06)
        return decision

    monkeypatch.setattr(Limiter, "acquire", deny_briefly)
    job = stock_site.queue.enqueue(jobs.plain, throttle=HELD, job_timeout=4)
    stock_site.run(SimpleWorker(["work"], connection=stock_site.connection), max_jobs=1)
    assert len(requested) > 1
    assert stock_site.fetch(job).get_status() == JobStatus.QUEUED


@pytest.mark.parametrize("spawn_site", ["throttled-spawn"], indirect=True)
def test_a_function_that_only_a_spawned_process_finds_is_limited_by_its_queue(
    spawn_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The worker's copy of the code is older than the job. The worker cannot compute its request, and does not run it
    without a decision.
    """
    configure(spawn_site.limiter, queues={"work": HELD})
    spawn_site.shut(jobs.HOURLY)
    job = spawn_site.queue.enqueue(jobs.plain, "unasked")
    monkeypatch.delattr(jobs, "plain")
    spawn_site.work()
    assert spawn_site.noted == []
    assert spawn_site.fetch(job).get_status() == JobStatus.FAILED


@pytest.mark.parametrize("listed", [True, False], ids=["in-list", "in-no-list"])
@pytest.mark.parametrize("done", [False, True], ids=["before", "lost-reply"])
def test_an_error_of_redis_as_a_denied_job_is_put_back_fails_no_job(
    throttled_site: Site, monkeypatch: pytest.MonkeyPatch, done: bool, listed: bool
) -> None:
    """
    The worker waits, as RQ does after a lost connection, and goes on. The job waits, whether or not the call had an
    effect, and whether RQ has the job in its intermediate list (one queue) or in none (several).
    """
    throttled_site.shut(jobs.HOURLY)
    configure(throttled_site.limiter, queues={"work": HELD})
    break_once(monkeypatch, "throttlekit_rq._worker.deny", redis.ConnectionError("lost"), done=done)
    if not listed:
        monkeypatch.setattr("rq.queue.Queue.lmove", lambda connection, key, timeout: _pop(connection, key))
    job = throttled_site.queue.enqueue(jobs.plain, "held")
    throttled_site.work()
    monkeypatch.undo()
    assert (throttled_site.fetch(job).get_status(), throttled_site.queue.job_ids) == (JobStatus.SCHEDULED, [])
    assert throttled_site.queue.intermediate_queue.get_job_ids() == []
    throttled_site.open_and_work(jobs.HOURLY)
    assert throttled_site.noted == ["held"]
    assert throttled_site.deferrals_left() == []


def _pop(connection: Any, key: str) -> Any:
    found = connection.lpop(key)
    return None if found is None else (key, found)


@pytest.mark.parametrize("broken", ["_admission.clear_deferral", "_worker.intermediate_key"])
def test_an_error_of_redis_after_a_grant_charges_the_job_once(
    throttled_site: Site, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """The unit is refunded, so the job is granted again, although the limit has only one."""
    break_once(monkeypatch, f"throttlekit_rq.{broken}", redis.TimeoutError("slow"))
    throttled_site.queue.enqueue(jobs.plain, "granted", throttle=HELD)
    for _ in range(2):  # RQ 2 ends after a time-out
        throttled_site.work("other", "work")
    assert throttled_site.noted == ["granted"]
    assert throttled_site.queue.intermediate_queue.get_job_ids() == []


@pytest.mark.parametrize("lost_at", ["receive", "heartbeat", "execution"])
def test_an_error_of_redis_before_a_granted_job_begins_refunds_it(
    throttled_site: Site, monkeypatch: pytest.MonkeyPatch, lost_at: str
) -> None:
    """
    RQ's worker loses its connection when it has received a granted job, and tries again or ends. The job's unit and its
    slot are free, the job is at the front of its queue, and no execution of it remains.
    """

    def lose_connection(*_: Any, **__: Any) -> None:
        raise redis.ConnectionError("lost")

    def receive(worker: Any, **_: Any) -> None:
        """RQ calls this when it has received a job. Later errors end the worker."""
        worker.reorder_queues = lambda **_: None
        if lost_at == "heartbeat":
            worker.heartbeat = lose_connection
        elif lost_at == "receive":
            lose_connection()

    monkeypatch.setattr(ThrottledSimpleWorker, "reorder_queues", receive)
    if lost_at == "execution":  # RQ's Redis stores the execution, and its reply is lost
        break_once(monkeypatch, "rq.SimpleWorker.prepare_execution", redis.ConnectionError("lost"), done=True)
    job = throttled_site.queue.enqueue(jobs.plain, "granted", throttle=[*HELD, jobs.SLOT])
    throttled_site.work("other", "work")
    assert throttled_site.limiter.peek(jobs.SLOT).allowed
    assert throttled_site.queue.started_job_registry.get_job_ids() == []
    if lost_at != "receive":
        assert (throttled_site.queue.job_ids, throttled_site.noted) == ([job.id], [])
        monkeypatch.undo()
        throttled_site.work("other", "work")
    assert throttled_site.noted == ["granted"]
    assert throttled_site.queue.intermediate_queue.get_job_ids() == []


@pytest.mark.parametrize("lost_at", ["_admission.clear_deferral", "ThrottledSimpleWorker.prepare_execution"])
def test_a_job_that_waited_and_does_not_begin_continues_its_wait(
    throttled_site: Site, monkeypatch: pytest.MonkeyPatch, lost_at: str
) -> None:
    """
    RQ's Redis fails after a job has waited and was granted. The job stays ahead of later jobs, and its `max_wait` is
    counted from its first denial.
    """
    site, limiter, later = throttled_site, throttled_site.limiter, Job(id="later")
    cancel, held = limiter.cancel, limiter.acquire(jobs.SLOT)

    def cancel_while_paused(decision: Decision) -> None:
        assert limiter.acquire(jobs.SLOT, job=later).position == 0
        limiter.pause(jobs.SLOT, 60)  # so that no job gets the unit
        cancel(decision)

    job = site.queue.enqueue(jobs.plain, "waited", throttle=[jobs.SLOT])
    site.work()
    limiter.release(held)
    granted_at = time.time()
    break_once(monkeypatch, f"throttlekit_rq.{lost_at}", redis.TimeoutError("slow"))
    monkeypatch.setattr(limiter, "cancel", cancel_while_paused)
    site.make_due()
    for _ in range(2):  # RQ ends after some of these errors
        site.work()
    shown = site.fetch(job).meta["throttlekit"]
    assert (shown["deferrals"], shown["since"] < granted_at) == (2, True)
    assert limiter.acquire(jobs.SLOT, job=later).position == 1


def test_a_job_is_returned_without_its_execution_whose_data_has_expired(stock_site: Site) -> None:
    """Of a worker that was without RQ's Redis for minutes, only the entries of the execution are left."""
    job = stock_site.queue.enqueue(jobs.plain)
    execution = _begin(stock_site, job)
    stock_site.connection.delete(execution.key)
    return_taken(job)
    assert (stock_site.queue.job_ids, stock_site.queue.intermediate_queue.get_job_ids()) == ([job.id], [])
    assert stock_site.connection.keys("rq:wip:*") == stock_site.connection.keys("rq:execution*") == []


def test_a_repeated_return_does_not_remove_the_execution_of_another_worker(stock_site: Site) -> None:
    """
    The reply of a call that returns a job is lost, so its worker repeats the call. If another worker runs the job by
    then, and is killed, RQ still finds the job by its execution.
    """
    job = stock_site.queue.enqueue(jobs.plain)
    _begin(stock_site, job)
    return_taken(job)
    _begin(stock_site, stock_site.fetch(job))
    return_taken(job)
    assert stock_site.queue.started_job_registry.get_job_ids() == [job.id]
    assert len(stock_site.fetch(job).get_executions()) == 1
    assert stock_site.queue.job_ids == []


def _begin(site: Site, job: Any) -> Any:
    """Take *job* and store its execution, like a worker that has not begun its body."""
    site.queue.lmove(site.connection, site.queue.key, None)
    return SimpleWorker(["work"], connection=site.connection).prepare_execution(job)


def test_a_worker_that_ends_during_a_check_returns_its_job(
    throttled_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a second SIGTERM, RQ's worker ends at once. The job is at the front of its queue, where it was."""
    throttled_site.shut(jobs.HOURLY)
    break_once(monkeypatch, "throttlekit_rq._worker.deny", SystemExit())
    sent = [throttled_site.queue.enqueue(jobs.plain, throttle=HELD) for _ in range(2)]
    with pytest.raises(SystemExit):
        throttled_site.work()
    assert throttled_site.queue.job_ids == [job.id for job in sent]
    assert throttled_site.queue.intermediate_queue.get_job_ids() == []


def test_a_signal_during_a_refund_ends_the_worker(throttled_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """RQ's Redis fails after a job was granted, and SIGTERM comes while the job is refunded. No worker runs it."""
    site = throttled_site
    cancel = site.limiter.cancel

    def cancel_at_signal(decision: Decision) -> None:
        signal.raise_signal(signal.SIGTERM)
        cancel(decision)

    break_once(monkeypatch, "throttlekit_rq._admission.clear_deferral", redis.ConnectionError("lost"))
    monkeypatch.setattr(site.limiter, "cancel", cancel_at_signal)
    job = site.queue.enqueue(jobs.plain, throttle=[jobs.SLOT])
    site.run(ThrottledSimpleWorker(["work"], connection=site.connection), max_idle_time=3)
    assert (site.queue.job_ids, site.noted) == ([job.id], [])
    assert site.limiter.peek(jobs.SLOT).allowed


@pytest.mark.parametrize("by_plugin", [False, True], ids=["queue", "plugin"])
def test_a_worker_that_an_error_of_redis_ends_returns_its_job(
    throttled_site: Site, monkeypatch: pytest.MonkeyPatch, by_plugin: bool
) -> None:
    """After a failover, RQ's Redis may be read-only for a while. A job with limits only of its worker waits."""
    site = throttled_site
    plugins = [LimitsFor(queue={"work": jobs.HOURLY})] if by_plugin else []
    site.shut(jobs.HOURLY)
    break_once(monkeypatch, "throttlekit_rq._worker.deny", redis.ReadOnlyError("READONLY"))
    with Limiter(site.url, plugins=plugins) as limiter:
        configure(limiter, queues={} if by_plugin else {"work": HELD})
        job = site.queue.enqueue(jobs.plain)
        site.work()
        assert (site.fetch(job).get_status(), site.queue.job_ids, site.noted) == (JobStatus.QUEUED, [job.id], [])
        site.work()
        assert site.fetch(job).get_status() == JobStatus.SCHEDULED


def test_a_job_that_was_woken_before_it_was_put_back_runs(stock_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its worker starts it at once, and not ten seconds later."""
    stock_site.limiter.pause(jobs.LIVELY, 0.1)
    real = throttlekit_rq._worker.deny

    def deny_late(*args: Any, **options: Any) -> None:
        time.sleep(0.6)
        real(*args, **options)

    monkeypatch.setattr(throttlekit_rq._worker, "deny", deny_late)
    stock_site.queue.enqueue(jobs.plain, throttle=[jobs.LIVELY])
    stock_site.run(ThrottledSimpleWorker(["work"], connection=stock_site.connection), max_idle_time=2)
    assert stock_site.noted == ["ran"]


def test_a_woken_job_is_started_again_after_an_error_of_redis(
    stock_site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An outage logs no line for each woken job, and delays it by less than a second."""
    stock_site.limiter.pause(jobs.LIVELY, 0.1)
    break_once(monkeypatch, "throttlekit_rq._holding.wake", redis.ConnectionError("lost"))
    stock_site.queue.enqueue(jobs.plain, throttle=[jobs.LIVELY])
    stock_site.run(ThrottledSimpleWorker(["work"], connection=stock_site.connection), max_idle_time=3)
    assert stock_site.noted == ["ran"]
    assert "could not be started" not in caplog.text
