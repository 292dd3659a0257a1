"""A connection to the broker that is lost while a worker holds denied tasks."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack, closing
from functools import partial
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from kombu import Connection

from support.celery.quiet import QUIET
from support.celery.site import WITHIN, CelerySite, celery_site
from support.servers.processes import RedisProcess, patient
from support.servers.proxy import Proxy
from support.waiting import wait_until
from throttlekit import Limiter, TokenBucket
from throttlekit_celery._host import forget, give_back, guard_close

pytestmark = [pytest.mark.workers, *QUIET]


@pytest.fixture
def broker(stack: ExitStack) -> RedisProcess:
    """A broker that can be unavailable, and keeps its messages."""
    broker = stack.enter_context(closing(RedisProcess("--appendonly", "yes", "--appendfsync", "always")))
    broker.start()
    return broker


def test_an_outage_of_a_redis_broker_ends_no_worker(stack: ExitStack, redis_base: str, broker: RedisProcess) -> None:
    """
    A worker that holds denied tasks connects again, and continues with them at once, not after the visibility time-out.
    Celery 5.7 alone ends here, with "Unrecoverable error".
    """
    site = stack.enter_context(celery_site("redis", broker.url, redis_base, denials=1, delay=8.0))
    worker = site.start()
    results = [site.send("echo", n) for n in range(20)]
    wait_until(lambda: site.asked("denied") == 20, description="all tasks were denied")
    broker.kill()
    wait_until(
        lambda: "Connection to broker lost" in worker.log(), description="the worker has logged the lost connection"
    )
    wait_until(
        lambda: "Trying again in" in worker.log() or not worker.running, description="the worker tries to connect"
    )
    broker.start()
    free = site.send("free", "a")
    wait_until(lambda: free.ready() or not worker.running, description="the worker continues")
    assert worker.running, worker.log()
    assert "Unrecoverable error" not in worker.log()
    site.assert_each_runs_once(results)


@pytest.fixture
def make_proxied_site(stack: ExitStack, redis_base: str, request: pytest.FixtureRequest) -> Any:
    """Return a function that makes a site whose connections to its broker a test can cut, and the proxy."""

    def make(kind: str, **options: Any) -> tuple[CelerySite, Proxy]:
        url = redis_base if kind == "redis" else request.getfixturevalue("rabbitmq_url")
        port = urlsplit(url).port
        assert port is not None
        proxy = stack.enter_context(Proxy(port))
        return stack.enter_context(
            celery_site(kind, url.replace(str(port), str(proxy.port)), redis_base, **options)
        ), proxy

    return make


@pytest.mark.parametrize("kind", ["redis", "rabbitmq"])
def test_no_task_runs_twice_after_a_lost_connection(make_proxied_site: Any, kind: str) -> None:
    """When the connections break, held tasks are delivered again, to any worker, and only these deliveries run."""
    site, proxy = make_proxied_site(kind, denials=1, delay=5.0)
    workers = [site.start(name=name) for name in ("one", "two")]
    results = [site.send("echo", n) for n in range(20)]
    wait_until(lambda: site.asked("denied") == 20, description="all tasks were denied")
    proxy.cut()
    assert sorted(result.get(timeout=WITHIN) for result in results) == list(range(20))
    assert sorted(map(int, site.ran("echo"))) == list(range(20))
    assert all("Connection to broker lost" in worker.log() for worker in workers)


def cut(proxy: Proxy, worker: Any) -> None:
    """Cut the connections of *worker* to its broker, and wait until it has connected again."""
    before = worker.log().count("Connected to")
    proxy.cut()
    wait_until(lambda: worker.log().count("Connected to") > before, description="the worker has connected again")


@pytest.mark.rabbitmq
def test_tasks_that_run_during_a_reconnection_leave_the_prefetch_count(make_proxied_site: Any, redis_base: str) -> None:
    """
    On RabbitMQ, Celery alone lowers the prefetch count for them, and raises it when a later task is acknowledged, to
    the value of a worker that holds no tasks. With 30 held tasks, such a worker would fetch no other task.
    """
    limit, store = TokenBucket("one", "1/h", burst=1), patient(f"{redis_base}/12")
    site, proxy = make_proxied_site("rabbitmq", store=store, rate="1/h", burst=1)
    worker = site.start()
    site.send("free_wait")
    wait_until(lambda: site.ran("free_wait"), description="a body is running")
    cut(proxy, worker)
    with Limiter(store) as limiter:
        limiter.reset(limit)
        limiter.pause(limit, 600.0)
        results = [site.send("echo", n) for n in range(31)]
        wait_until(lambda: len(site.held()) == 31, description="all tasks wait")
        limiter.resume(limit)
    assert results[0].get(timeout=WITHIN) == 0
    assert site.send("free", "a").get(timeout=WITHIN) == "a"
    (stats,) = site.inspect(f"w@{site.queue}").stats().values()
    assert stats["prefetch_count"] == 8 + 30
    site.go()


@pytest.mark.parametrize("kind", ["redis", "rabbitmq"])
def test_a_429_after_a_reconnection_loses_no_task(make_proxied_site: Any, redis_base: str, kind: str) -> None:
    """
    The task was acknowledged when its body began, so only this worker has it. Celery before 5.7 alone drops the results
    of bodies that run when the connection breaks.
    """
    site, proxy = make_proxied_site(kind, store=patient(f"{redis_base}/12"), rate="1000/s", burst=1000)
    worker = site.start()
    result = site.send("wait_429")
    wait_until(lambda: site.ran("wait_429"), description="the body is running")
    cut(proxy, worker)
    site.go()
    assert result.get(timeout=WITHIN) == "went"
    assert len(site.ran("wait_429")) == 2


def test_a_process_that_is_busy_during_a_reconnection_is_not_free(make_proxied_site: Any) -> None:
    """Celery before 5.7 alone counts it as free then. No task is granted until a process can begin its body."""
    site, proxy = make_proxied_site("redis", denials=0)
    worker = site.start()
    busy = [site.send("free_wait") for _ in range(2)]
    wait_until(lambda: len(site.ran("free_wait")) == 2, description="both processes are busy")
    cut(proxy, worker)
    waiting = [site.send("echo", n) for n in range(5)]
    wait_until(lambda: worker.log().count("Task echo") == 5, description="the worker has received the tasks")
    assert not any(result.ready() for result in busy)
    assert site.asked("granted") == 0
    site.go()
    assert [result.get(timeout=WITHIN) for result in waiting] == list(range(5))


def test_no_task_runs_twice_if_a_worker_ends_after_a_lost_connection(
    stack: ExitStack, redis_base: str, broker: RedisProcess
) -> None:
    """
    The tasks that it held when the connection broke belong to another worker. Kombu 5.3 alone puts them back as the
    worker ends, by their old tags, if it could not close the channel.
    """
    site = stack.enter_context(celery_site("redis", broker.url, redis_base, denials=2, delay=8.0))
    workers = [site.start(name=name) for name in ("one", "two")]
    results = [site.send("echo", n) for n in range(20)]
    wait_until(lambda: site.asked("denied") == 20, description="all tasks were denied")
    broker.kill()
    for worker in workers:
        wait_until(lambda: "Trying again in" in worker.log(), description="the worker tries to connect")  # noqa: B023
    broker.start()
    wait_until(lambda: site.asked("denied") == 40, description="all tasks were denied again")
    workers[0].signal(signal.SIGTERM)
    workers[0].wait(WITHIN)
    site.assert_each_runs_once(results)


class Channel:
    """A kombu channel to Redis, with the messages that it has received and not acknowledged."""

    def __init__(self, stack: ExitStack, url: str, *, messages: int = 0) -> None:
        self.connection = stack.enter_context(Connection(url))
        self.queue = self.connection.SimpleQueue("lost")
        stack.callback(self.queue.close)
        for number in range(messages):
            self.queue.put(number)
        self.consumer = SimpleNamespace(task_consumer=SimpleNamespace(channel=self.connection.default_channel))

    def messages(self, number: int) -> list[Any]:
        channel = self.connection.default_channel
        return [channel.basic_get("lost") for _ in range(number)]

    def take(self, number: int) -> list[str]:
        """Receive messages, and return their delivery tags."""
        return [message.delivery_tag for message in self.messages(number)]

    def waiting(self) -> list[Any]:
        """Remove all messages from the queue, and return them in order."""
        channel, found = self.connection.default_channel, []
        while (message := channel.basic_get("lost", no_ack=True)) is not None:
            found.append(message.decode())
        return found


def test_messages_that_kombu_puts_back_itself_are_detected(stack: ExitStack, redis_url: str) -> None:
    """
    Contract: when a channel is closed, kombu puts each message back by its tag. Another worker may receive it then.
    """
    lost, other = Channel(stack, redis_url, messages=3), Channel(stack, redis_url)
    tried = guard_close(lost.consumer)
    tags = lost.take(3)
    assert tried == set()
    lost.connection.default_channel.close()
    assert tried == set(tags)
    assert sorted(other.waiting()) == [0, 1, 2]


def test_messages_that_kombu_could_not_put_back_are_left_to_the_adapter(stack: ExitStack, broker: RedisProcess) -> None:
    """
    The first tag that kombu tries is one of them. Without the adapter, it would be redelivered only after the
    visibility time-out.
    """
    lost = Channel(stack, broker.url, messages=3)
    tried = guard_close(lost.consumer)
    tags = lost.take(3)
    broker.kill()
    lost.connection.default_channel.close()
    assert tried == set()
    broker.start()
    again = Channel(stack, broker.url)
    give_back(again.consumer, tags, time.monotonic() + WITHIN)
    assert again.waiting() == [0, 1, 2]


def test_messages_that_the_broker_may_have_are_not_put_back_again(
    stack: ExitStack, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker's reply was lost. The message may be in its queue, and another worker may have received it."""
    lost, other = Channel(stack, redis_url, messages=3), Channel(stack, redis_url)
    tried = guard_close(lost.consumer)
    first, *_ = lost.take(3)
    made = lost.connection.default_channel._create_client

    def lose_reply() -> Any:
        client = made()
        monkeypatch.setattr(client, "transaction", partial(_transaction_without_a_reply, client.transaction))
        return client

    monkeypatch.setattr(lost.connection.default_channel, "_create_client", lose_reply)
    lost.connection.default_channel.close()
    assert tried == {first}
    assert other.waiting() == [0]


