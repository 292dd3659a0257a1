"""How a denied job waits: in its own slot, in place if that is short, and punctually."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import dramatiq.worker
import pytest
import redis
from dramatiq.middleware import Middleware

import throttlekit_dramatiq._options as adapter
from support.dramatiq.helpers import DenyBefore, Recording, Site, left_over, working
from support.waiting import wait_until
from throttlekit import Limiter, TokenBucket
from throttlekit._core.verdict import Reason
from throttlekit_dramatiq import Throttle

EACH = TokenBucket("each", "1000/s", key="{n}")


class Enqueues(Middleware):
    """Remembers each enqueue with its delay."""

    def __init__(self) -> None:
        self.delays: list[int | None] = []

    def before_enqueue(self, broker: Any, message: Any, delay: int | None) -> None:
        self.delays.append(delay)


def throttled(site: Site, store: Recording, **options: Any) -> Enqueues:
    enqueues = Enqueues()
    site.broker.add_middleware(enqueues)
    site.broker.add_middleware(Throttle(Limiter(store), **options))
    return enqueues


def test_a_capped_delay_comes_back_early_and_keeps_its_place(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn an hour off is waited for in hops, none of which counts; each return finds the job's place."""
    monkeypatch.setattr(adapter, "LONGEST_HOLD", 0.05)
    store = Recording()
    enqueues = throttled(site, store, max_deferrals=1, when_over="drop")

    @site.actor(throttle=TokenBucket("hourly", "1/hour", burst=1))
    def job() -> None:
        site.ran.append(1)

    job.send()
    with site.working():
        site.until_ran(1)
        job.send()
        wait_until(lambda: store.denials >= 5, description="it has come back four times")
        claim = store.asked[0][0].claims[0]
        store.reset(claim.names)
        site.until_ran(2)
    denied = [verdict for verdict in store.verdicts if not verdict.allowed]
    assert [verdict.reason for verdict in denied] == [Reason.EXHAUSTED] + [Reason.EARLY] * (len(denied) - 1)
    assert len({verdict.due_us for verdict in denied}) == 1
    assert {delay for delay in enqueues.delays if delay} == {50}
    assert site.ran == [1, 1]


