"""
Bodies that get a 429 on real Celery workers: the key is paused in the fleet, and the task runs again, without a charge.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, chain, chord
from celery.app.task import Context

from support.celery.quiet import QUIET
from support.celery.site import WITHIN, results
from support.waiting import wait_until
from throttlekit import Concurrency, ConfigurationError, Job, Limiter, RateLimited, TokenBucket
from throttlekit._engine.call import Call
from throttlekit._wiring import wiring_of
from throttlekit_celery import install

pytestmark = [pytest.mark.workers, *QUIET]

QUIET_US = 2_000_000


@pytest.mark.parametrize(
    ("kind", "pool"),
    [("redis", "prefork"), ("redis", "threads"), ("redis", "gevent"), ("redis", "solo"), ("rabbitmq", "prefork")],
)
def test_one_429_pauses_its_key_in_the_fleet(make_slots: Any, kind: str, pool: str) -> None:
    """
    After the first 429, at most one further call for each pool slot arrives from tasks that were granted before. Then
    no task calls until the pause is over. The rate resumes without a burst, and no task fails or runs twice. Another
    key continues.
    """
    site, record = make_slots(kind, pool=pool, rate="50/s", burst=50)
    record.partner.be_angry("one", QUIET_US / 1e6, from_call=20)
    for name in ("a", "b"):
        site.start("--concurrency", "4", name=name)
    jobs = [str(number) for number in range(80)]
    sent = [site.send("ask", "one", job) for job in jobs]
    other = [site.send("ask", "other", job) for job in jobs[:20]]
    assert results(sent) == jobs
    assert results(other) == jobs[:20]
    log = record.partner.record_of("one")
    assert sorted(log.answered, key=int) == jobs
    first = log.refused[0].at_us
    assert len(log.refused) == 1 + len(log.between(first, first + QUIET_US)) <= 2 * 4
    after = [call.at_us - first - QUIET_US for call in log.calls if call.at_us > first + QUIET_US]
    assert all(at_us >= number * 20_000 for number, at_us in enumerate(after)), after
    assert len(record.partner.record_of("other").calls) == 20
    assert record.counts()["failures"] == 0
    wait_until(lambda: site.left() == 0 and site.held() == [], description="no message is left")


@pytest.mark.parametrize("task", ["late_ask", "auto_ask"])
def test_a_429_is_no_failure_and_no_retry(make_slots: Any, task: str) -> None:
    """
    A 429 is neither a failure nor a retry, also for a task that is acknowledged late, and for one that retries on every
    exception and has no retry left.
    """
    site, record = make_slots()
    record.partner.be_angry("one", 1, retry_after=1)
    site.start()
    assert site.send(task, "one", "it").get(timeout=WITHIN) == "it"
    assert [call.status for call in record.partner.record_of("one").calls] == [429, 200]
    assert record.counts()["failures"] == 0


def test_a_task_that_waits_after_a_429_is_listed_as_scheduled(make_slots: Any) -> None:
    """`inspect scheduled` lists it with the end of the pause, also if it was never denied."""
    site, record = make_slots()
    record.partner.be_angry("one", 1, retry_after=8)
    site.start()
    result = site.send("ask", "one", "it")
    wait_until(lambda: record.partner.record_of("one").calls, description="the partner was called")
    wait_until(lambda: site.held(), description="the worker holds the task")
    (held,) = site.held()
    assert held["request"]["id"] == result.id
    assert held["eta"] is not None


def test_a_429_is_not_seen_by_chains_and_chords(make_slots: Any) -> None:
    """Chains and chords wait for the result of the last run. No errback is called."""
    site, record = make_slots()
    record.partner.be_angry("one", 1)
    site.start()
    error = site.signature("told_error")
    gather = site.signature("gather").on_error(error)
    first, *header = [site.signature("ask", "one", job) for job in ("0", "1", "2")]
    for each in (first, *header):
        each.set(immutable=True)
    whole = chain(first.on_error(error), chord(header, gather, app=site.app), app=site.app)
    assert whole.apply_async().get(timeout=WITHIN) == "1 2"
    assert record.partner.record_of("one").refused
    assert (record.counts()["failures"], record.counts()["errors told"]) == (0, 0)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_429_while_the_worker_stops_loses_no_task(make_slots: Any, pool: str) -> None:
    """The task was acknowledged when its body began. It is put back into its queue before the worker ends."""
    site, record = make_slots(pool=pool)
    record.partner.be_angry("one", 1)
    first = site.start()
    result = site.send("slow_ask", "one", "it", 3)
    wait_until(lambda: record.events(), description="the task runs")
    first.signal(signal.SIGTERM)
    first.wait(WITHIN)
    assert [call.status for call in record.partner.record_of("one").calls] == [429]
    record.partner.calm_down("one")
    site.start(name="second")
    assert result.get(timeout=WITHIN) == "it"


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("eager", set_as_current=False)
    app.conf.task_always_eager = True
    yield app
    app.close()


def test_eager_tasks_return_their_slots(app: Celery, limiter: Limiter) -> None:
    """Each task returns its slot when its body has ended, including a task within a task."""
    install(app, limiter, eager="wait")
    outer, inner = Concurrency("outer", 1), Concurrency("inner", 1)
    free: list[int] = []

    @app.task(shared=False, throttle=inner)
    def within() -> None:
        free.append(limiter.peek(inner).remaining)

    @app.task(shared=False, throttle=outer)
    def job() -> None:
        within.delay().get(disable_sync_subtasks=False)
        free.extend([limiter.peek(inner).remaining, limiter.peek(outer).remaining])

    for _ in range(2):
        job.delay().get()
    assert free == [0, 1, 0] * 2
    assert limiter.peek(outer).remaining == 1


def test_an_eager_task_whose_wait_fails_does_not_run(
    app: Celery, limiter: Limiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    It fails with the error, as in a worker, and leaves its waitlist. Celery only logs errors of the signal in which the
    task waits.
    """
    install(app, limiter, eager="wait")
    ran: list[str] = []

    @app.task(shared=False, throttle=TokenBucket("keyed", "1/s", key=lambda job: job.kwargs["account"]))
    def keyed() -> None:
        ran.append("keyed")

    assert isinstance(keyed.delay().result, ConfigurationError)

    slow = TokenBucket("slow", "1/hour", burst=1)
    limiter.acquire(slow)

    @app.task(shared=False, throttle=slow)
    def waits() -> None:
        ran.append("waits")

    def interrupt(*_: Any) -> None:
        raise OverflowError

    monkeypatch.setattr("throttlekit_celery._eager._EagerTask._wait", interrupt)
    assert isinstance(waits.delay().result, OverflowError)
    (claim,) = limiter.claims(Call([slow], Job()))
    assert wiring_of(limiter).stores.shared.list_waiting(claim.claim, 1).first == ()
    assert ran == []


