"""No message is lost or runs without a grant if the broker, the store or the limiter itself fails."""

from __future__ import annotations

import contextlib
import socket
from queue import PriorityQueue
from types import SimpleNamespace
from typing import Any

import dramatiq.worker
import pytest
from dramatiq.errors import BrokerError, ConnectionClosed
from dramatiq.middleware import AgeLimit, Middleware

import throttlekit.adapter.admission as admission
from support.dramatiq.helpers import DenyBefore, Recording, Site, dead_letters, left_over, working
from support.hearing import Deferrals
from support.servers.processes import free_port, redis_server
from support.waiting import wait_until
from throttlekit import Limiter, StoreUnavailable, TokenBucket
from throttlekit_dramatiq import Throttle
from throttlekit_dramatiq._holding import Holding
from throttlekit_dramatiq._host import DEFERRAL

EACH = TokenBucket("each", "1000/s", key="{n}")


@pytest.fixture(autouse=True)
def _short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dramatiq.worker, "POST_PROCESS_MESSAGE_RETRY_DELAY_SECS", 0.05)
    monkeypatch.setattr(admission, "_PANIC_DELAY", 0.05)


@pytest.fixture
def _holds_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker may hold no message, so each denied one goes through its delay queue."""
    monkeypatch.setattr("throttlekit_dramatiq._holding._MOST_HELD", 0)
    monkeypatch.setattr("throttlekit_dramatiq._middleware._LEAST_DELAY", 0.02)


def make_actor(site: Site, **options: Any) -> Any:
    return site.recorder(throttle=EACH, max_retries=0, **options)


@pytest.mark.usefixtures("_holds_no_message")
@pytest.mark.parametrize("error", [ConnectionClosed("gone"), BrokerError("odd"), RuntimeError("odd"), KeyError("odd")])
def test_a_broker_that_refuses_the_copy_loses_nothing(
    site: Site, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If enqueueing the copy in the delay queue raises, the original stays until the copy is safe, and runs once."""
    store = site.throttle(DenyBefore(1, delay=0.3))  # longer than a busy machine needs to enqueue the copy
    job = make_actor(site)
    enqueue, refused = site.broker.enqueue, []

    def refusing(message: Any, *, delay: int | None = None) -> Any:
        if delay is not None and len(refused) < 3:
            refused.append(message.message_id)
            raise error
        return enqueue(message, delay=delay)

    job.send(1)
    monkeypatch.setattr(site.broker, "enqueue", refusing)
    with site.working():
        site.until_ran(1)
    assert site.ran == [1]
    assert len(refused) == 3
    assert (store.denials, store.grants) == (1, 1)
    assert dead_letters(site.broker, site.queue) == []


