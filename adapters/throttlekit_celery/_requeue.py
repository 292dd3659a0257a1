"""Put a denied task back: publish a copy of its message to its queue, and then acknowledge the original."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from throttlekit_celery._held_task import HeldTask
from throttlekit_celery._host import Producer, VirtualChannel, expires_in, source_queue
from throttlekit_celery._loop_calls import NextCall

__all__ = ["ASKS_AT", "Copies", "first_request_delay", "queue_of"]

ASKS_AT = "throttlekit_asks_at"
"""
The header of a task that was put back after a 429 of its body, with the Unix time of its next request. The task is on a
waitlist since the 429, so an earlier request would count as another denial.
"""

_CONFIRMED_WITHIN = 10.0
"""The seconds after which a copy that the broker has not confirmed counts as lost."""

_Done: TypeAlias = Callable[[bool], None]

_TIMEOUT = 1.0
_CHECK_EVERY = 0.02

_AMQP_OPTIONS: dict[str, Any] = {
    "confirm_publish": False,  # `publish` would consume each confirmation before the copy's number is recorded
    "heartbeat": 0,  # nothing sends heartbeats on this connection
    "on_blocked": None,
    "on_unblocked": None,
    "read_timeout": _TIMEOUT,
    "write_timeout": _TIMEOUT,
}
_OTHER_OPTIONS: dict[str, Any] = {
    "socket_timeout": _TIMEOUT,
    "socket_connect_timeout": _TIMEOUT,
    "retry_on_timeout": False,  # a repeated command would put a second copy into the queue
}
_KEPT = ("correlation_id", "reply_to", "message_id", "timestamp", "type", "app_id", "delivery_mode", "priority")
_OF_THE_DELIVERY = ("x-death", "x-first-death-", "x-last-death-", "x-delivery-count", "x-acquired-count")


class Copies:
    """
    Publishes copies of a worker's tasks to their queues, over a separate connection.

    The connection has the server, login, virtual host and TLS of the user's connection, but not its options for
    time-outs, heartbeats and retries.

    RabbitMQ confirms a message when it is on disk, which may take a quarter of a second, and confirms many together.
    So the worker does not wait for each confirmation: a timer checks for them every 20 ms.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._worker: Any = None  # the connection of the worker, which may have failed over to another server
        self._producer: Any = None
        self._number = 0
        self._unconfirmed: dict[int, tuple[float, str, _Done]] = {}
        self._next_check = NextCall(consumer, self._check)
        self._lock = threading.RLock()

    def start(self) -> None:
        """Prepare for a new connection of the worker, which may have dropped its timers."""
        self._next_check.drop()
        self._worker = self._consumer.connection
        if self._producer is not None and _server(self._make_connection()) != _server(self._producer.connection):
            self.close()
        if self._unconfirmed:
            self._next_check.schedule(_CHECK_EVERY)

    def put_back(self, held: HeldTask, done: _Done) -> None:
        """
        Publish a copy of *held*'s message to its queue.

        Args:
            done: A function that is called, now or later, with True if the broker has the copy, and with False if the
                broker may not have it. It is not called after an error.

        Raises:
            Exception: An error of the broker's client. The broker may or may not have the copy.
        """
        queue = held.queue
        if queue is None or self._is_on_fanout(held):
            done(False)  # there is no queue to write to
            return
        message, properties = held.request.message, held.request.message.properties
        expiry = expires_in(held.request)
        headers = {name: value for name, value in message.headers.items() if not name.startswith(_OF_THE_DELIVERY)}
        headers.pop(ASKS_AT, None)
        if (rest := held.first_request_at - time.monotonic()) > 0:
            headers[ASKS_AT] = time.time() + rest
        with self._lock:
            try:
                producer = self._open_producer()
                producer.publish(
                    message.body,
                    content_type=message.content_type,
                    content_encoding=message.content_encoding,
                    compression=headers.get("compression"),
                    headers=headers,
                    expiration=None if expiry == math.inf else max(0.0, expiry),
                    timeout=_TIMEOUT,
                    # RabbitMQ confirms a message without a queue too, but returns it first.
                    mandatory=_confirms(producer),
                    exchange="",  # the queue itself, so that no other queue of the exchange receives a copy
                    routing_key=queue,
                    **{name: properties[name] for name in _KEPT if properties.get(name) is not None},
                )
            except Exception:
                self._disconnect()
                raise
            if _confirms(producer):
                self._number += 1
                self._unconfirmed[self._number] = time.monotonic(), queue, done
                self._next_check.schedule(_CHECK_EVERY)
                return
        done(True)

    def wait_for_confirmations(self, within: float) -> None:
        """Wait until all copies are confirmed, or none has been published within the last *within* seconds."""
        while any(time.monotonic() - since < within for since, _, _ in list(self._unconfirmed.values())):
            self._read(0.05)

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    def _check(self) -> None:
        self._read(0)
        if self._unconfirmed:
            self._next_check.schedule(_CHECK_EVERY)

    def _read(self, timeout: float) -> None:
        """Read the confirmations that have arrived. If one is overdue, treat all unconfirmed copies as lost."""
        with self._lock:
            try:
                while self._producer is not None and self._unconfirmed:
                    self._producer.connection.drain_events(timeout=timeout)
            except (TimeoutError, BlockingIOError):
                oldest = min((since for since, _, _ in self._unconfirmed.values()), default=math.inf)
                if time.monotonic() - oldest > _CONFIRMED_WITHIN:
                    self._disconnect()
            except Exception:
                self._disconnect()

    def _open_producer(self) -> Any:
        if self._producer is None:
            connection = self._make_connection()
            channel = connection.default_channel
            if connection.transport.driver_type == "amqp":
                channel.confirm_select()
                channel.events["basic_ack"].add(partial(self._on_confirmation, True))
                channel.events["basic_nack"].add(partial(self._on_confirmation, False))
                channel.events["basic_return"].add(self._on_return)
            self._producer, self._number = Producer(channel, auto_declare=False), 0
        return self._producer

    def _make_connection(self) -> Any:
        """Return a connection, not open yet, to the server from which the worker receives its tasks."""
        known, app, others = self._worker, self._consumer.app, 0
        if known is None or app.conf.broker_read_url != app.conf.broker_write_url:
            known = app.connection_for_write()
            others = max(0, len(known.alt) - 1)
        options: dict[str, Any] = {
            **(known.transport_options or {}),
            **(_AMQP_OPTIONS if known.transport.driver_type == "amqp" else _OTHER_OPTIONS),
            # The worker's event loop waits for the connection. After a failure, the next copy connects again.
            "max_retries": others,
            "connect_retries_timeout": _TIMEOUT,
            "errback": None,
            "callback": None,
        }
        return known.clone(transport_options=options, connect_timeout=_TIMEOUT, heartbeat=0)

    def _on_confirmation(self, stored: bool, number: int, multiple: bool) -> None:
        """Record whether the broker has *stored* copy *number*, and if *multiple*, all copies before it as well."""
        numbers = [known for known in self._unconfirmed if known <= number] if multiple else [number]
        for known in numbers:
            if known in self._unconfirmed:
                self._unconfirmed.pop(known)[2](stored)

    def _on_return(self, _: Any, __: str, routing_key: str, ___: Any) -> None:
        """Record that a queue no longer exists: all copies that were sent to it are lost."""
        for known in [number for number, (_, key, _) in self._unconfirmed.items() if key == routing_key]:
            self._unconfirmed.pop(known)[2](False)

    def _is_on_fanout(self, held: HeldTask) -> bool:
        """Return whether *held* came from a fanout exchange on Redis, which has no queue to write to."""
        exchange = getattr(self._consumer.app.amqp.queues.get(held.queue), "exchange", None)
        on_virtual = isinstance(held.request.message.channel, VirtualChannel)
        return on_virtual and exchange is not None and bool(exchange.type == "fanout")

    def _disconnect(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            with contextlib.suppress(Exception):  # the connection may be broken already
                producer.connection.collect(socket_timeout=0.1)
        failed, self._unconfirmed = self._unconfirmed, {}
        for _, _, done in failed.values():
            done(False)


def _server(connection: Any) -> tuple[str | None, int | None]:
    return connection.hostname, connection.port


def _confirms(producer: Any) -> bool:
    return bool(producer.connection.transport.driver_type == "amqp")


def first_request_delay(message: Any) -> float:
    """Return the seconds until the task of *message* may first request its units; 0 if it may do so now."""
    headers: dict[str, Any] = message.headers or {}
    at = headers.get(ASKS_AT)
    return max(0.0, at - time.time()) if isinstance(at, (int, float)) else 0.0


def queue_of(consumer: Any, request: Any) -> str | None:
    """Return the name of the queue that delivered *request*, or None if it is unknown."""
    message, tasks = request.message, consumer.task_consumer
    if (known := source_queue(message)) is not None:
        return known
    info: dict[str, Any] = message.delivery_info or {}
    for name, tag in tasks._active_tags.items():
        if tag == info.get("consumer_tag"):
            return str(name)
    queues = list(tasks.queues)
    if len(queues) == 1:
        return str(queues[0].name)
    exchange, routing_key = info.get("exchange"), info.get("routing_key")
    if not exchange:
        return routing_key
    for queue in queues:
        if queue.exchange is not None and (queue.exchange.name, queue.routing_key) == (exchange, routing_key):
            return str(queue.name)
    if isinstance(message.channel, VirtualChannel):  # a routing key with wildcards
        bound: list[str] = message.channel._lookup(exchange, routing_key)
        return next((str(queue.name) for queue in queues if queue.name in bound), None)
    return None
