"""
Dramatiq's own middleware beside Throttle: each works as without throttlekit, and is notified of what it should be.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from typing import Any

import dramatiq
import pytest
from dramatiq.common import current_millis
from dramatiq.generic import GenericActor
from dramatiq.middleware import AgeLimit, AsyncIO, Middleware, TimeLimit, TimeLimitExceeded

from support.dramatiq.helpers import DenyBefore, Recording, Site, dead_letters
from support.waiting import wait_until
from throttlekit import Job, Limiter, RateLimited, TokenBucket, current
from throttlekit_dramatiq import Throttle

BUSY = TokenBucket("busy", "1000/s")


def test_an_expired_message_is_not_charged_and_not_run(site: Site) -> None:
    """A message past its max_age is dead-lettered by AgeLimit, without a request to the store."""
    store = site.throttle(Recording())
    job = site.recorder(throttle=BUSY, max_age=1000)
    message = job.message()
    old = dramatiq.Message(**{**message.asdict(), "message_timestamp": current_millis() - 5000})
    site.broker.enqueue(old)
    job.send()
    with site.working():
        site.until_ran(1)
        wait_until(
            lambda: site.kind == "rabbitmq" or dead_letters(site.broker, site.queue),
            description="the message is dead-lettered",
        )
    assert (site.ran, len(store.asked)) == ([1], 1)


MINUTELY = TokenBucket("minutely", "1/minute", burst=1)


@pytest.mark.parametrize("set_by", ["message", "actor", "AgeLimit"])
@pytest.mark.parametrize("waits_on", ["a waitlist", "a store of the user's own", "a pause by an operator"])
def test_a_message_that_expires_before_its_turn_ends_at_its_expiry(stub: Site, set_by: str, waits_on: str) -> None:
    """AgeLimit dead-letters it at its age, and not at its turn. The next job is not delayed by it."""
    age = {"max_age": 1000}
    if set_by == "AgeLimit":
        ages = AgeLimit(max_age=1000)
        stub.broker.middleware = [ages if isinstance(m, AgeLimit) else m for m in stub.broker.middleware]
    limiter = Limiter(Recording()) if waits_on == "a store of the user's own" else Limiter()
    stub.broker.add_middleware(Throttle(limiter))
    if waits_on == "a pause by an operator":
        limiter.pause(MINUTELY, 600)
    else:
        limiter.acquire(MINUTELY)
    job = stub.recorder(throttle=MINUTELY, **age if set_by == "actor" else {})
    job.send_with_options(**age if set_by == "message" else {})
    with stub.working():
        wait_until(lambda: dead_letters(stub.broker, stub.queue), description="the message is dead-lettered")
    assert stub.ran == []
    limiter.resume(MINUTELY)
    assert limiter.acquire(MINUTELY, job=Job(id="next")).delay <= 60


def test_a_message_that_expires_after_its_turn_runs(stub: Site) -> None:
    """A max_age beyond the wait changes nothing."""
    tenth, limiter = TokenBucket("tenth", "10/s", burst=1), Limiter()
    stub.broker.add_middleware(Throttle(limiter))
    assert limiter.acquire(tenth)
    job = stub.recorder(throttle=tenth, max_age=60_000)
    for _ in range(3):
        job.send()
    with stub.working():
        stub.until_ran(3)


def test_a_message_that_expires_during_a_pause_ends_at_its_expiry(stub: Site) -> None:
    """After a body raises RateLimited, the message waits at most until its max_age."""
    stub.broker.add_middleware(Throttle(Limiter()))

    @stub.actor(throttle=BUSY, max_age=1000)
    def job() -> None:
        stub.ran.append(1)
        raise RateLimited(retry_after=60)

    job.send()
    with stub.working():
        wait_until(lambda: dead_letters(stub.broker, stub.queue), description="the message is dead-lettered")
    assert stub.ran == [1]


def test_max_age_is_ignored_without_age_limit_before_throttle(stub: Site) -> None:
    """Without AgeLimit no message ends at its max_age: it waits for its turn like any other."""
    store = DenyBefore(1, delay=0.05)
    stub.broker.middleware = [m for m in stub.broker.middleware if not isinstance(m, AgeLimit)]
    stub.throttle(store)
    job = stub.recorder(throttle=BUSY)
    job.send_with_options(max_age=1)
    with stub.working():
        stub.until_ran(1)
    assert {request.requester.max_wait_us for request, _ in store.asked} == {None}


@pytest.fixture
def quick_time_limit(stub: Site) -> Iterator[Site]:
    limit = TimeLimit(time_limit=600_000, interval=20)
    stub.broker.middleware = [limit if isinstance(m, TimeLimit) else m for m in stub.broker.middleware]
    stop = threading.Event()
    manager: Any = limit.manager

    def run() -> None:
        while not stop.wait(0.02):
            manager._handle_deadlines()

    thread = threading.Thread(target=run)
    thread.start()
    yield stub
    stop.set()
    thread.join()


def test_time_limit_does_not_count_the_wait(quick_time_limit: Site) -> None:
    """A job that waits for longer than its time limit is completed."""
    stub = quick_time_limit
    store = stub.throttle(DenyBefore(12, delay=0.1))
    job = stub.recorder(throttle=BUSY, time_limit=1000, max_retries=0)
    job.send()
    with stub.working():
        stub.until_ran(1)
    assert store.denials == 12
    assert dead_letters(stub.broker, stub.queue) == []


def test_time_limit_interrupts_the_body(quick_time_limit: Site) -> None:
    """After its denials, a body that exceeds its time limit is interrupted as without throttling."""
    stub = quick_time_limit
    stub.throttle(DenyBefore(2))
    endless = threading.Event()

    @stub.actor(throttle=BUSY, time_limit=100, max_retries=0)
    def job() -> None:
        while not endless.wait(0.005):
            pass

    job.send()
    with stub.working():
        wait_until(lambda: dead_letters(stub.broker, stub.queue), description="the message is dead-lettered")
    assert isinstance(dead_letters(stub.broker, stub.queue)[0]._exception, TimeLimitExceeded)


def requested_buckets(store: Recording) -> set[str]:
    """Return the names of the requested buckets, up to the limit's definition."""
    return {name.rpartition(":")[0] for name in store.names()}


