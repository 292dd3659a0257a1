"""
How a denied message waits in the worker that fetched it, without a cost to others, and what remains after the worker
stops.
"""

from __future__ import annotations

import time
from typing import Any

import dramatiq
import pytest
from dramatiq.middleware import Middleware

from support.dramatiq.helpers import DenyBefore, Recording, Site, working
from support.waiting import wait_until
from throttlekit import Limiter, TokenBucket
from throttlekit_dramatiq import Throttle

EACH = TokenBucket("each", "1000/s", key="{n}")


class Enqueues(Middleware):
    """Records the delay of each enqueue."""

    def __init__(self) -> None:
        self.delays: list[int | None] = []

    def before_enqueue(self, broker: Any, message: Any, delay: int | None) -> None:
        self.delays.append(delay)


def throttled(site: Site, store: Recording, **options: Any) -> Enqueues:
    enqueues = Enqueues()
    site.broker.add_middleware(enqueues)
    site.broker.add_middleware(Throttle(Limiter(store), **options))
    return enqueues


def test_a_denied_message_waits_in_its_worker(site: Site) -> None:
    """The broker gets no request while the message waits: one enqueue, by its sender, and one acknowledgement."""
    store = DenyBefore(3)
    enqueues = throttled(site, store)
    acked: list[Any] = []

    class Acks(Middleware):
        def before_ack(self, broker: Any, message: Any) -> None:
            acked.append(message.args)

    site.broker.add_middleware(Acks())
    job = site.recorder(throttle=EACH)
    for n in range(5):
        job.send(n)
    with site.working():
        site.until_ran(5)
    assert store.denials == 15
    assert enqueues.delays == [None] * 5
    assert sorted(acked) == [(n,) for n in range(5)]


