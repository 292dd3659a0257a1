"""Nothing is lost, nothing runs ungranted: whether the broker fails, the store, or the limiter itself."""

from __future__ import annotations

import contextlib
import socket
import time
from queue import PriorityQueue
from types import SimpleNamespace
from typing import Any

import dramatiq.worker
import pytest
from dramatiq.errors import BrokerError, ConnectionClosed
from dramatiq.middleware import AgeLimit, Middleware

import throttlekit.adapter.admission as admission
from support.dramatiq.helpers import DenyBefore, Recording, Site, dead_letters, working
from support.servers.processes import free_port, redis_server
from support.waiting import wait_until
from throttlekit import Limiter, StoreUnavailable, TokenBucket, hookimpl
from throttlekit.hookspecs import Deferred
from throttlekit_dramatiq import DeferFailed, Throttle
from throttlekit_dramatiq._delayed_consumer import DelayedConsumers
from throttlekit_dramatiq._host import DEFERRAL

EACH = TokenBucket("each", "1000/s", key="{n}")


class Deferrals:
    """A plugin that remembers each deferral."""

    def __init__(self) -> None:
        self.events: list[Deferred] = []

    @hookimpl
    def throttlekit_deferred(self, event: Deferred) -> None:
        self.events.append(event)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dramatiq.worker, "POST_PROCESS_MESSAGE_RETRY_DELAY_SECS", 0.05)
    monkeypatch.setattr(admission, "_PANIC_DELAY", 0.05)


def runner(site: Site, **options: Any) -> Any:
    @site.actor(throttle=EACH, max_retries=0, **options)
    def job(n: int) -> None:
        site.ran.append(n)

    return job