def test_class_based_actors_are_counted_by_their_arguments(site: Site) -> None:
    """A GenericActor's key template is filled from the arguments of `perform`: positional, named and default ones."""
    store = site.throttle(DenyBefore(1))

    class Job(GenericActor):
        class Meta:
            broker = site.broker
            queue_name = site.queue
            throttle = TokenBucket("tenant", "1000/s", key="{tenant}-{plan}")

        def perform(self, tenant: str, plan: str = "free") -> None:
            site.ran.append(tenant)

    actor: Any = Job
    actor.send("a")
    actor.send(tenant="b", plan="paid")
    with site.working():
        site.until_ran(2)
    assert requested_buckets(store) == {"tk1:{tenant:a-free}", "tk1:{tenant:b-paid}"}


@pytest.fixture
def prometheus(monkeypatch: pytest.MonkeyPatch) -> Any:
    from dramatiq.middleware.prometheus import Prometheus

    class UserPrometheus(Prometheus):
        """A subclass with another name, as users have who add their own metrics."""

        forks: Any = ()

    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "")
    return UserPrometheus


def gauge(metrics: Any, name: str) -> float:
    return sum(sample.value for family in getattr(metrics, name).collect() for sample in family.samples)


@pytest.mark.parametrize(
    "position", [{"before": AgeLimit}, {"after": AgeLimit}, {}], ids=["first", "behind AgeLimit", "last"]
)
@pytest.mark.parametrize("end", ["runs", "fails", "is dropped", "is refused"])
def test_jobs_in_progress_return_to_zero(stub: Site, prometheus: Any, position: dict[str, Any], end: str) -> None:
    """Prometheus is before or after Throttle: its gauge is 0 when all jobs have ended, however they ended."""
    metrics = prometheus()
    stub.broker.add_middleware(metrics, **position)
    options: dict[str, Any] = {
        "runs": {},
        "fails": {"max_deferrals": 2},
        "is dropped": {"max_deferrals": 2, "on_waited_too_long": "drop"},
        "is refused": {},
    }[end]
    stub.throttle(DenyBefore(3 if end == "runs" else 10**6), **options)
    stub.broker.emit_after("process_boot")
    limit = TokenBucket("refused", "1/s", key=lambda job: None) if end == "is refused" else BUSY
    job = stub.recorder(throttle=limit)
    job.send()
    done: list[int] = []

    class Observer(Middleware):
        def after_ack(self, broker: Any, message: Any) -> None:
            done.append(1)

        after_nack = after_ack

    stub.broker.add_middleware(Observer())
    with stub.working():
        wait_until(lambda: done, description="a message has ended")
        wait_until(lambda: stub.broker.queues[stub.queue].unfinished_tasks == 0, description="the queue is empty")
    assert stub.ran == ([1] if end == "runs" else [])
    assert gauge(metrics, "inprogress_messages") == 0