def _transaction_without_a_reply(transaction: Any, *args: Any) -> None:
    transaction(*args)
    raise ConnectionError


def test_kombu_drops_the_messages_that_the_adapter_puts_back(stack: ExitStack, redis_url: str) -> None:
    """At the end of its process, or when the channel is garbage collected, kombu puts back only the other messages."""
    lost, other = Channel(stack, redis_url, messages=3), Channel(stack, redis_url)
    for message in lost.messages(3)[:2]:
        forget(message)
    lost.connection.default_channel.qos.restore_unacked_once()
    assert other.waiting() == [2]


def test_an_outage_while_a_channel_is_closed_ends_no_worker(
    stack: ExitStack, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Contract: an error that kombu 5.7 raises there is handled, and messages that it has not tried are put back in order.
    """
    lost, again = Channel(stack, redis_url, messages=3), Channel(stack, redis_url)
    tried = guard_close(lost.consumer)
    tags = lost.take(3)
    channel = lost.connection.default_channel
    monkeypatch.setattr(channel, "_create_client", lambda: SimpleNamespace().hostname)
    channel.close()
    assert tried == set()
    give_back(again.consumer, tags, time.monotonic() - 1)
    assert again.waiting() == [], "no further attempt after the deadline"
    give_back(again.consumer, [*tags, "none such"], time.monotonic() + WITHIN)
    assert again.waiting() == [0, 1, 2]
    monkeypatch.setattr(again.connection.default_channel, "_create_client", lambda: SimpleNamespace().hostname)
    give_back(again.consumer, tags, time.monotonic() + WITHIN)


def test_other_brokers_are_not_changed(stack: ExitStack) -> None:
    """Connections to other brokers are not changed, because only Redis identifies unacknowledged messages by tags."""
    connection = stack.enter_context(Connection("memory://"))
    consumer = SimpleNamespace(task_consumer=SimpleNamespace(channel=connection.default_channel))
    assert guard_close(consumer) == set()
    give_back(consumer, ["a tag"], time.monotonic() + WITHIN)
    forget(SimpleNamespace(channel=connection.default_channel, delivery_tag="a tag"))