@pytest.mark.parametrize("error", [ConnectionClosed("gone"), BrokerError("odd"), RuntimeError("odd"), KeyError("odd")])
def test_a_broker_that_refuses_the_copy_loses_nothing(
    site: Site, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the delay queue's enqueue raises, the original stays until the copy is safe, and runs once."""
    store = DenyBefore(1)
    site.broker.add_middleware(Throttle(Limiter(store), max_inline_wait=0))
    job = runner(site)
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


def test_the_copy_is_enqueued_once_when_the_ack_fails_after_it(
    redis_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker repeats before_ack when the acknowledgement itself fails: the copy is not put back twice."""
    site = redis_site
    store = DenyBefore(1)
    site.broker.add_middleware(Throttle(Limiter(store), max_inline_wait=0))
    job = runner(site)
    consumer = type(site.broker.consume(site.queue))
    ack, failed = consumer.ack, []

    def failing(self: Any, message: Any) -> None:
        if hasattr(message, DEFERRAL) and len(failed) < 3:
            failed.append(1)
            raise ConnectionClosed("gone")
        ack(self, message)

    monkeypatch.setattr(consumer, "ack", failing)
    job.send(1)
    with site.working():
        site.until_ran(1)
    assert site.ran == [1]
    assert len(failed) == 3
    assert (store.denials, store.grants) == (1, 1)


def test_defer_failed_is_what_the_worker_waits_and_repeats_for() -> None:
    """It leaves the hook as a MiddlewareError and is caught as a broker's connection error."""
    assert {"MiddlewareError", "BrokerError"} <= {kind.__name__ for kind in DeferFailed.__mro__}


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
            wait_until(lambda: not consumer.channel.is_open, description="the consumer knows that it is cut off")
        elif self.until == "replaced":
            wait_until(lambda: thread.consumer is not consumer, description="the consumer is replaced")


@pytest.mark.parametrize("until", ["noticed", "replaced"])
def test_a_message_that_rabbitmq_gave_to_somebody_else_is_not_put_back(
    rabbit: Site, until: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the connection that delivered a denied message is lost, the broker has it again: it runs once."""
    monkeypatch.setattr(dramatiq.worker, "CONSUMER_RESTART_DELAY_SECS", 0.8)
    store = DenyBefore(1)
    cut = Cut(until)
    rabbit.broker.add_middleware(cut, before=AgeLimit)
    rabbit.broker.add_middleware(Throttle(Limiter(store), max_inline_wait=0))
    job = runner(rabbit)
    job.send(1)
    with rabbit.working():
        rabbit.until_ran(1)
    assert cut.cut == 1
    assert rabbit.ran == [1]


def test_a_cut_that_nobody_has_noticed_yet_loses_nothing(rabbit: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the instant before a lost connection shows, a message may be doubled, as by Dramatiq itself, never lost."""
    monkeypatch.setattr(dramatiq.worker, "CONSUMER_RESTART_DELAY_SECS", 0.1)
    store = DenyBefore(1)
    rabbit.broker.add_middleware(Cut("at once"), before=AgeLimit)
    rabbit.broker.add_middleware(Throttle(Limiter(store), max_inline_wait=0))
    job = runner(rabbit)
    for n in range(4):
        job.send(n)
    with rabbit.working():
        wait_until(lambda: set(rabbit.ran) == set(range(4)), description="all have run")
    assert len(rabbit.ran) <= 8


def test_what_came_on_a_lost_connection_acknowledges_nothing_on_the_next(rabbit: Site) -> None:
    """Both call their first message 1: the first's, done late, does not take the second's out of RabbitMQ."""
    rabbit.broker.add_middleware(Throttle(Limiter()))
    runner(rabbit).send(0)
    threads, messages = list[Any](), list[Any]()
    for _ in range(2):
        consumer: Any = rabbit.broker.consume(rabbit.queue, prefetch=1, timeout=5000)
        thread = SimpleNamespace(
            consumer=consumer,
            queue_name=rabbit.queue,
            handle_message=messages.append,
            post_process_message=consumer.ack,
            requeue_messages=None,
        )
        DelayedConsumers().adopt(thread)
        threads.append(thread)
        thread.handle_message(next(consumer))
        if len(threads) == 1:
            consumer.connection.close()  # RabbitMQ gives the message to the next
    late, current = messages
    assert int(late._tag) == int(current._tag) == 1
    threads[1].consumer.ack(late)
    assert current._tag in threads[1].consumer.known_tags
    threads[1].consumer.ack(current)
    assert not threads[1].consumer.known_tags
    threads[1].consumer.close()


@pytest.fixture
def delayed(rabbit: Site) -> Any:
    """The consumer thread of a delay queue on RabbitMQ, not started, that holds one message."""
    broker: Any = rabbit.broker
    broker.add_middleware(Throttle(Limiter()))
    runner(rabbit).send_with_options(args=(0,), delay=1)
    name = f"{rabbit.queue}.DQ"
    thread: Any = dramatiq.worker.ConsumerThread(
        broker=broker, queue_name=name, prefetch=1, work_queue=PriorityQueue(), worker_timeout=100
    )
    thread.consumer, thread.running = broker.consume(name, prefetch=1, timeout=5000), True
    DelayedConsumers().adopt(thread)
    thread.handle_message(next(thread.consumer))
    return thread


def test_what_waits_on_a_closed_connection_is_not_handed_over(delayed: Any) -> None:
    """RabbitMQ delivers it again: to run it here as well would run it twice."""
    (message,) = delayed.delay_queue.messages()
    ended: list[Any] = []
    delayed.post_process_message = ended.append
    delayed.consumer.connection.close()
    wait_until(lambda: time.time() * 1000 > message.options["eta"], description="the message is due")
    with pytest.raises(ConnectionClosed):
        delayed.handle_delayed_messages()
    assert not ended
    assert delayed.delay_queue.messages() == [message]


def test_a_connection_lost_during_a_turn_is_an_ordinary_connection_error(
    delayed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dramatiq logs one line for it, and a traceback at CRITICAL for all other errors."""
    (message,) = delayed.delay_queue.messages()
    monkeypatch.setattr("throttlekit_dramatiq._delayed_consumer.current_millis", lambda: message.options["eta"] - 10)
    delayed.consumer.connection._impl._transport._sock.shutdown(socket.SHUT_RDWR)
    with pytest.raises(ConnectionClosed):
        wait_until(delayed.handle_delayed_messages, description="the consumer notices it", timeout=30)


def test_a_store_that_is_down_runs_nothing_and_fails_nothing(site: Site, redis_base: str) -> None:
    """While the store does not answer, jobs wait: no body, no retry, no dead letter; they run when it is back."""
    port = free_port()
    seen = Deferrals()
    limiter = Limiter(f"redis://127.0.0.1:{port}/0", plugins=[seen])
    site.broker.add_middleware(Throttle(limiter))
    job = runner(site)
    for n in range(3):
        job.send(n)
    with contextlib.ExitStack() as stack:
        with site.working():
            wait_until(lambda: len(seen.events) >= 4, description="each was deferred, one twice")
            assert site.ran == []
            stack.enter_context(redis_server(port=port))
            site.until_ran(3)
        limiter.close()
    assert sorted(site.ran) == [0, 1, 2]
    assert {event.decision.reason for event in seen.events} == {"store unavailable"}
    assert dead_letters(site.broker, site.queue) == []


def test_a_store_that_dies_in_the_midst_of_a_run_and_comes_back(stub: Site) -> None:
    """A Redis that is stopped and started between jobs delays them and loses none; none runs ungranted."""
    port = free_port()
    seen = Deferrals()
    limiter = Limiter(f"redis://127.0.0.1:{port}/0", plugins=[seen])
    stub.broker.add_middleware(Throttle(limiter, max_inline_wait=0))
    steady = TokenBucket("steady", "20/s", burst=1)

    @stub.actor(throttle=steady, max_retries=0)
    def job(n: int) -> None:
        stub.ran.append(n)

    def down() -> bool:
        return any(event.decision.reason == "store unavailable" for event in seen.events)

    with contextlib.ExitStack() as stack:
        with stub.working():
            with redis_server(port=port):
                for n in range(10):
                    job.send(n)
                stub.until_ran(3)
            wait_until(down, description="the store is missed")
            before = len(seen.events)
            wait_until(lambda: len(seen.events) >= before + 10, description="all wait, and what was granted has run")
            ran, before = len(stub.ran), len(seen.events)
            wait_until(lambda: len(seen.events) >= before + 3, description="they wait on")
            assert len(stub.ran) == ran
            stack.enter_context(redis_server(port=port))
            stub.until_ran(10)
        limiter.close()
    assert sorted(stub.ran) == list(range(10))


def test_a_job_keeps_its_ticket_while_the_store_is_down(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A denial by a missing store is no denial by the limit: same place, same count, same first instant."""
    monkeypatch.setattr("throttlekit._engine.breaker._PAUSE_AFTER_FAILURE", 0.03)
    tickets: list[Any] = []

    class Watch:
        @hookimpl
        def throttlekit_deferred(self, event: Deferred) -> None:
            tickets.append(event.decision.ticket)

    class Flaky(DenyBefore):
        calls = 0

        def _decide(self, request: Any, now_us: int | None) -> Any:
            self.calls += 1
            if 1 < self.calls < 4:
                raise StoreUnavailable("down")
            return super()._decide(request, now_us)

    site.broker.add_middleware(Throttle(Limiter(Flaky(1), plugins=[Watch()]), max_inline_wait=0))
    job = runner(site)
    job.send(1)
    with site.working():
        site.until_ran(1)
    assert len(tickets) >= 3
    assert tickets[0]["n"] == 1
    assert all(ticket == tickets[0] for ticket in tickets)


@pytest.mark.parametrize("error", [RuntimeError("bug"), TypeError("bug"), OSError("bug")])
def test_an_error_in_the_limiter_defers_the_job(site: Site, error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """What nobody foresaw is logged, and the job waits: never run unthrottled, never failed, never lost."""
    runs_at: list[int] = []

    class Broken(Recording):
        calls = 0

        def _decide(self, request: Any, now_us: int | None) -> Any:
            self.calls += 1
            if self.calls <= 2:
                raise error
            runs_at.append(self.calls)
            return super()._decide(request, now_us)

    store = Broken()
    site.broker.add_middleware(Throttle(Limiter(store)))
    job = runner(site)
    job.send(1)
    with site.working():
        site.until_ran(1)
    assert site.ran == [1]
    assert runs_at == [3]
    assert len([r for r in caplog.records if r.name == "throttlekit.dramatiq" and r.exc_info]) == 2
    assert dead_letters(site.broker, site.queue) == []


def test_a_plugin_that_fails_neither_fails_nor_frees_the_job(stub: Site) -> None:
    """An exception in `throttlekit_deferred` is swallowed; the job waits as if nothing had been."""

    class Bad:
        @hookimpl
        def throttlekit_deferred(self, event: Deferred) -> None:
            raise RuntimeError("bad plugin")

    store = DenyBefore(2)
    stub.broker.add_middleware(Throttle(Limiter(store, plugins=[Bad()]), max_inline_wait=0))
    job = runner(stub)
    job.send(1)
    with stub.working():
        stub.until_ran(1)
    assert stub.ran == [1]
    assert store.denials == 2


def test_a_worker_that_stops_gives_back_what_it_has_not_looked_at(
    redis_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that were fetched and not looked at go back when the worker stops; none stays with the dead."""
    broker = redis_site.broker
    broker.add_middleware(Throttle(Limiter(Recording())))
    job = runner(redis_site)
    for n in range(50):
        job.send_with_options(args=(n,), delay=600_000)
    handle, handled = dramatiq.worker.ConsumerThread.handle_message, []

    def handle_one(thread: Any, message: Any) -> None:
        handle(thread, message)
        handled.append(message)
        thread.stop()

    monkeypatch.setattr(dramatiq.worker.ConsumerThread, "handle_message", handle_one)
    with working(broker, threads=1):
        wait_until(lambda: handled, description="the first message has been looked at")
    assert len(handled) == 1
    assert broker.client.llen(f"{broker.namespace}:{redis_site.queue}.DQ") == 50
    assert list(broker.client.scan_iter(f"{broker.namespace}:__acks__.*")) == []
