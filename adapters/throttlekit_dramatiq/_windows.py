"""
Let a consumer fetch Dramatiq's usual number of messages in addition to the held messages.

Brokers limit how many unacknowledged messages a consumer may have, and held messages are unacknowledged. Example: with
a prefetch count of 8 and 100 held messages, the consumer may have 108.
"""

from __future__ import annotations

import time
from collections import deque
from importlib import import_module
from typing import Any

from dramatiq.errors import ConnectionClosed

__all__ = ["Window", "window_of"]

_MOST_OF_A_CONSUMER = 65_535
"""The highest prefetch count of RabbitMQ."""

_PART = 4
"""
The divisor for the prefetch count of an additional RabbitMQ consumer: a quarter of the number of held messages. So
60 000 held messages need about 40 consumers.
"""

_EVERY = 0.005
"""The seconds between two iterations of pika's loop, if no message is read."""


class Window:
    """
    The number of messages that a consumer may fetch. This base class is for unknown brokers, and changes nothing.

    Attributes:
        longest: The seconds for which a message may be held. None if it may be held as long as the worker runs.
        redelivers: Whether the broker redelivers unacknowledged messages as soon as the connection is lost.
    """

    longest: float | None = None
    redelivers = False

    def learn(self, message: Any) -> None:
        """Record that *message*, which the consumer has just fetched, is held from now on."""

    def has(self, message: Any) -> bool:
        """
        Return whether the broker still assigns *message* to this process, if that can be checked. If the broker does
        not, the message no longer counts as fetched.
        """
        return True

    def fit(self, held: int) -> None:
        """
        Let the consumer fetch messages in addition to the *held* messages. Called in the consumer's thread, after each
        message, and while there is none.

        Raises:
            ConnectionClosed: The connection to the broker is lost.
        """


def window_of(consumer: Any, thread: Any) -> Window:
    """Return the window of a new consumer of a consumer thread."""
    if hasattr(consumer, "known_tags"):
        return _RabbitWindow(consumer, thread)
    if hasattr(consumer, "prefetch_semaphore"):
        return _StubWindow(consumer, thread)
    return _RedisWindow(consumer, thread) if hasattr(consumer, "queued_message_ids") else Window()


class _RedisWindow(Window):
    """
    The window of a Redis consumer.

    Redis has a set of the messages that this process has fetched. A flush of the queue deletes the set, and another
    worker empties it if this process has sent no heartbeat for a minute.
    """

    def __init__(self, consumer: Any, thread: Any) -> None:
        broker = consumer.broker
        self._consumer, self._prefetch = consumer, thread.prefetch
        self._fetched = f"{broker.namespace}:__acks__.{broker.broker_id}.{thread.queue_name}"
        self._can_check: bool | None = None
        dramatiq_redis: Any = import_module("dramatiq.brokers.redis")
        self._client_error: type[Exception] = dramatiq_redis.redis.RedisError

    def learn(self, message: Any) -> None:
        if self._can_check is None:  # a user's subclass of the broker may use another key
            self._can_check = self._is_fetched(message)

    def has(self, message: Any) -> bool:
        if not self._can_check or self._is_fetched(message) is not False:
            return True
        self._consumer.queued_message_ids.discard(message.message_id)
        return False

    def _is_fetched(self, message: Any) -> bool | None:
        """Return whether *message* is in the set, or None if Redis does not answer."""
        try:
            return bool(self._consumer.broker.client.sismember(self._fetched, message.options["redis_message_id"]))
        except self._client_error:
            return None

    def fit(self, held: int) -> None:
        self._consumer.prefetch = self._prefetch + held


class _StubWindow(Window):
    def __init__(self, consumer: Any, thread: Any) -> None:
        self._slots, self._prefetch = consumer.prefetch_semaphore, thread.prefetch
        self._size = self._prefetch

    def fit(self, held: int) -> None:
        while self._size < self._prefetch + held:
            self._slots.release()
            self._size += 1
        while self._size > self._prefetch + held and self._slots.acquire(blocking=False):
            self._size -= 1


class _RabbitWindow(Window):
    """
    A replacement of pika's iterator over the messages of one consumer, for several consumers of the same channel.

    The prefetch count of a RabbitMQ consumer is fixed when it starts. A prefetch count for the whole channel could be
    changed, but quorum queues reject it. So this window starts more consumers, which fetch messages in addition to the
    held messages. When fewer messages are held, the window cancels the latest consumers. Messages from cancelled
    consumers can still be acknowledged on the channel.
    """

    longest = 600.0  # RabbitMQ closes a channel that holds a message for 30 minutes, and the body takes time too
    redelivers = True

    def __init__(self, consumer: Any, thread: Any) -> None:
        self._connection, self._channel = consumer.connection, consumer.channel
        self._queue, self._prefetch, self._timeout = thread.queue_name, thread.prefetch, thread.worker_timeout / 1000
        self._sizes: dict[str, int] = {}  # prefetch counts of the consumers, by their tags
        self._arrived: deque[tuple[Any, Any, bytes]] = deque()
        self._looped_at = 0.0
        consumer.iterator = self

    def __iter__(self) -> _RabbitWindow:
        return self

    def __next__(self) -> tuple[Any, Any, bytes | None]:
        """Return method, properties and body of the next message, like pika's iterator, or three times None."""
        if not self._sizes:
            self._add_consumer(self._prefetch)
        if not self._arrived:
            self._run_loop(self._timeout)
        if self._arrived:
            return self._arrived.popleft()
        if not self._channel.is_open:
            raise ConnectionClosed("RabbitMQ has closed the channel")  # type: ignore[no-untyped-call]
        if not self._sizes.keys() <= {*self._channel.consumer_tags}:
            raise StopIteration  # RabbitMQ has cancelled a consumer, because the queue was deleted
        return None, None, None

    def fit(self, held: int) -> None:
        # Dramatiq does not run the connection's loop while it has messages, and only the loop sends acknowledgements.
        # If the process were killed before the loop has run, each of those jobs would run again.
        if time.monotonic() - self._looped_at < _EVERY:
            return
        from pika.exceptions import AMQPError  # type: ignore[import-untyped]

        try:
            self._fit(held)
            self._run_loop(0)
        except AMQPError as error:
            raise ConnectionClosed(error) from None  # type: ignore[no-untyped-call]

    def _fit(self, held: int) -> None:
        wanted, size = self._prefetch + held, sum(self._sizes.values())
        tag, latest = next(reversed(self._sizes.items()))
        if size < wanted:
            self._add_consumer(min(max(self._prefetch, held // _PART), _MOST_OF_A_CONSUMER))
        elif len(self._sizes) > 1 and size - latest >= 2 * wanted:
            del self._sizes[tag]
            self._channel.basic_cancel(tag)  # until it is confirmed, pika requeues arriving messages

    def _run_loop(self, seconds: float) -> None:
        self._looped_at = time.monotonic()
        if not self._connection.is_open:  # pika raises a ValueError, which Dramatiq would log as an unexpected error
            raise ConnectionClosed("the connection is closed")  # type: ignore[no-untyped-call]
        self._connection.process_data_events(time_limit=seconds)

    def _add_consumer(self, size: int) -> None:
        self._channel.basic_qos(prefetch_count=size)  # applies to consumers that start after this call
        tag: str = self._channel.basic_consume(self._queue, self._on_message)
        self._sizes[tag] = size

    def _on_message(self, _: Any, method: Any, properties: Any, body: bytes) -> None:
        self._arrived.append((method, properties, body))
