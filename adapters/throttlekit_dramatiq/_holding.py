"""
Hold the denied messages of a worker process, unacknowledged. When the store wakes a message, a thread processes it.

While messages are held, the consumer of their queue can fetch other messages in addition: see `_windows.py`. If the
worker stops, or loses its connection to RabbitMQ, held messages are returned to the broker.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Queue
from typing import Any

from dramatiq import DecodeError
from dramatiq.message import Message

from throttlekit import Limiter
from throttlekit.adapter import Waker
from throttlekit_dramatiq._windows import Window, window_of

__all__ = ["DEFERRAL", "Deferral", "Holding", "Item"]

DEFERRAL = "_throttlekit_deferral"
"""The attribute of a denied message that holds its `Deferral`."""

_MOST_HELD = 60_000
"""The maximum number of held messages of one queue, at about 2 KB each."""

_POLL_MS = 50
"""The longest sleep of a throttled queue's consumer, so that it soon fetches more messages than the held ones."""

_SAME_ID_MS = 1000
"""The delay with which a message is requeued if another message with the same id is held."""


class _Tag(int):
    """
    A delivery tag that differs from the tags of all other connections.

    Each connection numbers its messages from 1. After a lost connection, Dramatiq acknowledges old messages on the new
    connection, where the same number may belong to another message. A denied message with that number would be lost.
    """

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


@dataclass(eq=False, slots=True)
class Item:
    """
    A message that may wait.

    Attributes:
        message: The message that a thread processes when it is woken.
        thread: The consumer thread that received the message.
        consumer: The consumer of that thread at that time.
        source: The held messages of that thread. None if the thread holds no messages.
        since: The time of the first denial in this process, by the monotonic clock.
        started: Whether the message was woken and passed to a thread.
        join_queue: The queue for which `Worker.join` waits. It counts a held message as unfinished.
        has_copy: Whether the broker has delivered the same message again, so that this one is not put back.
    """

    message: Any
    thread: Any
    consumer: Any
    source: _Source | None
    since: float
    started: bool = False
    join_queue: Queue[Any] | None = None
    has_copy: bool = False

    @property
    def is_ours(self) -> bool:
        """
        Whether this process still has to acknowledge the message.

        After a lost connection, RabbitMQ delivers the message again, so this one must not run or be put back. The
        connection is lost if the consumer is closed, was replaced, or does not have the message's tag. For a moment
        after the loss, none of these conditions holds.
        """
        if self.consumer is None or not hasattr(self.message, "_tag"):
            return True
        same = self.thread.consumer is self.consumer
        return same and self.consumer.channel.is_open and self.message._tag in self.consumer.known_tags


@dataclass(slots=True)
class Deferral:
    """
    The deferral of a message, which stays unacknowledged in this process, or is replaced by a copy.

    Attributes:
        item: The held message.
        copy: The copy to enqueue. None if the message is held, or if the copy was enqueued.
        delay_ms: The delay of the copy. None if it has no delay.
    """

    item: Item
    copy: Any = None
    delay_ms: int | None = None


@dataclass(eq=False, slots=True)
class _Source:
    """The consumer thread of a throttled queue, and the messages that it holds, by id."""

    thread: Any
    held: dict[str, Item] = field(default_factory=dict[str, Item])
    window: Window = field(default_factory=Window)
    checked_at: float = 0.0


class _Opener:
    """A proxy of Dramatiq's broker for one consumer thread, which prepares each consumer that it opens."""

    def __init__(self, broker: Any, prepare: Any) -> None:
        self._broker, self._prepare = broker, prepare

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    def consume(self, **options: Any) -> Any:
        consumer = self._broker.consume(**options)
        self._prepare(consumer)
        return consumer


