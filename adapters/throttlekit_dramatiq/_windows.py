"""
How many messages a consumer of Dramatiq fetches: as many as Dramatiq prefetches, besides those that are held.

Brokers limit how many unacknowledged messages a consumer has, and messages that are held are unacknowledged.
"""

from __future__ import annotations

import time
from collections import deque
from importlib import import_module
from typing import Any

from dramatiq.errors import ConnectionClosed

__all__ = ["Window", "window_of"]

_MOST_OF_A_CONSUMER = 65_535
"""RabbitMQ's greatest prefetch count."""

_PART = 4
"""
A further consumer of RabbitMQ may fetch a quarter as many messages as are held, so that 60 000 of them need about 40
consumers.
"""

_EVERY = 0.005
"""Seconds between two turns of pika's loop, if no message is read."""


class Window:
    """
    What a consumer may fetch. This one is for a broker that is not known, and limits nothing.

    Attributes:
        longest: How many seconds a message may be held; None: for as long as the worker runs.
        redelivers: Whether the broker delivers what was unacknowledged to others as soon as the connection is lost.
    """

    longest: float | None = None
    redelivers = False

    def learn(self, message: Any) -> None:
        """*message*, which the consumer has just fetched, is held from now on."""

    def has(self, message: Any) -> bool:
        """
        Whether the broker still has *message* for this process, as far as it can be asked. If not, it no longer counts
        as fetched.
        """
        return True

    def fit(self, held: int) -> None:
        """
        Let the consumer fetch messages besides the *held* ones. Called in its thread, after each message, and while
        there is none.

        Raises:
            ConnectionClosed: The connection to the broker is lost.
        """


def window_of(consumer: Any, queue: str, prefetch: int, timeout_ms: int) -> Window:
    """The window of a new consumer."""
    if hasattr(consumer, "known_tags"):
        return _RabbitWindow(consumer, queue, prefetch, timeout_ms)
    if hasattr(consumer, "prefetch_semaphore"):
        return _StubWindow(consumer, prefetch)
    return _RedisWindow(consumer, queue, prefetch) if hasattr(consumer, "queued_message_ids") else Window()


class _RedisWindow(Window):
    """
    Redis can be asked what the process has fetched. Dramatiq keeps that in a set, which a flush of the queue deletes,
    and which another worker empties if this process sent no heartbeat for a minute.
    """

    def __init__(self, consumer: Any, queue: str, prefetch: int) -> None:
        broker = consumer.broker
        self._consumer, self._prefetch = consumer, prefetch
        self._fetched = f"{broker.namespace}:__acks__.{broker.broker_id}.{queue}"
        self._can_ask: bool | None = None
        dramatiq_redis: Any = import_module("dramatiq.brokers.redis")
        self._client_error: type[Exception] = dramatiq_redis.redis.RedisError

    def learn(self, message: Any) -> None:
        if self._can_ask is None:  # a broker of the user's own may keep it somewhere else
            self._can_ask = self._asked(message)

    def has(self, message: Any) -> bool:
        if not self._can_ask or self._asked(message) is not False:
            return True
        self._consumer.queued_message_ids.discard(message.message_id)
        return False

    def _asked(self, message: Any) -> bool | None:
        """Whether *message* is in the set; None: Redis does not answer."""
        try:
            return bool(self._consumer.broker.client.sismember(self._fetched, message.options["redis_message_id"]))
        except self._client_error:
            return None

    def fit(self, held: int) -> None:
        self._consumer.prefetch = self._prefetch + held


class _StubWindow(Window):
    def __init__(self, consumer: Any, prefetch: int) -> None:
        self._slots, self._prefetch, self._size = consumer.prefetch_semaphore, prefetch, prefetch

    def fit(self, held: int) -> None:
        while self._size < self._prefetch + held:
            self._slots.release()
            self._size += 1
        while self._size > self._prefetch + held and self._slots.acquire(blocking=False):
            self._size -= 1


class _RabbitWindow(Window):
    """
    Takes the place of pika's iterator over the messages of one consumer, and reads from several consumers of the same
    channel.

    A consumer of RabbitMQ has the prefetch count with which it began. A prefetch count of the whole channel could be
    changed, but quorum queues refuse it. So the consumer gets others at its side, which fetch messages in place of
    those that are held. As fewer are held, the latest consumers are cancelled. Messages that came through them can
    still be acknowledged on the channel.
    """

    longest = 600.0  # RabbitMQ closes a channel that holds a message for 30 minutes, and the body takes time too
    redelivers = True

    def __init__(self, consumer: Any, queue: str, prefetch: int, timeout_ms: int) -> None:
        self._connection, self._channel = consumer.connection, consumer.channel
        self._queue, self._prefetch, self._timeout = queue, prefetch, timeout_ms / 1000
        self._sizes: dict[str, int] = {}  # prefetch counts of the consumers, by their tags
        self._arrived: deque[tuple[Any, Any, bytes]] = deque()
        self._turned_at = 0.0
        consumer.iterator = self

    def __iter__(self) -> _RabbitWindow:
        return self

    def __next__(self) -> tuple[Any, Any, bytes | None]:
        """The next message as pika's iterator returns it: method, properties and body. All None: there is none."""
        if not self._sizes:
            self._add_consumer(self._prefetch)
        if not self._arrived:
            self._turn(self._timeout)
        if self._arrived:
            return self._arrived.popleft()
        if not self._channel.is_open:
            raise ConnectionClosed("RabbitMQ has closed the channel")  # type: ignore[no-untyped-call]
        if not self._sizes.keys() <= {*self._channel.consumer_tags}:
            raise StopIteration  # RabbitMQ has cancelled a consumer, because the queue was deleted
        return None, None, None

    def fit(self, held: int) -> None:
        # Acknowledgements wait for a turn of the connection's loop, and Dramatiq takes none while messages are there.
        # A kill before they are sent would run each of those jobs again.
        if time.monotonic() - self._turned_at < _EVERY:
            return
        from pika.exceptions import AMQPError  # type: ignore[import-untyped]

        try:
            self._fit(held)
            self._turn(0)
        except AMQPError as error:
            raise ConnectionClosed(error) from None  # type: ignore[no-untyped-call]

    def _fit(self, held: int) -> None:
        wanted, size = self._prefetch + held, sum(self._sizes.values())
        tag, latest = next(reversed(self._sizes.items()))
        if size < wanted:
            self._add_consumer(min(max(self._prefetch, held // _PART), _MOST_OF_A_CONSUMER))
        elif len(self._sizes) > 1 and size - latest >= 2 * wanted:
            del self._sizes[tag]
            self._channel.basic_cancel(tag)  # pika returns to the queue what arrives until this is confirmed

    def _turn(self, seconds: float) -> None:
        self._turned_at = time.monotonic()
        if not self._connection.is_open:  # pika raises a ValueError, which Dramatiq would log as an unexpected error
            raise ConnectionClosed("the connection is closed")  # type: ignore[no-untyped-call]
        self._connection.process_data_events(time_limit=seconds)

    def _add_consumer(self, size: int) -> None:
        self._channel.basic_qos(prefetch_count=size)  # of the consumers that begin from now on
        tag: str = self._channel.basic_consume(self._queue, self._arrive)
        self._sizes[tag] = size

    def _arrive(self, _: Any, method: Any, properties: Any, body: bytes) -> None:
        self._arrived.append((method, properties, body))
