"""
How a waiting message comes back: straight to a thread of the process that holds it.

Dramatiq puts a delayed message that is due at the end of its main queue. Behind a backlog of
thousands it would come seconds after its slot, and so would everybody whose slots follow: units
would run out unused, and each of those jobs would have to be deferred once more. Measured with
4 000 waiting at 50/s: 2.0 deliveries a job this way, 3.0 the other.

So a message that waits in our line, and is due, is handed to this worker's own threads if one of
them is free of bodies. It stays unacknowledged in its delay queue until it has run, so a killed
worker loses nothing. If no thread is free it goes Dramatiq's way after a moment, so that another
process can take it.

Everything here is an attribute set on Dramatiq's consumer threads, in `Releases.adopt`.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from queue import Empty
from typing import Any

from dramatiq.brokers.stub import StubBroker
from dramatiq.common import current_millis, q_name
from dramatiq.message import Message

__all__ = ["WAITED", "Releases", "holder_of"]

WAITED = "throttlekit"
"""The message option in which a denied message carries its place in the line."""

_IDLE_POLL_MS = 50
"""How often an idle consumer of a delay queue looks for messages. Dramatiq's own: up to 1000."""

_PREFETCH = 65_535
"""How many delayed messages a consumer holds, so that none that is due waits behind those that are not."""

_log = logging.getLogger("throttlekit.dramatiq")
_PATIENCE_MS = 100
_SEND_EVERY = 0.005
_SHORTEST_POLL_MS = 3
_HOLDER = "_throttlekit_holder"
_BUSY = "_throttlekit_busy"


@dataclass(frozen=True, slots=True)
class _Holder:
    """Who a released message is to be acknowledged by: a thread, and the connection it came on."""

    thread: Any
    consumer: Any


