"""The servers of a flood: a separate broker, a separate Redis, and a producer that reads their state."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, TypeVar
from uuid import uuid4

import dramatiq
import pika
import redis

from support.dramatiq.workers import make_broker
from support.servers.processes import patient, rabbitmq_server, redis_server

__all__ = ["Kind", "Sender", "Servers", "batches", "publish", "servers"]

Kind = Literal["redis", "rabbitmq"]
_T = TypeVar("_T")
_BATCH = 1_000
_HEARTBEATS = "dramatiq:__heartbeats__"


@dataclass(frozen=True)
class Servers:
    """A broker, and another Redis for the record (database 2) and, unless they have another store, for the limits."""

    kind: Kind
    broker_url: str
    redis_base: str
    limits_url: str | None = None

    @property
    def store_url(self) -> str:
        return self.limits_url or patient(f"{self.redis_base}/1")


@contextlib.contextmanager
def servers(kind: Kind) -> Iterator[Servers]:
    """New servers for any number of floods, one after the other."""
    with redis_server() as base, redis_server() if kind == "redis" else rabbitmq_server() as broker_url:
        yield Servers(kind, broker_url, base)


def batches(things: Iterable[_T]) -> Iterator[list[_T]]:
    """Yield *things* in lists of a thousand."""
    left = iter(things)
    while some := list(islice(left, _BATCH)):
        yield some


def publish(url: str, queue: str, messages: Iterable[tuple[bytes, pika.BasicProperties]]) -> None:
    """Publish to a queue of RabbitMQ, unconfirmed. All messages are in the queue when this returns."""
    with contextlib.closing(pika.BlockingConnection(pika.URLParameters(url))) as connection:
        channel = connection.channel()
        for body, properties in messages:
            channel.basic_publish("", queue, body, properties)


class Sender:
    """The producer of one queue, in a process without the limiter, which also reads the broker's state."""

    def __init__(self, where: Servers, queue: str) -> None:
        self._queue, self._url = queue, where.broker_url
        self._redis: Any = None
        if where.kind == "redis":
            self._redis = redis.Redis.from_url(where.broker_url)
            self._redis.flushall()
            self._redis.config_resetstat()
        self._broker = make_broker(where.broker_url, middleware=[])
        self._broker.declare_queue(queue)
        self._sent = 0

    def send(self, actor: str, index: str, account: str = "one", *, expires: int | None = None) -> None:
        """Send one job to *actor*, which expires after *expires* seconds."""
        options = {} if expires is None else {"max_age": 1000 * expires}
        self._broker.enqueue(dramatiq.Message(self._queue, actor, (index, account), {}, options))
        self._sent += 1

    def send_many(self, jobs: Iterable[tuple[str, str]]) -> None:
        """Send a job for each actor and index, in batches, in the format of Dramatiq's brokers."""
        messages = (dramatiq.Message(self._queue, actor, (index, "one"), {}, {}) for actor, index in jobs)
        if self._redis is None:
            properties = pika.BasicProperties(delivery_mode=2)
            self._broker.declare_queue(self._queue, ensure=True)
            publish(self._url, self._queue, ((message.encode(), properties) for message in messages))
        else:
            for some in batches(messages):
                self._sent += len(some)
                found = {str(uuid4()): message for message in some}
                coded = {id: each.copy(options={"redis_message_id": id}).encode() for id, each in found.items()}
                with self._redis.pipeline() as pipe:
                    pipe.hset(f"dramatiq:{self._queue}.msgs", mapping=coded)
                    pipe.rpush(f"dramatiq:{self._queue}", *coded)
                    pipe.execute()

    def purge(self) -> None:
        """Delete the messages in the broker that no worker holds."""
        self._broker.flush(self._queue)

    def heartbeats(self) -> set[bytes]:
        """Return the workers that have used this broker. Empty for RabbitMQ, which knows its connections."""
        return set(self._redis.zrange(_HEARTBEATS, 0, -1)) if self._redis is not None else set()

    def expire(self, heartbeats: set[bytes]) -> None:
        """Let Dramatiq detect at once that these workers are dead, and not only after a minute."""
        if heartbeats:
            self._redis.zadd(_HEARTBEATS, dict.fromkeys(heartbeats, 0), xx=True)

    def commands(self) -> int | None:
        """Return how many scripts the workers have run on the broker's Redis, one per command. None for RabbitMQ."""
        if self._redis is None:
            return None
        stats = self._redis.info("commandstats")
        scripts: int = sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "eval"))
        return scripts - self._sent

    def left(self) -> int:
        if self._redis is not None:
            names = f"dramatiq:{self._queue}.msgs", f"dramatiq:{self._queue}.DQ.msgs", f"dramatiq:{self._queue}.XQ.msgs"
            return sum(self._redis.hlen(name) for name in names)
        with contextlib.suppress(pika.exceptions.AMQPError):
            return sum(self._broker.get_queue_message_counts(self._queue))
        # The broker was restarted.
        del self._broker.connection
        return sum(self._broker.get_queue_message_counts(self._queue))

    def close(self) -> None:
        if self._redis is not None:
            self._redis.flushall(asynchronous=True)
            self._redis.close()
        else:
            with contextlib.suppress(Exception):
                for suffix in ("", ".DQ", ".XQ"):
                    self._broker.channel.queue_delete(self._queue + suffix)
        self._broker.close()