def test_a_message_is_put_back_before_rabbitmq_closes_the_channel(
    rabbit: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    RabbitMQ closes a channel that holds a message for 30 minutes. A message that is held for a long time is replaced by
    a copy.
    """
    monkeypatch.setattr("throttlekit_dramatiq._windows._RabbitWindow.longest", 0.0)
    limiter, limit, enqueues = Limiter(), TokenBucket("paused", "1000/s"), Enqueues()
    rabbit.broker.add_middleware(enqueues)
    rabbit.broker.add_middleware(Throttle(limiter))
    job = rabbit.recorder(throttle=limit)
    limiter.pause(limit, 600)
    for n in range(3):
        job.send(n)
    with rabbit.working():
        wait_until(lambda: len(enqueues.delays) >= 9, description="each message was put back twice")
        limiter.resume(limit)
        rabbit.until_ran(3)
    assert sorted(rabbit.ran) == [0, 1, 2]
    assert {*enqueues.delays} == {None}


def test_a_job_without_limits_makes_no_request_to_the_store(site: Site) -> None:
    """Messages of actors without throttle= carry no option of throttlekit."""
    store = Recording()
    enqueues = throttled(site, store)
    options: list[Any] = []

    class Observer(Middleware):
        def before_process_message(self, broker: Any, message: Any) -> None:
            options.append(message.options.keys() - {"redis_message_id"})

    site.broker.add_middleware(Observer())
    plain = site.recorder()
    for n in range(5):
        plain.send(n)
    with site.working():
        site.until_ran(5)
    assert store.asked == []
    assert enqueues.delays == [None] * 5
    assert options == [set()] * 5


@pytest.mark.parametrize(("usual", "held"), [(1000, 50), (7, 7)])
def test_queues_with_limits_are_polled_often(stub: Site, usual: int, held: int) -> None:
    """
    The consumer of a queue with limits polls every 50 ms for messages, or more often if the user's worker does. Those
    of other queues are not changed.
    """
    throttled(stub, Recording())
    stub.actor(lambda: None, actor_name="held", throttle=TokenBucket("x", "1/s"))
    stub.actor(lambda: None, actor_name="plain", queue_name="plain")
    worker = dramatiq.Worker(stub.broker, worker_threads=2, worker_timeout=usual)
    worker.start()
    try:
        threads = worker.consumers
        wait_until(lambda: all(t.consumer for t in threads.values()), description="all consumers run")
        assert threads[stub.queue].worker_timeout == held
        assert threads["plain"].worker_timeout == threads[f"{stub.queue}.DQ"].worker_timeout == usual
        assert threads["plain"].prefetch == threads[stub.queue].prefetch == 4
    finally:
        worker.stop()


def test_messages_of_a_slow_limit_do_not_stop_those_of_another_limit(site: Site) -> None:
    """Many more messages wait for one limit than Dramatiq prefetches. Another limit of the queue is still used."""
    limiter, slow_limit = Limiter(), TokenBucket("slow", "1000/s")
    site.broker.add_middleware(Throttle(limiter))
    slow = site.actor(lambda n: site.ran.append("slow"), actor_name="slow", throttle=slow_limit)
    fast = site.recorder(throttle=TokenBucket("fast", "20/s", burst=1))
    limiter.pause(slow_limit, 600)
    for n in range(100):
        slow.send(n)
    for n in range(10):
        fast.send(n)
    with site.working():
        site.until_ran(10)
        assert sorted(site.ran) == [*range(10)]
        limiter.resume(slow_limit)
        site.until_ran(110)


def test_an_actor_declared_while_the_worker_runs_is_throttled(site: Site) -> None:
    """A queue that first appears while the worker runs is treated like the others."""
    store = DenyBefore(2)
    throttled(site, store)
    with site.working() as worker:
        late = site.recorder(throttle=EACH)
        late.send(1)
        site.until_ran(1)
        assert worker.consumers[site.queue].worker_timeout == 50
    assert store.denials == 2


def test_a_throttled_actor_declared_late_on_a_running_queue_waits_and_runs(site: Site) -> None:
    """
    If the queue's consumers run already, its messages wait in the delay queue, as punctually as Dramatiq's own delays.
    """
    store = DenyBefore(1)
    throttled(site, store)
    site.actor(lambda: site.ran.append("plain"), actor_name="plain")
    with site.working() as worker:
        wait_until(lambda: all(t.consumer for t in worker.consumers.values()), description="all consumers run")
        late = site.recorder(throttle=EACH)
        late.send(1)
        site.until_ran(1)
    assert (store.denials, store.grants) == (1, 1)


def test_delayed_messages_on_a_queue_with_limits_arrive(site: Site) -> None:
    """A plain `delay=` on a queue with limits arrives when it is due, and is decided then."""
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


def test_join_waits_for_held_messages(stub: Site) -> None:
    """
    `broker.join` and then `worker.join`, or `worker.join` alone, wait for held messages, as tests of users expect.
    """
    throttled(stub, DenyBefore(2, delay=0.1))
    job = stub.recorder(throttle=EACH)
    with stub.working() as worker:
        job.send(1)
        stub.broker.join(stub.queue, timeout=60_000)
        worker.join()
        assert stub.ran == [1]
        job.send(2)
        wait_until(lambda: stub.broker.queues[stub.queue].empty(), description="the worker has the message")
        worker.join()
        assert stub.ran == [1, 2]


def test_a_flush_after_a_worker_was_stopped_removes_all_messages(stub: Site) -> None:
    """
    A flush between two tests of a user removes the messages of a stopped worker, which were put back, so no later
    `join` hangs.
    """
    stub.send_paused(20)
    with working(stub.broker) as worker:
        stub.until_held(worker, 20)
    stub.broker.flush_all()
    stub.broker.join(stub.queue, timeout=1000)
    assert stub.ran == []


def test_no_message_runs_twice_if_a_worker_stops_while_messages_are_due(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A message that is due while the connection is being closed stays in the broker. Each job runs once, in the next
    worker.
    """
    if site.kind == "stub":
        pytest.skip("the stub broker's worker loses messages that are ready to be processed as it stops")

    class Spread(DenyBefore):
        """Jobs are due one after the other, every 50 ms."""

        def _decide(self, request: Any, now_us: int | None) -> Any:
            self.delay += 0.05
            return super()._decide(request, now_us)

    store = Spread(1, delay=0.4)
    throttled(site, store)
    job = site.recorder(throttle=EACH)

    class Linger(Middleware):
        def before_consumer_thread_shutdown(self, broker: Any, thread: Any) -> None:
            """The consumers have stopped. All held messages are due before their consumers are closed."""
            if thread.queue_name == site.queue and store.denials == 40:
                latest = max(answer.retry_us for answer in store.answers) / 1e6 + 0.2
                wait_until(lambda: time.time() > latest, description="all slots have passed")

    site.broker.add_middleware(Linger())
    for n in range(40):
        job.send(n)
    with working(site.broker, 4):
        wait_until(lambda: store.denials == 40, description="all messages wait")
        site.until_ran(3)
    ran = len(site.ran)
    with site.working(threads=4):
        site.until_ran(40)
    assert ran < 40
    assert sorted(site.ran) == list(range(40))