class Releases:
    """Knows how many of a worker's threads are taken, and lets due messages go to those that are not."""

    def __init__(self) -> None:
        self._threads = 0
        self._busy = 0
        self._lock = threading.Lock()
        self._known: dict[Any, tuple[Any, Any]] = {}
        self._timers: dict[Any, tuple[Any, int]] = {}
        self._sent_at: dict[Any, float] = {}

    def boot(self, worker: Any) -> None:
        self._threads = worker.worker_threads
        self._busy = 0
        self._lock = threading.Lock()  # the old one may have been held when this process was forked

    def adopt(self, thread: Any) -> None:
        """Take over one consumer thread of a throttled queue, as it boots."""
        if thread.queue_name.endswith(".DQ"):
            thread.worker_timeout = min(thread.worker_timeout, _IDLE_POLL_MS)
            thread.prefetch = max(thread.prefetch, _PREFETCH)
            if not isinstance(thread.broker, StubBroker):
                thread.handle_delayed_messages = partial(self._turn, thread)
            self._known[thread] = thread.delay_queue, thread.consumer
        else:
            thread.post_process_message = partial(_post_process, thread.post_process_message)
            thread.requeue_messages = partial(_requeue, thread.requeue_messages)

    def retire(self, thread: Any) -> None:
        """
        Give back what a consumer thread that stops has fetched and not looked at.

        Dramatiq gives back what it has looked at. On Redis the rest would stay with this process's id until
        it is taken for dead: a minute at least, for up to thousands of waiting messages.
        """
        consumer = thread.consumer
        messages = [_decode(data) for data in getattr(consumer, "message_cache", ()) if data]
        if messages:
            consumer.message_cache = []
            consumer.requeue(messages)

    def take(self, message: Any) -> None:
        """A thread is about to be taken by *message*."""
        if not hasattr(message, _BUSY):
            setattr(message, _BUSY, True)
            with self._lock:
                self._busy += 1

    def give_back(self, message: Any) -> None:
        """The thread that *message* took, if it took one, is free again."""
        if hasattr(message, _BUSY):
            delattr(message, _BUSY)
            with self._lock:
                self._busy -= 1

    def _turn(self, thread: Any) -> None:
        """What a delay queue's consumer does after each message that it was given, and when there is none."""
        self._release_due(thread)
        connection, now = getattr(thread.consumer, "connection", None), time.monotonic()
        if connection is not None and now - self._sent_at.get(thread, 0.0) >= _SEND_EVERY:
            # RabbitMQ's acknowledgements wait for the consumer's loop, which first hands over all that was
            # fetched: thousands, after a restart. A kill before they are sent would run each job again.
            self._sent_at[thread] = now
            with contextlib.suppress(Exception):  # the consumer meets the same fault next, and names it
                connection.process_data_events(time_limit=0)

    def _release_due(self, thread: Any) -> None:
        if not thread.running:
            # A timer, while the connection is being closed: the acknowledgement of what is let go now
            # would not be sent, and RabbitMQ would deliver it again.
            return
        self._rescue(thread)
        queue, now = thread.delay_queue, current_millis()
        next_in = _IDLE_POLL_MS
        while True:
            try:
                item = queue.get_nowait()
            except Empty:
                break
            due, message = _due_and_message(item)
            try:
                released = due <= now and self._let_go(thread, message, now - due)
            except Exception:
                # Dramatiq gives back what is in the queue, and forgets what is not.
                queue.put(item)
                queue.task_done()
                raise
            if not released:
                queue.put(item)
                queue.task_done()
                next_in = due - now
                break
            queue.task_done()
        self._wake(thread, max(_SHORTEST_POLL_MS, min(_IDLE_POLL_MS, next_in)))

    def _wake(self, thread: Any, after_ms: int) -> None:
        """Have `_release_due` called again after *after_ms*, in the consumer's own thread."""
        consumer = thread.consumer
        if hasattr(consumer, "timeout"):
            consumer.timeout = after_ms
            return
        # RabbitMQ's consumer cannot be told to look sooner, but its connection keeps timers.
        now, at = current_millis(), current_millis() + after_ms
        known, set_for = self._timers.get(thread, (None, 0))
        if after_ms < _IDLE_POLL_MS and (known is not consumer or not now < set_for <= at):
            self._timers[thread] = (consumer, at)
            consumer.connection.call_later(after_ms / 1000, partial(self._release_due, thread))

    def _let_go(self, thread: Any, message: Any, overdue_ms: int) -> bool:
        ours = WAITED in message.options
        if ours and self._busy >= self._threads and overdue_ms < _PATIENCE_MS:
            return False
        released = message.copy(queue_name=q_name(message.queue_name))
        del released.options["eta"]
        if ours and self._busy < self._threads and message.actor_name in thread.broker.actors:
            message._message = released
            setattr(message, _HOLDER, _Holder(thread, thread.consumer))
            self.take(message)
            thread.handle_message(message)
        else:
            thread.broker.enqueue(released)
            thread.post_process_message(message)
        return True

    def _rescue(self, thread: Any) -> None:
        """
        Give back what a broken connection made Dramatiq forget.

        It drops the messages that it holds, and those that it has fetched and not looked at. RabbitMQ gives
        them to somebody else; on Redis they would stay with this process, unseen, until it ends.
        """
        queue, consumer = self._known[thread]
        if queue is thread.delay_queue and consumer is thread.consumer:
            return
        messages: list[Any] = [_decode(data) for data in getattr(consumer, "message_cache", ()) if data]
        if queue is not thread.delay_queue:
            messages += [_due_and_message(item)[1] for item in list(queue.queue)]
        if messages:
            thread.requeue_messages(messages)
            _log.warning("Connection lost: %d waiting messages go back to %s.", len(messages), thread.queue_name)
        self._known[thread] = thread.delay_queue, thread.consumer


def holder_of(message: Any) -> _Holder | None:
    """Who holds a released *message*; None for any other."""
    holder: _Holder | None = getattr(message, _HOLDER, None)
    return holder


def _decode(data: bytes) -> Any:
    decode: Any = Message.decode  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return decode(data)


def _due_and_message(item: Any) -> tuple[int, Any]:
    # A pair before Dramatiq 2.2.
    return (item[0], item[1]) if isinstance(item, tuple) else (item.priority, item.message)  # pyright: ignore[reportUnknownVariableType]


def _post_process(original: Any, message: Any) -> None:
    holder = holder_of(message)
    if holder is None:
        original(message)
    elif not hasattr(message, "_tag") or holder.consumer is holder.thread.consumer:
        holder.thread.post_process_message(message)
    # Else RabbitMQ has given it to somebody else, and its tag may now be another message's.


def _requeue(original: Any, messages: Iterable[Any]) -> None:
    by_thread: dict[Any, list[Any]] = {}
    for message in messages:
        holder = holder_of(message)
        by_thread.setdefault(holder and holder.thread, []).append(message)
    for thread, held in by_thread.items():
        (thread.requeue_messages if thread else original)(held)
