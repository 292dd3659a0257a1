"""
The messages that a worker process holds: denied, unacknowledged, and handed to a thread when the store wakes them.

A denied message stays where it is, in the consumer of its queue. The consumer fetches others in its place:
`_windows.py`. If the worker stops, or the connection to RabbitMQ is lost, held messages go back to the broker.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from queue import Queue
from typing import Any

from dramatiq.message import Message

from throttlekit import Limiter
from throttlekit.adapter import Waker
from throttlekit_dramatiq._message_state import DEFERRAL, Deferral
from throttlekit_dramatiq._windows import Window, window_of

__all__ = ["Holding", "Item"]

_MOST_HELD = 60_000
"""Messages of one queue, about 2 KB each."""

_POLL_MS = 50
"""How long the consumer of a throttled queue sleeps at most: it is to fetch others in place of those that are held."""

_SAME_ID_MS = 1000
"""Of two messages with the same id that wait, one is held, and the other comes back so often."""


class _Tag(int):
    """
    A delivery tag that is equal to no other connection's.

    Each connection counts from 1, and Dramatiq acknowledges what came on a lost connection on the next one: the tag
    would then be another message's, and that message, if it was denied, would be lost.
    """

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


@dataclass(eq=False, slots=True)
class Item:
    """
    A message that may wait.

    Attributes:
        message: What a thread processes when it is woken.
        thread: The consumer thread that it came from.
        consumer: The consumer of that thread, at that time.
        source: What is held of that thread; None: it was not adopted, so the message is not held.
        since: When it was first denied in this process.
        started: Whether it was woken, and handed to a thread.
        joined: The queue that `Worker.join` waits for, in which it counts while it is held.
        copied: Whether the broker has delivered the same message again, so this one is not put back.
    """

    message: Any
    thread: Any
    consumer: Any
    source: _Source | None
    since: float
    started: bool = False
    joined: Queue[Any] | None = None
    copied: bool = False

    @property
    def is_ours(self) -> bool:
        """
        Whether the message is still to be acknowledged by us.

        RabbitMQ delivers it again once the connection is lost: to run it, or to put it back, would double it. The
        loss shows in a consumer that is closed, that has been replaced, or that does not know the message's tag. In the
        instant before, nothing shows it.
        """
        if self.consumer is None or not hasattr(self.message, "_tag"):
            return True
        same = self.thread.consumer is self.consumer
        return same and self.consumer.channel.is_open and self.message._tag in self.consumer.known_tags


@dataclass(eq=False, slots=True)
class _Source:
    """The consumer thread of a throttled queue. *prefetch*: how many messages Dramatiq fetches ahead."""

    thread: Any
    prefetch: int
    held: dict[str, Item] = field(default_factory=dict[str, Item])
    window: Window = field(default_factory=Window)
    checked_at: float = 0.0


class _Opener:
    """Dramatiq's broker for one consumer thread: prepares each consumer that it opens."""

    def __init__(self, broker: Any, prepare: Any) -> None:
        self._broker, self._prepare = broker, prepare

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    def consume(self, **options: Any) -> Any:
        consumer = self._broker.consume(**options)
        self._prepare(consumer)
        return consumer