@pytest.mark.parametrize("propagates", [True, False])
def test_the_failed_wait_of_an_eager_task_is_not_retried(app: Celery, limiter: Limiter, propagates: bool) -> None:
    """`autoretry_for` concerns errors of the body, and the body has not begun."""
    app.conf.task_eager_propagates = propagates
    install(app, limiter, eager="wait")
    retries: list[int] = []

    def key(_: Job) -> str:
        retries.append(keyed.request.retries)
        raise LookupError("no key")

    @app.task(shared=False, throttle=TokenBucket("keyed", "1/s", key=key), autoretry_for=(Exception,), max_retries=2)
    def keyed() -> None:
        retries.append(-1)

    if propagates:
        with pytest.raises(ConfigurationError):
            keyed.delay()
    else:
        assert isinstance(keyed.delay().result, ConfigurationError)
    assert set(retries) == {0}


@pytest.mark.parametrize("copies", [True, False])
def test_an_eager_task_whose_class_has_a_call_of_its_own_waits(app: Celery, limiter: Limiter, copies: bool) -> None:
    """
    `super().__call__` adds another request to the task: a copy of the first one, or with Celery 5.4, an empty one. The
    task waits anyway, a failed wait ends it, and after a 429, which pauses the limit of `throttle_on_429`, it runs
    again. A direct call within the body does not wait.
    """
    install(app, limiter, eager="wait")
    slots, runs = Concurrency("slots", 1), list[str]()
    partner, other = (TokenBucket(name, "20/s", burst=10) for name in ("partner", "other"))

    class Base(app.Task):  # type: ignore[misc, name-defined]
        abstract = True

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return super().__call__(*args, **kwargs)

        def push_request(self, *args: Any, **kwargs: Any) -> None:
            if copies:
                super().push_request(*args, **kwargs)
            else:
                self.request_stack.push(Context(*args, **kwargs))

    @app.task(shared=False, base=Base, throttle=[slots, partner, other], throttle_on_429=partner)
    def job(depth: int) -> int:
        runs.append("body")
        if len(runs) == 1:
            raise RateLimited(retry_after=0.1)
        return job(depth - 1) if depth else limiter.peek(slots).remaining

    @app.task(shared=False, base=Base, throttle=TokenBucket("keyed", "1/s", key=lambda job: job.kwargs["account"]))
    def keyed() -> None:
        runs.append("keyed")

    assert job.delay(1).get() == 0
    assert limiter.peek(partner).remaining < limiter.peek(other).remaining, "after its pause the bucket is empty"
    assert runs == ["body", "body", "body"]
    assert limiter.peek(slots).remaining == 1
    assert isinstance(keyed.delay().result, ConfigurationError)
    assert "keyed" not in runs