@pytest.mark.parametrize("position", [{"before": AgeLimit}, {}], ids=["first", "last"])
@pytest.mark.parametrize("end", ["runs", "fails", "is dropped"])
def test_a_429_counts_as_a_message_and_not_as_an_error(
    stub: Site, prometheus: Any, position: dict[str, Any], end: str
) -> None:
    """
    The number of jobs in progress is 0 when all jobs have ended. An error is counted only if the message finally fails.
    """
    metrics = prometheus()
    stub.broker.add_middleware(metrics, **position)
    options: dict[str, Any] = {"runs": {}, "fails": {}, "is dropped": {"on_waited_too_long": "drop"}}[end]
    stub.broker.add_middleware(Throttle(Limiter(), max_wait=None if end == "runs" else 0, **options))
    stub.broker.emit_after("process_boot")
    job = stub.recorder(first_error=RateLimited(0.05), throttle=BUSY)
    job.send()
    with stub.working():
        stub.until_ran(2 if end == "runs" else 1)
        wait_until(lambda: stub.broker.queues[stub.queue].unfinished_tasks == 0, description="the queue is empty")
    assert gauge(metrics, "inprogress_messages") == 0
    counted = {family.name: family.samples for family in metrics.total_errored_messages.collect()}
    errors = sum(sample.value for samples in counted.values() for sample in samples if sample.name.endswith("_total"))
    assert errors == (1 if end == "fails" else 0)
    assert len(stub.ran) == (2 if end == "runs" else 1)


def test_a_metrics_middleware_that_fails_does_not_start_a_denied_job(stub: Site, prometheus: Any) -> None:
    """Prometheus after Throttle, which was never booted, raises in its hook. The job waits anyway, and runs once."""
    stub.broker.add_middleware(prometheus())
    store = stub.throttle(DenyBefore(2))
    job = stub.recorder(throttle=BUSY)
    job.send()
    with stub.working():
        stub.until_ran(1)
    assert stub.ran == [1]
    assert (store.denials, store.grants) == (2, 1)


def test_a_denial_logs_no_error_if_metrics_are_after_throttle(
    stub: Site, prometheus: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """With booted metrics after Throttle, no denial logs an error."""
    stub.broker.add_middleware(prometheus())
    stub.throttle(DenyBefore(2))
    stub.broker.emit_after("process_boot")
    stub.actor(lambda: stub.ran.append(1), actor_name="job", throttle=BUSY).send()
    with caplog.at_level(logging.INFO), stub.working():
        stub.until_ran(1)
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING] == []


def test_an_async_body_settles_its_own_decision(stub: Site) -> None:
    """An async body runs in the event loop's thread, and finds its own decision there."""
    store = Recording()
    limiter = Limiter(store)
    tokens = TokenBucket("tokens", "100/hour", burst=100, cost=50)
    stub.broker.add_middleware(Throttle(limiter))
    stub.broker.add_middleware(AsyncIO())

    @stub.actor(throttle=tokens)
    async def job() -> None:
        current().settle(1)
        current().settle(3)
        stub.ran.append((await asyncio.to_thread(limiter.peek, tokens, cost=1)).remaining)

    job.send()
    with stub.working():
        stub.until_ran(1)
    assert stub.ran == [97]


def test_a_decision_ends_with_its_job(stub: Site) -> None:
    """A job without limits that the same thread runs next does not find the previous decision."""
    stub.throttle(Recording())

    @stub.actor(throttle=TokenBucket("any", "100/s"))
    def limited() -> None:
        stub.ran.append(current().decision)

    @stub.actor
    def free() -> None:
        stub.ran.append(current().decision)

    with stub.working(threads=1):
        limited.send()
        stub.until_ran(1)
        free.send()
        stub.until_ran(2)
    assert stub.ran[0].allowed
    assert stub.ran[1] is None