class Holding:
    """Counts the busy threads of a *worker*, and holds its denied messages."""

    def __init__(self, limiter: Limiter, worker: Any) -> None:
        self._worker = worker
        self._busy: set[int] = set()  # ids of the message objects that threads work on
        self._sources: dict[str, _Source] = {}
        self._returned: list[Item] = []
        self._stopping = False
        self._lock = threading.Lock()
        self.waker: Waker[Item] = limiter.make_waker(self._free, self._start, give_back=self._give_back)

    def stop(self) -> None:
        """Stop waking messages, because the worker stops. Its consumers return the held messages to the broker."""
        self._stopping = True
        self._returned += self.waker.close()

    def adopt(self, thread: Any) -> None:
        """Prepare to hold the messages of *thread*, the booting consumer thread of a throttled queue."""
        source = self._sources[thread.queue_name] = _Source(thread)
        thread.worker_timeout = min(thread.worker_timeout, _POLL_MS)
        thread.broker = _Opener(thread.broker, partial(self._prepare, source))
        thread.handle_message = partial(_handle_message, thread, thread.handle_message)
        thread.handle_delayed_messages = partial(self._after_message, source, thread.handle_delayed_messages)
        thread.post_process_message = partial(_post_process_message, thread.post_process_message)

    def retire(self, thread: Any) -> None:
        """
        Return the held and the fetched messages of a consumer thread that stops.

        On Redis, these messages would otherwise stay under the id of this process until Dramatiq considers it dead.
        """
        source = self._sources.pop(thread.queue_name, None)
        left = [each.message for each in self._returned if each.source is source]
        if thread.consumer is not None:
            _requeue(thread.consumer, [*left, *_take_fetched(thread.consumer)])

    def item(self, message: Any) -> Item:
        """Create the item to hold if *message* is denied, with a new proxy: another thread may start it at once."""
        thread, source = self._worker.consumers.get(message.queue_name), self._sources.get(message.queue_name)
        since: float = message.__dict__.setdefault("_throttlekit_since", time.monotonic())
        fresh: Any = object.__new__(message.__class__)
        fresh.__dict__.update(message.__dict__)
        with self._lock:
            other = None if source is None else source.held.get(message.message_id)
            if other is not None:
                other.has_copy = _is_copy(other.message, message)
        return Item(fresh, thread, getattr(thread, "consumer", None), source, since)

    def hold(self, item: Item) -> bool:
        """Hold *item*, which was denied. Return False if it is not held, and has to be put into its delay queue."""
        source, id_ = item.source, item.message.message_id
        if source is not None:
            source.window.learn(item.message)
        with self._lock:
            if item.started:
                return True
            if source is not None and len(source.held) < _MOST_HELD:
                source.held[id_] = item
                _count_for_join(item)
                return True
        return self.waker.pass_on(id_) is None and source is not None

    def take(self, message: Any) -> None:
        """Record that a thread is about to process *message*."""
        self._busy.add(id(message))

    def give_back(self, message: Any) -> None:
        """Record that *message* no longer occupies a thread."""
        self._busy.discard(id(message))
        if hasattr(message, DEFERRAL):
            self.waker.report_free()
        else:
            self.waker.done(message.message_id)

    def _free(self) -> int:
        threads: int = self._worker.worker_threads
        return max(0, threads - len(self._busy))

    def _start(self, id_: str, item: Item) -> None:
        if item.source is None:
            return  # `hold` returns False for this item
        if item.is_ours and item.source.window.has(item.message):
            self.take(item.message)
            _put_first(item.thread, item.message)
        else:
            self.waker.pass_on(id_)
        self._release(item)

    def _release(self, item: Item) -> None:
        """Stop holding *item*."""
        source = item.source
        assert source is not None  # noqa: S101 - `hold` holds no item without a source
        with self._lock:
            item.started = True
            if source.held.get(item.message.message_id) is item:
                del source.held[item.message.message_id]
            join_queue, item.join_queue = item.join_queue, None
        if join_queue is not None:
            join_queue.task_done()

    def _give_back(self, item: Item) -> None:
        """Handle *item*, which the waker gave back: the worker stops, or it holds another message with this id."""
        if self._stopping:
            self._returned.append(item)
            return
        self._release(item)
        if not item.has_copy:
            _put_back(item, _SAME_ID_MS)

    def _prepare(self, source: _Source, consumer: Any) -> None:
        """Prepare a new consumer: the first consumer, or its replacement after a lost connection."""
        thread, before = source.thread, source.thread.consumer
        source.window = window_of(consumer, thread)
        with self._lock:
            held = list(source.held.values())
        if source.window.redelivers:
            for item in held:
                self.waker.pass_on(item.message.message_id)
                self._release(item)
        else:
            with self._lock:
                for item in source.held.values():
                    _count_for_join(item)  # Dramatiq has replaced the queue for which `Worker.join` waits
            if hasattr(consumer, "queued_message_ids"):
                consumer.queued_message_ids.update(item.message.message_id for item in held)
            if before is not None:
                _requeue(consumer, _take_fetched(before))

    def _after_message(self, source: _Source, original: Any) -> None:
        """Adapt the window, and put back old messages. Consumers call it after each message, and while idle."""
        original()
        window, now = source.window, time.monotonic()
        window.fit(len(source.held))
        if window.longest is not None and now - source.checked_at >= 1.0:
            source.checked_at = now
            self._put_back_old(source, now - window.longest)

    def _put_back_old(self, source: _Source, before: float) -> None:
        """Put back the messages that this process first denied at *before* or earlier."""
        with self._lock:
            old = [item for item in source.held.values() if item.since <= before]
        for item in old:
            if self.waker.pass_on(item.message.message_id) is item:  # otherwise a thread has it now
                self._release(item)
                _put_back(item, None)