class Holding:
    """Counts the busy threads of a worker, and holds its denied messages."""

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._worker: Any = None
        self._busy: set[int] = set()  # ids of the message objects that threads work on
        self._sources: dict[str, _Source] = {}
        self._left: list[Item] = []
        self._stopping = False
        self._lock = threading.Lock()
        self.waker: Waker[Item]

    def boot(self, worker: Any) -> None:
        """*worker* is about to start."""
        self._worker, self._stopping = worker, False
        self._busy.clear()
        self._sources.clear()
        self._left.clear()
        self.waker = self._limiter.make_waker(self._free, self._start, give_back=self._give_back)

    def stop(self) -> None:
        """The worker is about to stop. What waits goes back to the broker when its consumers stop."""
        self._stopping = True
        self._left += self.waker.close()

    def adopt(self, thread: Any) -> None:
        """Hold the messages of the consumer thread of a throttled queue, which boots."""
        source = self._sources[thread.queue_name] = _Source(thread, thread.prefetch)
        thread.worker_timeout = min(thread.worker_timeout, _POLL_MS)
        thread.broker = _Opener(thread.broker, partial(self._prepare, source))
        thread.handle_message = partial(_handle, thread, thread.handle_message)
        thread.handle_delayed_messages = partial(self._turn, source, thread.handle_delayed_messages)
        thread.post_process_message = partial(_post_process, thread.post_process_message)

    def retire(self, thread: Any) -> None:
        """
        Give back what a consumer thread that stops holds, and what it has fetched and not looked at.

        On Redis it would stay under this process's id until Dramatiq takes the process for dead.
        """
        source = self._sources.pop(thread.queue_name, None)
        left = [each.message for each in self._left if each.source is source]
        if thread.consumer is not None:
            _requeue(thread.consumer, [*left, *_fetched(thread.consumer)])

    def item(self, message: Any) -> Item:
        """Return *message* as it is held if it is denied: a new proxy, since another thread may start it at once."""
        fresh: Any = object.__new__(message.__class__)
        fresh.__dict__.update(message.__dict__)
        thread, source = self._worker.consumers.get(message.queue_name), self._sources.get(message.queue_name)
        since: float = message.__dict__.setdefault("_throttlekit_since", time.monotonic())
        fresh.__dict__["_throttlekit_since"] = since
        with self._lock:
            other = None if source is None else source.held.get(message.message_id)
            if other is not None:
                other.copied = _is_copy(other.message, message)
        return Item(fresh, thread, getattr(thread, "consumer", None), source, since)

    def keep(self, item: Item) -> bool:
        """*item* was denied. Return whether it is held; False: it goes back through its delay queue."""
        source, id_ = item.source, item.message.message_id
        if source is not None:
            source.window.learn(item.message)
        with self._lock:
            if item.started:
                return True
            if source is not None and len(source.held) < _MOST_HELD:
                source.held[id_] = item
                _count_in(item)
                return True
        return self.waker.pass_on(id_) is None and source is not None

    def take(self, message: Any) -> None:
        """A thread is about to work on *message*."""
        self._busy.add(id(message))

    def give_back(self, message: Any) -> None:
        """The thread that worked on *message*, if one did, is free again."""
        self._busy.discard(id(message))
        if hasattr(message, DEFERRAL):
            self.waker.freed()
        else:
            self.waker.done(message.message_id)

    def _free(self) -> int:
        threads: int = self._worker.worker_threads
        return max(0, threads - len(self._busy))

    def _start(self, id_: str, item: Item) -> None:
        if item.source is None:
            return  # `keep` sends it back
        if item.is_ours and item.source.window.has(item.message):
            self.take(item.message)
            _put_first(item.thread, item.message)
        else:
            self.waker.pass_on(id_)
        self._let_go(item)

    def _let_go(self, item: Item) -> None:
        """*item* is held no longer."""
        source = item.source
        assert source is not None  # noqa: S101 - `keep` holds no other
        with self._lock:
            item.started = True
            if source.held.get(item.message.message_id) is item:
                del source.held[item.message.message_id]
            joined, item.joined = item.joined, None
        if joined is not None:
            joined.task_done()

    def _give_back(self, item: Item) -> None:
        """The waker does not hold *item*: the worker stops, or the waker holds another message with the same id."""
        if self._stopping:
            self._left.append(item)
            return
        self._let_go(item)
        if not item.copied:
            _put_back(item, _SAME_ID_MS)

    def _prepare(self, source: _Source, consumer: Any) -> None:
        """A consumer was opened: the first one, or one in place of another whose connection was lost."""
        thread, before = source.thread, source.thread.consumer
        source.window = window_of(consumer, thread.queue_name, source.prefetch, thread.worker_timeout)
        with self._lock:
            held = list(source.held.values())
        if source.window.redelivers:
            for item in held:
                self.waker.pass_on(item.message.message_id)
                self._let_go(item)
        else:
            with self._lock:
                for item in source.held.values():
                    _count_in(item)  # Dramatiq has replaced the queue that `Worker.join` waits for
            if hasattr(consumer, "queued_message_ids"):
                consumer.queued_message_ids.update(item.message.message_id for item in held)
            if before is not None:
                _requeue(consumer, _fetched(before))

    def _turn(self, source: _Source, original: Any) -> None:
        """What a consumer does after each message, and when there is none."""
        original()
        window, now = source.window, time.monotonic()
        window.fit(len(source.held))
        if window.longest is not None and now - source.checked_at >= 1.0:
            source.checked_at = now
            self._put_back_old(source, now - window.longest)

    def _put_back_old(self, source: _Source, before: float) -> None:
        """Put back what is held since *before*."""
        with self._lock:
            old = [item for item in source.held.values() if item.since <= before]
        for item in old:
            if self.waker.pass_on(item.message.message_id) is item:  # otherwise it was started
                self._let_go(item)
                _put_back(item, None)


