"""How a worker on Redis records the messages that it has received. This runs with each version of kombu."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import ExitStack, closing
from types import SimpleNamespace
from typing import Any

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue

from support.servers.processes import RedisProcess
from throttlekit_celery._host import VirtualChannel, name_deliveries, read_pending_replies
from throttlekit_celery._requeue import queue_of


@pytest.fixture(scope="module")
def server() -> Iterator[RedisProcess]:
    with closing(RedisProcess("--unixsocket", "redis.sock")) as server:
        server.start()
        yield server


class Copies:
    """A worker's connection that has received both copies of a message that was routed to two queues."""

    def __init__(self, stack: ExitStack, server: RedisProcess) -> None:
        connection = stack.enter_context(Connection(f"{server.url}/0"))
        self.channel: Any = connection.default_channel
        exchange = Exchange("events", type="topic")
        queues = [Queue("all", exchange, routing_key="sale.#"), Queue("billing", exchange, routing_key="sale.done")]
        self.received: dict[str, Any] = {}
        tasks = Consumer(self.channel, queues, callbacks=[self.receive], accept=["json"])
        self.consumer = SimpleNamespace(task_consumer=tasks)
        name_deliveries(self.consumer)
        tasks.consume()
        self.connection: Any = connection
        Producer(self.channel, exchange).publish({}, routing_key="sale.done")
        self.drain(2)
        self.records: dict[bytes, bytes] = self.channel.client.hgetall("unacked")

    def drain(self, count: int) -> None:
        while len(self.received) < count:
            self.connection.drain_events(timeout=10)

    def receive(self, _: Any, message: Any) -> None:
        queue = queue_of(self.consumer, SimpleNamespace(message=message))
        assert queue is not None
        self.received[queue] = message


def test_each_copy_of_a_message_has_a_record_of_its_own(stack: ExitStack, server: RedisProcess) -> None:
    """
    Kombu gives both copies the same tag. The worker knows the queue of each copy, and acknowledges only that copy.
    """
    server.client.flushall()
    copies = Copies(stack, server)
    assert set(copies.received) == {"all", "billing"}
    assert set(copies.records) == {message.delivery_tag.encode() for message in copies.received.values()}
    assert {message.delivery_info["exchange"] for message in copies.received.values()} == {"events"}
    copies.received["all"].ack()
    left = copies.channel.client.hkeys("unacked")
    assert left == [copies.received["billing"].delivery_tag.encode()]


def test_a_copy_is_restored_to_the_queue_that_it_came_from(stack: ExitStack, server: RedisProcess) -> None:
    """The copy is put into no other queue of its exchange: the task would run once more from there."""
    server.client.flushall()
    copies = Copies(stack, server)
    copies.channel.qos.restore_by_tag(copies.received["billing"].delivery_tag)
    assert [copies.channel.client.llen(queue) for queue in ("all", "billing")] == [0, 1]
    copies.received["all"].ack()


def test_a_copy_that_is_delivered_again_has_the_same_record(stack: ExitStack, server: RedisProcess) -> None:
    """The worker that received it first acknowledges both. Otherwise the copy would be restored repeatedly."""
    server.client.flushall()
    copies = Copies(stack, server)
    first = copies.received.pop("billing")
    copies.channel.qos.restore_by_tag(first.delivery_tag)
    copies.drain(2)
    assert copies.received["billing"].delivery_tag == first.delivery_tag
    for copy in copies.received.values():
        copy.ack()
    assert copies.channel.client.hlen("unacked") == 0