def _count_for_join(item: Item) -> None:
    """Make `Worker.join` wait until *item* is no longer held."""
    queue: Queue[Any] = item.thread.delay_queue
    if item.join_queue is queue or not hasattr(queue, "all_tasks_done"):  # gevent's queue has no such attribute
        return
    item.join_queue = queue
    with queue.all_tasks_done:
        queue.unfinished_tasks += 1


def _is_copy(message: Any, other: Any) -> bool:
    """Return whether Redis has delivered the same message twice, because another worker had it in between."""
    id_: Any = message.options.get("redis_message_id")
    return id_ is not None and id_ == other.options.get("redis_message_id")


def _requeue(consumer: Any, messages: list[Any]) -> None:
    """Return messages to the queue of *consumer*."""
    if not messages:
        return
    if hasattr(consumer, "dead_letters"):  # the stub broker, whose `requeue` does nothing
        for message in messages:
            consumer.queue.put(message.encode())
            consumer.queue.task_done()
    else:
        consumer.requeue(messages)


def _put_back(item: Item, delay_ms: int | None) -> None:
    """Enqueue a copy of a held message, and acknowledge the original."""
    setattr(item.message, DEFERRAL, Deferral(item, item.message.copy(), delay_ms))
    item.thread.post_process_message(item.message)


def _put_first(thread: Any, message: Any) -> None:
    """Pass a woken message to the threads, before fetched messages of the same priority."""
    priority = thread.broker.get_actor(message.actor_name).priority
    try:
        from dramatiq.worker import _WorkQueueItem  # pyright: ignore[reportPrivateUsage]
    except ImportError:  # before Dramatiq 2.2
        thread.work_queue.put((priority, message))
    else:
        thread.work_queue.put(_WorkQueueItem(priority, message, 0))


def _take_fetched(consumer: Any) -> list[Any]:
    """
    Remove and return the messages in the cache of a Redis consumer. A message that cannot be decoded is left to
    Dramatiq's maintenance, as when the consumer reads it.
    """
    cache: Iterable[bytes] = getattr(consumer, "message_cache", ())
    decode: Any = Message.decode  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    messages: list[Any] = []
    for data in filter(None, cache):
        with suppress(DecodeError):
            messages.append(decode(data))
    if cache:
        consumer.message_cache = []
    return messages


def _handle_message(thread: Any, original: Any, message: Any) -> None:
    tag: Any = getattr(message, "_tag", None)
    known: Any = getattr(thread.consumer, "known_tags", ())
    if tag in known and not isinstance(tag, _Tag):
        message._tag = _Tag(tag)
        known.add(message._tag)
        known.discard(tag)
    original(message)


def _post_process_message(original: Any, message: Any) -> None:
    deferral: Deferral | None = getattr(message, DEFERRAL, None)
    if deferral is None or deferral.copy is not None:
        original(message)