@pytest.mark.usefixtures("_holds_no_message")
def test_the_copy_is_enqueued_once_when_the_ack_fails_after_it(
    redis_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker repeats before_ack if the acknowledgement itself fails. The copy is not enqueued twice."""
    store = redis_site.throttle(DenyBefore(1, delay=0.3))  # longer than a busy machine needs to enqueue the copy
    job = make_actor(redis_site)
    consumer = type(redis_site.broker.consume(redis_site.queue))
    ack, failed = consumer.ack, []

    def failing(self: Any, message: Any) -> None:
        if hasattr(message, DEFERRAL) and len(failed) < 3:
            failed.append(1)
            raise ConnectionClosed("gone")
        ack(self, message)

    monkeypatch.setattr(consumer, "ack", failing)
    job.send(1)
    with redis_site.working():
        redis_site.until_ran(1)
    assert redis_site.ran == [1]
    assert len(failed) == 3
    assert (store.denials, store.grants) == (1, 1)


class Cut(Middleware):
    """Cuts the consumer's connection the first time that a denied message is about to be acknowledged."""

    def __init__(self, until: str) -> None:
        self.until = until
        self.cut = 0

    def before_worker_boot(self, broker: Any, worker: Any) -> None:
        self.worker = worker

    def before_ack(self, broker: Any, message: Any) -> None:
        if self.cut or not hasattr(message, DEFERRAL):
            return
        self.cut += 1
        thread = self.worker.consumers[message.queue_name]
        consumer = thread.consumer
        transport = consumer.connection._impl._transport
        transport._sock.shutdown(socket.SHUT_RDWR)
        if self.until == "noticed":
            wait_until(lambda: not consumer.channel.is_open, description="the consumer has detected the cut")
        elif self.until == "replaced":
            wait_until(lambda: thread.consumer is not consumer, description="the consumer is replaced")


@pytest.mark.usefixtures("_holds_no_message")
@pytest.mark.parametrize("until", ["noticed", "replaced"])
def test_a_message_that_rabbitmq_redelivered_is_not_put_back(
    rabbit: Site, until: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the connection that delivered a denied message is lost, the broker has the message again, and it runs once."""
    monkeypatch.setattr(dramatiq.worker, "CONSUMER_RESTART_DELAY_SECS", 0.8)
    cut = Cut(until)
    rabbit.broker.add_middleware(cut, before=AgeLimit)
    rabbit.throttle(DenyBefore(1))
    job = make_actor(rabbit)
    job.send(1)
    with rabbit.working():
        rabbit.until_ran(1)
    assert cut.cut == 1
    assert rabbit.ran == [1]


@pytest.mark.usefixtures("_holds_no_message")
def test_an_undetected_cut_loses_no_message(rabbit: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Before the loss of a connection is detected, a message can be duplicated, as by Dramatiq itself, but is never lost.
    """
    monkeypatch.setattr(dramatiq.worker, "CONSUMER_RESTART_DELAY_SECS", 0.1)
    rabbit.broker.add_middleware(Cut("at once"), before=AgeLimit)
    rabbit.throttle(DenyBefore(1))
    job = make_actor(rabbit)
    for n in range(4):
        job.send(n)
    with rabbit.working():
        wait_until(lambda: set(rabbit.ran) == set(range(4)), description="all messages have run")
    assert len(rabbit.ran) <= 8


@pytest.mark.parametrize("error", ["the channel", "the connection"])
def test_messages_held_on_a_lost_connection_run_once(rabbit: Site, error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """RabbitMQ delivers the held messages again. They keep their positions, and each of them runs once, in order."""
    monkeypatch.setattr(dramatiq.worker, "CONSUMER_RESTART_DELAY_SECS", 0.1)
    limiter, limit = rabbit.send_paused(40)
    with rabbit.working(threads=1) as worker:
        thread: Any = worker.consumers[rabbit.queue]
        rabbit.until_held(worker, 40)
        consumer = thread.consumer
        if error == "the channel":
            consumer.connection.add_callback_threadsafe(lambda: consumer.channel.basic_ack(10_000))  # an unknown tag
        else:
            consumer.connection._impl._transport._sock.shutdown(socket.SHUT_RDWR)
        wait_until(lambda: thread.consumer is not consumer, description="the consumer is replaced")
        if consumer.connection.is_open:  # Dramatiq does not close it
            consumer.connection.close()
        limiter.resume(limit)
        rabbit.until_ran(40)
    assert rabbit.ran == [*range(40)]


def adopt(thread: Any) -> Holding:
    """Return the holder of the messages of a consumer thread that is not started."""
    holding = Holding(Limiter(), SimpleNamespace(worker_threads=1, consumers={thread.queue_name: thread}))
    holding.adopt(thread)
    return holding


def consumer_thread(site: Site) -> Any:
    """Return a consumer thread of the site's queue that is not started."""
    thread: Any = dramatiq.worker.ConsumerThread(
        broker=site.broker, queue_name=site.queue, prefetch=1, work_queue=PriorityQueue(), worker_timeout=5000
    )
    thread.running = True
    return thread


def consume(thread: Any) -> None:
    """Open the thread's consumer, as the thread would."""
    thread.consumer = thread.broker.consume(queue_name=thread.queue_name, prefetch=1, timeout=5000)


def next_message(thread: Any) -> Any:
    message = wait_until(lambda: next(thread.consumer), description="a message arrives")
    thread.handle_message(message)
    return message


def test_a_message_of_a_lost_connection_is_not_acknowledged_on_the_next_one(rabbit: Site) -> None:
    """
    Two successive connections number their first message 1. A late acknowledgement of the first message does not remove
    the second from RabbitMQ.
    """
    rabbit.broker.add_middleware(Throttle(Limiter()))
    make_actor(rabbit).send(0)
    threads = [consumer_thread(rabbit), consumer_thread(rabbit)]
    messages = list[Any]()
    for thread in threads:
        adopt(thread)
        consume(thread)
        messages.append(next_message(thread))
        if thread is threads[0]:
            thread.consumer.connection.close()  # RabbitMQ gives the message to the next connection
    late, current = messages
    assert int(late._tag) == int(current._tag) == 1
    threads[1].consumer.ack(late)
    assert current._tag in threads[1].consumer.known_tags
    threads[1].consumer.ack(current)
    assert not threads[1].consumer.known_tags
    threads[1].consumer.close()


def test_a_message_woken_on_a_closed_connection_is_not_started(rabbit: Site) -> None:
    """RabbitMQ delivers it again, so running it here would run it twice."""
    rabbit.broker.add_middleware(Throttle(Limiter()))
    make_actor(rabbit).send(0)
    thread = consumer_thread(rabbit)
    holding = adopt(thread)
    consume(thread)
    item = holding.item(next_message(thread))
    assert holding.hold(item)
    thread.work_queue.get_nowait()
    thread.consumer.connection.close()
    holding._start(item.message.message_id, item)
    assert thread.work_queue.empty()


def test_a_connection_lost_while_messages_are_handled_is_an_ordinary_connection_error(rabbit: Site) -> None:
    """Dramatiq logs one line for it, and a traceback at CRITICAL for all other errors."""
    rabbit.broker.add_middleware(Throttle(Limiter()))
    make_actor(rabbit).send(0)
    thread = consumer_thread(rabbit)
    adopt(thread)
    consume(thread)
    next_message(thread)
    thread.consumer.connection._impl._transport._sock.shutdown(socket.SHUT_RDWR)
    with pytest.raises(ConnectionClosed):
        wait_until(
            thread.handle_delayed_messages, description="the consumer has detected the lost connection", timeout=30
        )
    with pytest.raises(ConnectionClosed):
        next(thread.consumer)


def test_no_message_runs_or_fails_while_the_store_is_down(site: Site, redis_base: str) -> None:
    """
    While the store does not answer, jobs wait: no body runs, and there is no retry and no dead letter. They run when
    the store is available again.
    """
    port = free_port()
    seen = Deferrals()
    limiter = Limiter(f"redis://127.0.0.1:{port}/0", plugins=[seen])
    site.broker.add_middleware(Throttle(limiter))
    job = make_actor(site)
    for n in range(3):
        job.send(n)
    with contextlib.ExitStack() as stack:
        with site.working():
            wait_until(lambda: len(seen.events) >= 4, description="each message was deferred, one of them twice")
            assert site.ran == []
            stack.enter_context(redis_server(port=port))
            site.until_ran(3)
        limiter.close()
    assert sorted(site.ran) == [0, 1, 2]
    assert {event.decision.reason for event in seen.events} == {"store unavailable"}
    assert dead_letters(site.broker, site.queue) == []


def test_an_outage_of_the_store_does_not_count_as_a_deferral(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """`max_deferrals` ignores it: a message that may be denied once runs after an outage in between."""
    monkeypatch.setattr("throttlekit.stores.breaker._PAUSE_AFTER_FAILURE", 0.03)
    seen = Deferrals()

    class Flaky(DenyBefore):
        calls = 0

        def _decide(self, request: Any, now_us: int | None) -> Any:
            self.calls += 1
            if 1 < self.calls < 4:
                raise StoreUnavailable("down")
            return super()._decide(request, now_us)

    site.broker.add_middleware(Throttle(Limiter(Flaky(1), plugins=[seen]), max_deferrals=1))
    job = make_actor(site)
    job.send(1)
    with site.working():
        site.until_ran(1)
    assert [event.decision.reason for event in seen.events] == ["exhausted"] + ["store unavailable"] * 2


def test_a_worker_that_stops_puts_unprocessed_messages_back(redis_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Messages that were fetched and not processed are put back when the worker stops. None stays with the stopped worker.
    """
    broker = redis_site.broker
    broker.add_middleware(Throttle(Limiter(Recording())))
    job = make_actor(redis_site)
    for n in range(50):
        job.send(n)
    handle, handled = dramatiq.worker.ConsumerThread.handle_message, []

    def handle_one(thread: Any, message: Any) -> None:
        handle(thread, message)
        handled.append(message)
        thread.stop()

    monkeypatch.setattr(dramatiq.worker, "QUEUE_PREFETCH", 50)
    monkeypatch.setattr(dramatiq.worker.ConsumerThread, "handle_message", handle_one)
    with working(broker, threads=1):
        wait_until(lambda: redis_site.ran, description="the first message has run")
    assert len(handled) == 1
    assert left_over(broker, redis_site.queue) == 49
    assert list(broker.client.scan_iter(f"{broker.namespace}:__acks__.*")) == []


def test_messages_that_cannot_be_decoded_stop_no_other(redis_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of them in one fetch: Dramatiq restarts the consumer after the first, and the next consumer reads on."""
    monkeypatch.setattr(dramatiq.worker, "CONSUMER_RESTART_DELAY_SECS", 0.05)
    broker = redis_site.broker
    broker.add_middleware(Throttle(Limiter(Recording())))
    job = make_actor(redis_site)
    for id in ("one", "two"):
        broker.do_enqueue(redis_site.queue, id, b"garbage")
    job.send(1)
    with working(broker, threads=1):
        wait_until(lambda: redis_site.ran == [1], description="the other message has run")


def test_a_second_message_with_the_same_id_runs_too(site: Site) -> None:
    """A message that is sent twice waits twice: the second copy is put back until the first has run."""
    limiter, limit = Limiter(), TokenBucket("paused", "1000/s")
    site.broker.add_middleware(Throttle(limiter))
    job = site.recorder(throttle=limit, max_retries=0)
    limiter.pause(limit, 600)
    message = job.message(1)
    site.broker.enqueue(message)
    site.broker.enqueue(message)
    with site.working() as worker:
        wait_until(
            lambda: worker.consumers[f"{site.queue}.DQ"].delay_queue.qsize(),
            description="one message is in the delay queue",
        )
        limiter.resume(limit)
        site.until_ran(2)
    assert site.ran == [1, 1]


def test_a_flush_of_a_queue_on_redis_removes_held_messages(redis_site: Site) -> None:
    """Messages that a worker holds belong to the queue. They do not run when the limit admits again."""
    limiter, limit = redis_site.send_paused(20)
    with redis_site.working() as worker:
        redis_site.until_held(worker, 20)
        redis_site.broker.flush(redis_site.queue)
        redis_site.broker.get_actor("job").send(-1)
        redis_site.until_held(worker, 21)
        limiter.resume(limit)
        redis_site.until_held(worker, 0)
        redis_site.until_ran(1)
    assert redis_site.ran == [-1]


def test_a_message_that_belongs_to_another_worker_is_not_started(redis_site: Site) -> None:
    """
    Dramatiq considers a process without a heartbeat for one minute dead, and gives its messages to another process.
    They do not run twice.
    """
    limiter, limit = redis_site.send_paused(20)
    client, broker = redis_site.broker.client, redis_site.broker
    with redis_site.working() as worker:
        redis_site.until_held(worker, 20)
        fetched = f"{broker.namespace}:__acks__.{broker.broker_id}.{redis_site.queue}"
        other = f"{broker.namespace}:__acks__.another.{redis_site.queue}"
        client.rename(fetched, other)
        limiter.resume(limit)
        redis_site.until_held(worker, 0)
        assert redis_site.ran == []
        for id_ in client.smembers(other):  # as Dramatiq's maintenance does
            client.rpush(f"{broker.namespace}:{redis_site.queue}", id_)
        client.delete(other)
        redis_site.until_ran(20)
    assert sorted(redis_site.ran) == [*range(20)]


def test_a_worker_that_holds_messages_keeps_its_heartbeat(redis_site: Site) -> None:
    """
    A worker that only holds messages keeps its heartbeat: otherwise Dramatiq would give its messages to other workers.
    """
    site = redis_site
    limiter, limit = site.send_paused(20)
    client, heartbeats = site.broker.client, f"{site.broker.namespace}:__heartbeats__"
    with site.working() as worker:
        site.until_held(worker, 20)
        before = client.zscore(heartbeats, site.broker.broker_id)
        wait_until(
            lambda: client.zscore(heartbeats, site.broker.broker_id) > before, description="there is another heartbeat"
        )
        limiter.resume(limit)
        site.until_ran(20)


def test_messages_of_a_custom_broker_run_without_a_check_of_their_owner(
    redis_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Held messages of a custom broker run, although the set in which Dramatiq keeps fetched messages has none of them.
    """
    monkeypatch.setattr(redis_site.broker.client, "sismember", lambda *_: 0)
    limiter, limit = redis_site.send_paused(20)
    with redis_site.working() as worker:
        redis_site.until_held(worker, 20)
        limiter.resume(limit)
        redis_site.until_ran(20)