def _count_in(item: Item) -> None:
    """`Worker.join` waits until *item* is held no longer."""
    queue: Queue[Any] = item.thread.delay_queue
    if item.joined is queue or not hasattr(queue, "all_tasks_done"):  # gevent's has no such thing
        return
    item.joined = queue
    with queue.all_tasks_done:
        queue.unfinished_tasks += 1


def _is_copy(message: Any, other: Any) -> bool:
    """Whether Redis has delivered the same message twice: it was given to another worker in between, and back."""
    id_: Any = message.options.get("redis_message_id")
    return id_ is not None and id_ == other.options.get("redis_message_id")


def _requeue(consumer: Any, messages: list[Any]) -> None:
    """Give messages back to the queue of *consumer*."""
    if not messages:
        return
    if hasattr(consumer, "dead_letters"):  # the stub broker, which does not take them back itself
        for message in messages:
            consumer.queue.put(message.encode())
            consumer.queue.task_done()
    else:
        consumer.requeue(messages)


def _put_back(item: Item, delay_ms: int | None) -> None:
    """Enqueue a copy of a message that was held, and acknowledge it."""
    setattr(item.message, DEFERRAL, Deferral(item, item.message.copy(), delay_ms))
    item.thread.post_process_message(item.message)


def _put_first(thread: Any, message: Any) -> None:
    """Put a message that was woken before those of the same priority that have not been processed yet."""
    priority = thread.broker.get_actor(message.actor_name).priority
    try:
        from dramatiq.worker import _WorkQueueItem  # pyright: ignore[reportPrivateUsage]
    except ImportError:  # before Dramatiq 2.2
        thread.work_queue.put((priority, message))
    else:
        thread.work_queue.put(_WorkQueueItem(priority, message, 0))


def _fetched(consumer: Any) -> list[Any]:
    """Remove and return the messages that a consumer of Redis has fetched and not looked at."""
    cache: Iterable[bytes] = getattr(consumer, "message_cache", ())
    decode: Any = Message.decode  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    messages = [decode(data) for data in cache if data]
    if messages:
        consumer.message_cache = []
    return messages


def _handle(thread: Any, original: Any, message: Any) -> None:
    tag: Any = getattr(message, "_tag", None)
    known: Any = getattr(thread.consumer, "known_tags", ())
    if tag in known and not isinstance(tag, _Tag):
        message._tag = _Tag(tag)
        known.add(message._tag)
        known.discard(tag)
    original(message)


def _post_process(original: Any, message: Any) -> None:
    deferral: Deferral | None = getattr(message, DEFERRAL, None)
    if deferral is None or deferral.copy is not None:
        original(message)