def test_a_message_goes_back_to_its_broker_before_that_takes_it_back(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RabbitMQ closes a channel that holds a message for too long: a copy takes its place, once it is held for long."""
    monkeypatch.setattr("throttlekit_dramatiq._middleware.LONGEST_HOLD", 0.0)
    enqueues = throttled(site, DenyBefore(3, delay=0.3))

    @site.actor(throttle=TokenBucket("wide", "1000/s"))
    def job() -> None:
        site.ran.append(1)

    job.send()
    with site.working():
        site.until_ran(1)
    assert len([delay for delay in enqueues.delays if delay]) >= 3, "and once more, if it came back early"


def test_early_returns_do_not_move_those_behind(stub: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often those in line come back early, the line stays as long as there are jobs in it."""
    monkeypatch.setattr(adapter, "LONGEST_HOLD", 0.03)
    store = Recording()
    throttled(stub, store, max_inline_wait=0)
    limit = TokenBucket("slow", "5/s", burst=1)

    @stub.actor(throttle=limit)
    def job() -> None:
        stub.ran.append(1)

    for _ in range(5):
        job.send()
    with stub.working():
        stub.until_ran(5)
    assert sum(verdict.reason is Reason.EARLY for verdict in store.verdicts) >= 2
    numbers = {place.number for verdict in store.verdicts for place in verdict.places if place is not None}
    assert len(numbers) <= 10  # a job that is set aside, on a busy machine, may get another


def test_a_short_wait_does_not_go_through_the_broker(site: Site) -> None:
    """A job that can run in less than max_inline_wait is slept for in place: one enqueue, its own sending."""
    store = DenyBefore(1, delay=0.02)
    enqueues = throttled(site, store)

    @site.actor(throttle=EACH)
    def job(n: int) -> None:
        site.ran.append(n)

    with site.working():
        for n in range(3):
            job.send(n)
            site.until_ran(n + 1)
    assert store.denials == 3
    assert enqueues.delays == [None] * 3


def test_no_more_than_a_quarter_of_the_threads_wait_in_place(stub: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """With eight threads two sleep at once; whoever comes then goes through the broker."""
    asleep: list[int] = []
    most: list[int] = []
    woken = threading.Event()

    def sleep(seconds: float) -> None:
        asleep.append(1)
        most.append(len(asleep))
        woken.wait(60)
        asleep.pop()

    monkeypatch.setattr("throttlekit._engine.inline.time", SimpleNamespace(sleep=sleep))
    store = DenyBefore(1, delay=0.04)
    enqueues = throttled(stub, store)

    @stub.actor(throttle=EACH)
    def job(n: int) -> None:
        stub.ran.append(n)

    for n in range(8):
        job.send(n)
    with stub.working(threads=8):
        stub.until_ran(6)
        woken.set()
        stub.until_ran(8)
    assert max(most) == 2
    assert len([delay for delay in enqueues.delays if delay]) == 6


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_small_worker_may_wait_with_one_thread(stub: Site, threads: int) -> None:
    """A quarter of three threads is still one."""
    store = DenyBefore(1, delay=0.02)
    enqueues = throttled(stub, store)
    stub.actor(lambda: stub.ran.append(1), actor_name="job", throttle=TokenBucket("one", "10/s")).send()
    with stub.working(threads=threads):
        stub.until_ran(1)
    assert enqueues.delays == [None]


def test_max_inline_wait_of_0_waits_nowhere(stub: Site) -> None:
    """max_inline_wait=0: every denial goes through the broker."""
    enqueues = throttled(stub, DenyBefore(1, delay=0.001), max_inline_wait=0)
    stub.actor(lambda: stub.ran.append(1), actor_name="job", throttle=TokenBucket("one", "10/s")).send()
    with stub.working():
        stub.until_ran(1)
    assert len(enqueues.delays) >= 2


def test_a_job_that_names_no_limit_never_reaches_the_store(site: Site) -> None:
    """Actors without throttle= cost the store nothing, and carry nothing of ours."""
    store = Recording()
    enqueues = throttled(site, store)
    options: list[Any] = []

    class Look(Middleware):
        def before_process_message(self, broker: Any, message: Any) -> None:
            options.append(message.options.keys() - {"redis_message_id"})

    site.broker.add_middleware(Look())

    @site.actor
    def plain(n: int) -> None:
        site.ran.append(n)

    for n in range(5):
        plain.send(n)
    with site.working():
        site.until_ran(5)
    assert store.asked == []
    assert enqueues.delays == [None] * 5
    assert options == [set()] * 5


def test_throttled_delay_queues_are_polled_often_and_held_whole(stub: Site) -> None:
    """A throttled queue's delay queue is polled faster and held whole; those of other queues stay as they were."""
    broker = stub.broker
    throttled(stub, Recording())
    stub.actor(lambda: None, actor_name="held", throttle=TokenBucket("x", "1/s"))
    stub.actor(lambda: None, actor_name="plain", queue_name="plain")
    worker = dramatiq.Worker(broker, worker_threads=2)
    worker.start()
    try:
        threads = worker.consumers
        wait_until(lambda: all(t.consumer for t in threads.values()), description="all consume")
        assert threads[f"{stub.queue}.DQ"].worker_timeout <= 100
        assert threads[f"{stub.queue}.DQ"].prefetch == 65_535
        assert threads["plain.DQ"].worker_timeout == 1000
        assert threads["plain.DQ"].prefetch <= 2000
        assert threads["plain"].prefetch == threads[stub.queue].prefetch == 4
    finally:
        worker.stop()


@pytest.mark.xfail(
    strict=True,
    reason="the consumer of a delay queue cannot see messages beyond its window: waiting needs a new mechanism",
)
def test_messages_of_a_slow_limit_do_not_stop_those_of_another(rabbit: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """More messages wait for one limit than a consumer of RabbitMQ may hold: another limit of the queue is used."""
    monkeypatch.setattr(dramatiq.worker, "DELAY_QUEUE_PREFETCH", 10)
    monkeypatch.setattr("throttlekit_dramatiq._delayed_consumer._PREFETCH", 10)
    store = Recording()
    throttled(rabbit, store, max_inline_wait=0)
    slow = rabbit.actor(lambda n: None, actor_name="slow", throttle=TokenBucket("slow", "1/h", burst=1))

    @rabbit.actor(throttle=TokenBucket("fast", "20/s", burst=1))
    def fast(n: int) -> None:
        rabbit.ran.append(n)

    for n in range(30):
        slow.send(n)
    with working(rabbit.broker):
        wait_until(lambda: store.denials >= 29, description="all but one wait for the slow limit")
        for n in range(20):
            fast.send(n)
        wait_until(lambda: len(rabbit.ran) == 20, description="all of the other limit ran", timeout=5)


def test_a_shorter_poll_of_the_users_own_is_kept(stub: Site) -> None:
    """Whoever polls faster than we would keeps on doing so."""
    throttled(stub, Recording())
    stub.actor(lambda: None, actor_name="held", throttle=TokenBucket("x", "1/s"))
    worker = dramatiq.Worker(stub.broker, worker_threads=2, worker_timeout=7)
    worker.start()
    try:
        wait_until(lambda: worker.consumers[f"{stub.queue}.DQ"].consumer, description="it consumes")
        assert worker.consumers[f"{stub.queue}.DQ"].worker_timeout == 7
    finally:
        worker.stop()


def test_an_actor_declared_late_is_throttled_and_punctual(site: Site) -> None:
    """A queue that first appears while the worker runs is treated like the rest."""
    store = DenyBefore(2)
    throttled(site, store, max_inline_wait=0)
    with site.working() as worker:

        @site.actor(throttle=EACH)
        def late(n: int) -> None:
            site.ran.append(n)

        late.send(1)
        site.until_ran(1)
        assert worker.consumers[f"{site.queue}.DQ"].prefetch == 65_535
    assert store.denials == 2


def test_a_throttled_actor_declared_late_on_a_running_queue_still_waits_and_runs(site: Site) -> None:
    """If the queue's consumers run already, delays are as punctual as Dramatiq's own; nothing else is lost."""
    store = DenyBefore(1)
    throttled(site, store, max_inline_wait=0)
    site.actor(lambda: site.ran.append("plain"), actor_name="plain")
    with site.working() as worker:
        wait_until(lambda: all(t.consumer for t in worker.consumers.values()), description="all consume")

        @site.actor(throttle=EACH)
        def late(n: int) -> None:
            site.ran.append(n)

        late.send(1)
        site.until_ran(1)
    assert (store.denials, store.grants) == (1, 1)


def test_delayed_messages_without_a_limit_on_a_throttled_queue_still_arrive(site: Site) -> None:
    """A plain `delay=` on a throttled queue comes when it is due, and is decided then."""
    store = Recording()
    throttled(site, store)

    @site.actor(throttle=EACH)
    def job(n: int) -> None:
        site.ran.append(time.monotonic())

    began = time.monotonic()
    job.send_with_options(args=(1,), delay=300)
    with site.working():
        site.until_ran(1)
    assert site.ran[0] - began >= 0.29
    assert store.grants == 1


@pytest.mark.parametrize("error", [redis.ConnectionError("gone"), RuntimeError("odd")], ids=["connection", "odd"])
def test_a_release_that_the_broker_refuses_is_not_forgotten(
    redis_site: Site, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A due message whose way back to the queue fails is held, or given back, and runs once the broker answers."""
    monkeypatch.setattr(dramatiq.worker, "CONSUMER_RESTART_DELAY_SECS", 0.1)
    site = redis_site
    throttled(site, Recording())

    @site.actor(throttle=EACH)
    def job(n: int) -> None:
        site.ran.append(n)

    for n in range(3):
        job.send_with_options(args=(n,), delay=50)
    enqueue, refused = site.broker.enqueue, []

    def refusing(message: Any, *, delay: int | None = None) -> Any:
        if len(refused) < 2:
            refused.append(1)
            raise error
        return enqueue(message, delay=delay)

    monkeypatch.setattr(site.broker, "enqueue", refusing)
    with working(site.broker):
        site.until_ran(3)
    assert sorted(site.ran) == [0, 1, 2]
    assert len(refused) == 2
    assert left_over(site.broker, site.queue) == 0


def test_jobs_that_wait_run_in_the_order_of_their_slots(site: Site) -> None:
    """First in, first out, but for those whose slots are as close as the delivery is late."""
    if site.kind == "stub":
        pytest.skip("before Dramatiq 2.2 its worker does not keep the order of what comes from one queue")
    store = Recording()
    throttled(site, store, max_inline_wait=0)

    @site.actor(throttle=TokenBucket("steady", "20/s", burst=1))
    def job(n: int) -> None:
        site.ran.append(n)

    for n in range(12):
        job.send(n)
    with site.working(threads=1):
        site.until_ran(12)
    assert sorted(site.ran) == list(range(12))
    assert sum(abs(place - n) for place, n in enumerate(site.ran)) <= 24  # by chance it would be 48


def test_a_worker_with_held_messages_stops_and_loses_none(site: Site) -> None:
    """Stopping a worker while jobs wait leaves every one of them in the broker, for the next."""
    if site.kind == "stub":
        pytest.skip("the stub broker's consumers keep what they hold")
    store = DenyBefore(1, delay=3.0)
    throttled(site, store, max_inline_wait=0)

    @site.actor(throttle=EACH)
    def job(n: int) -> None:
        site.ran.append(n)

    for n in range(20):
        job.send(n)
    with working(site.broker, 4):
        wait_until(lambda: store.denials == 20, description="all wait")
    assert site.ran == []
    with site.working():
        site.until_ran(20)
    assert sorted(site.ran) == list(range(20))


def test_a_worker_that_stops_while_messages_fall_due_doubles_none(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is due while the connection is being closed stays where it is: each job runs once, in the next worker."""
    if site.kind == "stub":
        pytest.skip("the stub broker's consumers keep what they hold")

    class Spread(DenyBefore):
        """One job after the other falls due, every 50 ms."""

        def _decide(self, request: Any, now_us: int | None) -> Any:
            self.delay += 0.05
            return super()._decide(request, now_us)

    store = Spread(1, delay=0.4)
    throttled(site, store, max_inline_wait=0)

    @site.actor(throttle=EACH)
    def job(n: int) -> None:
        site.ran.append(n)

    class Linger(Middleware):
        def before_consumer_thread_shutdown(self, broker: Any, thread: Any) -> None:
            """The consumers have stopped; the slots of what they hold come and go before they are closed."""
            if thread.queue_name == site.queue and store.denials == 40:
                latest = max(verdict.due_us for verdict in store.verdicts) / 1e6 + 0.2
                wait_until(lambda: time.time() > latest, description="all slots have passed")

    site.broker.add_middleware(Linger())
    for n in range(40):
        job.send(n)
    with working(site.broker, 4):
        wait_until(lambda: store.denials == 40, description="all wait")
        site.until_ran(3)
    ran = len(site.ran)
    with site.working(threads=4):
        site.until_ran(40)
    assert ran < 40
    assert sorted(site.ran) == list(range(40))