@pytest.mark.parametrize(
    ("queues", "exchange", "expected"),
    [
        ({"only": "another.key"}, "events", "only"),
        ({"other": "another.key", "mine": "sale.done"}, "events", "mine"),
        ({"other": "another.key", "mine": "sale.done"}, "", "sale.done"),
    ],
    ids=["one queue", "same key", "default exchange"],
)
def test_the_queue_is_found_without_the_tables_of_the_transport(
    queues: dict[str, str], exchange: str, expected: str
) -> None:
    """A transport may keep its tables in files or in a database. It is not asked if the worker's own queues suffice."""

    class Unavailable(VirtualChannel):  # type: ignore[misc]
        def __init__(self) -> None: ...

        def __del__(self) -> None: ...

        def _lookup(self, *_: object) -> list[str]:
            raise OSError("no tables")

    events = Exchange("events", type="topic")
    known = [Queue(name, events, routing_key=key) for name, key in queues.items()]
    consumer = SimpleNamespace(task_consumer=SimpleNamespace(_active_tags={}, queues=known))
    info = {"exchange": exchange, "routing_key": "sale.done"}
    request = SimpleNamespace(message=SimpleNamespace(channel=Unavailable(), delivery_info=info))
    assert queue_of(consumer, request) == expected


class Unacknowledged:
    """A worker's connection that acknowledges nothing. It consumes from the queue "tasks" and from a fanout queue."""

    def __init__(self, stack: ExitStack, server: RedisProcess) -> None:
        server.client.flushall()
        self.connection: Any = stack.enter_context(Connection(f"{server.url}/0"))
        self.channel: Any = self.connection.default_channel
        self.everyone = Exchange("everyone", type="fanout")
        self.received: list[Any] = []
        queues = [Queue("tasks", Exchange("tasks"), routing_key="tasks"), Queue("broadcast", self.everyone)]
        tasks = Consumer(self.channel, queues, accept=["json"], on_message=self.received.append)
        read_pending_replies(SimpleNamespace(task_consumer=tasks))
        tasks.consume()

    def set_prefetch_count(self, count: int) -> None:
        self.channel.basic_qos(0, count, False)

    def send(self) -> None:
        Producer(self.channel, Exchange("tasks")).publish({}, routing_key="tasks")

    def drain(self, times: int = 4) -> None:
        """Do what the worker's loop does, several times."""
        for _ in range(times):
            with contextlib.suppress(OSError):
                self.connection.drain_events(timeout=0.05)

    def counts(self) -> tuple[int, int, int]:
        """Return how many messages are received, recorded as unacknowledged, and in the queue."""
        client = self.channel.client
        return len(self.received), client.hlen("unacked"), client.llen("tasks")


def test_a_message_that_redis_has_removed_from_its_queue_is_recorded(stack: ExitStack, server: RedisProcess) -> None:
    """
    The prefetch count is lowered while BRPOP waits, as when a held task is woken. The reply to BRPOP is read all the
    same, so a SIGKILL cannot lose the message. No other message is fetched until the count allows it.
    """
    worker = Unacknowledged(stack, server)
    worker.set_prefetch_count(2)
    worker.send()
    worker.drain()
    assert worker.channel._in_poll, "BRPOP waits for the second message"
    worker.set_prefetch_count(1)
    worker.send()
    worker.drain()
    assert worker.counts() == (2, 2, 0)
    worker.send()
    worker.drain()
    assert worker.counts() == (2, 2, 1)
    worker.received.pop().ack()
    worker.drain()
    assert worker.counts() == (1, 1, 1), "the count allows one message, and one is unacknowledged"
    worker.received.pop().ack()
    worker.drain()
    assert worker.counts() == (1, 1, 0)


def test_fanout_messages_wait_until_the_prefetch_count_allows_one(stack: ExitStack, server: RedisProcess) -> None:
    """They are not read while BRPOP waits and the count allows no message."""
    worker = Unacknowledged(stack, server)
    worker.set_prefetch_count(2)
    worker.send()
    worker.drain()
    worker.set_prefetch_count(1)
    for _ in range(3):
        Producer(worker.channel, worker.everyone).publish({})
    worker.drain()
    assert worker.channel._in_poll, "BRPOP still waits"
    assert len(worker.received) == 1
    worker.received.pop().ack()
    worker.drain()
    assert worker.received, "the count allows a message again"
