"""A connection to the broker that is lost, while a worker holds denied tasks."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from kombu import Connection

from support.celery.site import celery_site
from support.servers.processes import RedisProcess
from support.servers.proxy import Proxy
from support.waiting import wait_until
from throttlekit_celery._host import give_back, guard_close

pytestmark = [
    pytest.mark.workers,
    # Celery's client leaves sockets for the collector to find.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]

WITHIN = 120.0


@pytest.fixture
def broker(stack: ExitStack) -> RedisProcess:
    """A broker that can be away, and keeps its messages."""
    broker = stack.enter_context(closing(RedisProcess("--appendonly", "yes")))
    broker.start()
    return broker


def test_a_redis_broker_that_is_away_for_a_while_ends_no_worker(
    stack: ExitStack, redis_base: str, broker: RedisProcess
) -> None:
    """
    A worker that holds denied tasks connects again, and goes on with them at once, not after the visibility time-out.
    Celery 5.7 alone ends here, with "Unrecoverable error".
    """
    site = stack.enter_context(celery_site("redis", broker.url, redis_base, denials=1, delay=8.0))
    worker = site.start()
    results = [site.send("echo", n) for n in range(20)]
    wait_until(lambda: site.asked("denied") == 20, description="all were denied", timeout=WITHIN)
    broker.kill()
    wait_until(lambda: "Connection to broker lost" in worker.log(), description="it has noticed", timeout=WITHIN)
    wait_until(lambda: "Trying again in" in worker.log() or not worker.running, description="it tries", timeout=WITHIN)
    broker.start()
    free = site.send("free", "a")
    wait_until(lambda: free.ready() or not worker.running, description="it goes on", timeout=WITHIN)
    assert worker.running, worker.log()
    assert "Unrecoverable error" not in worker.log()
    assert sorted(result.get(timeout=WITHIN) for result in results) == list(range(20))
    assert sorted(map(int, site.ran("echo"))) == list(range(20))
    wait_until(lambda: site.left() == 0, description="nothing is left", timeout=WITHIN)


@pytest.mark.parametrize("kind", ["redis", "rabbitmq"])
def test_a_lost_connection_doubles_nothing(
    stack: ExitStack, redis_base: str, kind: str, request: pytest.FixtureRequest
) -> None:
    """When the connections break, held tasks are delivered anew, to any worker, and only those deliveries run."""
    url = redis_base if kind == "redis" else request.getfixturevalue("rabbitmq_url")
    address = urlsplit(url)
    assert address.port is not None
    proxy = stack.enter_context(Proxy(address.port))
    url = url.replace(str(address.port), str(proxy.port))
    site = stack.enter_context(celery_site(kind, url, redis_base, denials=1, delay=5.0))
    workers = [site.start(name=name) for name in ("one", "two")]
    results = [site.send("echo", n) for n in range(20)]
    wait_until(lambda: site.asked("denied") == 20, description="all were denied", timeout=WITHIN)
    proxy.cut()
    assert sorted(result.get(timeout=WITHIN) for result in results) == list(range(20))
    assert sorted(map(int, site.ran("echo"))) == list(range(20))
    assert all("Connection to broker lost" in worker.log() for worker in workers)


class Channel:
    """A channel of kombu's to Redis, and the messages that it has taken and not acknowledged."""

    def __init__(self, stack: ExitStack, url: str) -> None:
        self.connection = stack.enter_context(Connection(url))
        self.queue = self.connection.SimpleQueue("lost")
        stack.callback(self.queue.close)
        self.consumer = SimpleNamespace(task_consumer=SimpleNamespace(channel=self.connection.default_channel))

    def take(self, number: int) -> list[str]:
        """Their delivery tags."""
        channel = self.connection.default_channel
        return [channel.basic_get("lost").delivery_tag for _ in range(number)]

    def waiting(self) -> list[Any]:
        """Take what is in the queue, in order."""
        channel, found = self.connection.default_channel, []
        while (message := channel.basic_get("lost", no_ack=True)) is not None:
            found.append(message.decode())
        return found


def test_what_kombu_gives_back_itself_is_known(stack: ExitStack, redis_url: str) -> None:
    """Contract: as a channel is closed, kombu puts each message back by its tag. Another worker may have it then."""
    lost, other = Channel(stack, redis_url), Channel(stack, redis_url)
    for number in range(3):
        lost.queue.put(number)
    tried = guard_close(lost.consumer)
    tags = lost.take(3)
    assert tried == set()
    lost.connection.default_channel.close()
    assert tried == set(tags)
    assert sorted(other.waiting()) == [0, 1, 2]


def test_a_broker_that_is_away_as_a_channel_is_closed_ends_nothing(
    stack: ExitStack, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract: what kombu 5.7 raises there goes no further, and what it has not tried is given back, in order."""
    lost, again = Channel(stack, redis_url), Channel(stack, redis_url)
    for number in range(3):
        lost.queue.put(number)
    tried = guard_close(lost.consumer)
    tags = lost.take(3)
    channel = lost.connection.default_channel
    monkeypatch.setattr(channel, "_create_client", lambda: SimpleNamespace().hostname)
    channel.close()
    assert tried == set()
    give_back(again.consumer, tags, time.monotonic() - 1)
    assert again.waiting() == [], "no more after its time"
    give_back(again.consumer, [*tags, "none such"], time.monotonic() + WITHIN)
    assert again.waiting() == [0, 1, 2]
    monkeypatch.setattr(again.connection.default_channel, "_create_client", lambda: SimpleNamespace().hostname)
    give_back(again.consumer, tags, time.monotonic() + WITHIN)


def test_other_brokers_are_left_as_they_are(stack: ExitStack) -> None:
    """Only Redis keeps what is unacknowledged by tags."""
    connection = stack.enter_context(Connection("memory://"))
    consumer = SimpleNamespace(task_consumer=SimpleNamespace(channel=connection.default_channel))
    assert guard_close(consumer) == set()
    give_back(consumer, ["a tag"], time.monotonic() + WITHIN)
