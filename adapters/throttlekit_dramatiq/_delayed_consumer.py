"""
The consumers of delay queues: a message that is due goes straight to a thread of the process that holds it.

Dramatiq puts a delayed message that is due at the end of its main queue. Behind a backlog of
thousands it would arrive seconds late, and so would every message behind it: units
would go unused, and each of those jobs would be deferred once more. Measured with
4 000 waiting at 50/s: 2.0 deliveries a job this way, 3.0 the other.

So a message that waits in the line of a limit, and is due, is handed to this worker's own threads if one of
them runs no body. It stays unacknowledged in its delay queue until it has run, so a killed
worker loses nothing. If no thread is free, it goes Dramatiq's way after a moment, so that another
process can take it.

When a message is due was worked out when it was denied, and its line may move faster: a rate is raised, a slot comes
free, messages before it expire. So the message that stands first in each line is handed over twice a second, to ask;
at once when a body of this process releases a slot; and after one that was admitted before it was expected, or left
units. If it is denied, it goes on waiting where it was, until the instant that it has now.

Everything here is an attribute set on Dramatiq's consumer threads, in `DelayedConsumers.adopt`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from dramatiq.brokers.stub import StubBroker
from dramatiq.common import current_millis, q_name
from dramatiq.errors import ConnectionClosed
from dramatiq.message import Message

from throttlekit.adapter import NO_LANE
from throttlekit_dramatiq._message_state import DEFERRAL, HOLDER, TICKET, Deferral, Holder, holder_of
from throttlekit_dramatiq._waiting import Retimed, Waiting, WaitingEntry

__all__ = ["DelayedConsumers"]

_IDLE_POLL_MS = 50
"""How often an idle consumer of a delay queue looks for messages. Dramatiq itself: up to 1000."""

_PREFETCH = 65_535
"""Delayed messages that a consumer holds, so that no message that is due waits behind others that are not."""

_log = logging.getLogger("throttlekit.dramatiq")
_PATIENCE_MS = 100  # that a due message waits for a free thread here before it goes Dramatiq's way
_PROBE_EVERY = 0.05
_MOST_UNKNOWN = 1000  # messages for actors that were renamed or removed, which one look at a line may skip
_SEND_EVERY = 0.005
_SHORTEST_POLL_MS = 3


class _Tag(int):
    """
    A delivery tag that is equal to no other connection's.

    Each connection counts from 1, and Dramatiq acknowledges what came on a lost connection on the next one: the tag
    would then be another message's, and that message, if it was denied, would be lost.
    """

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


class DelayedConsumers:
    """Counts the busy threads of a worker, and hands due messages to the free ones."""

    def __init__(self) -> None:
        self._threads = 0
        self._busy: set[int] = set()  # ids of the messages that threads work on; a set, since it needs no lock
        self._known: dict[Any, tuple[Any, Any]] = {}
        self._timers: dict[Any, tuple[Any, int]] = {}
        self._sent_at: dict[Any, float] = {}
        self._probed_at: dict[Any, float] = {}

    def boot(self, worker: Any) -> None:
        self._threads = worker.worker_threads
        self._busy.clear()

    def adopt(self, thread: Any) -> None:
        """Take over one consumer thread of a throttled queue, as it boots."""
        thread.handle_message = partial(_handle, thread, thread.handle_message)
        if thread.queue_name.endswith(".DQ"):
            thread.worker_timeout = min(thread.worker_timeout, _IDLE_POLL_MS)
            thread.prefetch = max(thread.prefetch, _PREFETCH)
            if not isinstance(thread.broker, StubBroker):
                thread.delay_queue = Waiting()
                thread.handle_delayed_messages = partial(self._turn, thread)
            self._known[thread] = thread.delay_queue, thread.consumer
        else:
            thread.post_process_message = partial(_post_process, thread.post_process_message)
            thread.requeue_messages = partial(_requeue, thread.requeue_messages)

    def retire(self, thread: Any) -> None:
        """
        Give back what a consumer thread that stops has fetched and not looked at.

        Dramatiq gives back what it has looked at. On Redis the rest would stay under this process's id until
        Dramatiq takes the process for dead: a minute at least, for up to thousands of waiting messages.
        """
        consumer = thread.consumer
        messages = [_decode(data) for data in getattr(consumer, "message_cache", ()) if data]
        if messages:
            consumer.message_cache = []
            consumer.requeue(messages)

    def take(self, message: Any) -> None:
        """A thread is about to work on *message*."""
        self._busy.add(id(message))

    def give_back(self, message: Any) -> None:
        """The thread that worked on *message*, if one did, is free again."""
        self._busy.discard(id(message))

    def wake(self, lanes: Sequence[str], *, probe: bool = False) -> bool | None:
        """
        Hand over the message that stands first in one of *lanes*. False: none waits here. None: no thread is free, or
        others have taken those that wait.

        Args:
            probe: That it may be admitted is a guess. If it is right, the next one may be too.
        """
        if not lanes or len(self._busy) >= self._threads:
            return None
        found: list[tuple[WaitingEntry, Any, Waiting]] = []
        for thread in list(self._known):
            queue = thread.delay_queue
            if thread.running and isinstance(queue, Waiting):
                entries = [queue.first_in(lane) for lane in lanes]
                found += [(entry, thread, queue) for entry in entries if entry is not None]
        for entry, thread, queue in sorted(found, key=lambda each: each[0]):
            if self._bring_up(thread, queue, entry, probe=probe):
                return True
        return None if found else False

    def _bring_up(self, thread: Any, queue: Waiting, entry: WaitingEntry, *, probe: bool) -> bool:
        if not queue.remove(entry):
            return False
        if entry.item.message.actor_name not in thread.broker.actors:
            # No worker with this code can run it. It goes on waiting, outside the line, so that others pass it.
            held = entry.item
            queue.put(Retimed(held.item, int(entry.own), held.since, entry.waited, NO_LANE))
            queue.task_done()
            return False
        self._hand_over(thread, entry, _released(entry.item.message), probe=probe)
        queue.task_done()
        return True

    def _probe(self, thread: Any, queue: Waiting) -> None:
        now = time.monotonic()
        if len(self._busy) >= self._threads or now - self._probed_at.get(thread, 0.0) < _PROBE_EVERY:
            return
        self._probed_at[thread] = now
        entry = queue.to_look_at(current_millis())
        for _ in range(_MOST_UNKNOWN):
            if entry is None or self._bring_up(thread, queue, entry, probe=True):
                return
            entry = queue.first_in(entry.lane.name)

    def _turn(self, thread: Any) -> None:
        """What a delay queue's consumer does after each message, and when there is none."""
        self._release_due(thread)
        connection, now = getattr(thread.consumer, "connection", None), time.monotonic()
        if connection is not None and now - self._sent_at.get(thread, 0.0) >= _SEND_EVERY:
            # RabbitMQ's acknowledgements wait for the consumer's loop, which first hands over all fetched messages:
            # thousands, after a restart. A kill before they are sent would run each of those jobs again.
            self._sent_at[thread] = now
            _send(connection)

    def _release_due(self, thread: Any) -> None:
        connection = getattr(thread.consumer, "connection", None)
        if not thread.running or (connection is not None and not connection.is_open):
            # The connection is closed, or about to be: RabbitMQ delivers its messages again. A message that is released
            # now could not be acknowledged, and would run twice.
            return
        self._rescue(thread)
        queue, now = thread.delay_queue, current_millis()
        next_in = _IDLE_POLL_MS
        while (entry := queue.first()) is not None:
            if entry.due > now or not self._may_go(entry.item.message, now - int(entry.due)):
                next_in = int(entry.due) - now
                break
            if queue.remove(entry):
                try:
                    self._let_go(thread, entry)
                except Exception:
                    # Dramatiq gives back what is in the queue, and forgets what is not in it.
                    queue.put(entry.item.item)
                    raise
                finally:
                    queue.task_done()
        self._probe(thread, queue)
        self._look_again(thread, max(_SHORTEST_POLL_MS, min(_IDLE_POLL_MS, next_in)))

    def _look_again(self, thread: Any, after_ms: int) -> None:
        """Have `_release_due` called again after *after_ms*, in the consumer's own thread."""
        consumer = thread.consumer
        if hasattr(consumer, "timeout"):
            consumer.timeout = after_ms
            return
        # RabbitMQ's consumer has no time-out to shorten, but its connection keeps timers.
        now, at = current_millis(), current_millis() + after_ms
        known, set_for = self._timers.get(thread, (None, 0))
        if after_ms < _IDLE_POLL_MS and (known is not consumer or not now < set_for <= at):
            self._timers[thread] = (consumer, at)
            consumer.connection.call_later(after_ms / 1000, partial(self._release_due, thread))

    def _may_go(self, message: Any, overdue_ms: int) -> bool:
        return TICKET not in message.options or len(self._busy) < self._threads or overdue_ms >= _PATIENCE_MS

    def _let_go(self, thread: Any, entry: WaitingEntry) -> None:
        message = entry.item.message
        released = _released(message)
        ours = TICKET in message.options
        if ours and len(self._busy) < self._threads and message.actor_name in thread.broker.actors:
            self._hand_over(thread, entry, released, probe=False)
        else:
            thread.broker.enqueue(released)
            thread.post_process_message(message)

    def _hand_over(self, thread: Any, entry: WaitingEntry, released: Any, *, probe: bool) -> None:
        # A new proxy: the waiting message stays as it is, and before Dramatiq 2.2 a proxy cannot be processed twice.
        message: Any = object.__new__(entry.item.message.__class__)
        message.__dict__.update(entry.item.message.__dict__)
        message._message = released
        holder = Holder(thread, thread.consumer, thread.delay_queue, entry.item, entry.waited, probe)
        setattr(message, HOLDER, holder)
        self.take(message)
        thread.handle_message(message)

    def _rescue(self, thread: Any) -> None:
        """
        Give back what a broken connection made Dramatiq forget.

        It drops the messages that it holds, and those that it has fetched and not looked at. RabbitMQ delivers
        them again; on Redis they would stay with this process, unseen, until it ends.
        """
        queue, consumer = self._known[thread]
        if queue is thread.delay_queue and consumer is thread.consumer:
            return
        messages: list[Any] = [_decode(data) for data in getattr(consumer, "message_cache", ()) if data]
        if queue is not thread.delay_queue:
            messages += queue.messages()
            fresh, thread.delay_queue = thread.delay_queue, Waiting()
            while not fresh.empty():
                thread.delay_queue.put(fresh.get_nowait())
        if messages:
            thread.requeue_messages(messages)
            _log.warning("Connection lost: %d waiting messages go back to %s.", len(messages), thread.queue_name)
        self._known[thread] = thread.delay_queue, thread.consumer


def _send(connection: Any) -> None:
    """
    Send what is buffered on *connection*, to RabbitMQ, and read what has arrived.

    Raises:
        ConnectionClosed: The connection is lost. On a closed connection pika's own loop raises a ValueError, which
            Dramatiq would log as an unexpected error.
    """
    from pika.exceptions import AMQPError  # type: ignore[import-untyped]

    if not connection.is_open:
        raise ConnectionClosed("the connection is closed")  # type: ignore[no-untyped-call]
    try:
        connection.process_data_events(time_limit=0)
    except AMQPError as error:
        raise ConnectionClosed(error) from None  # type: ignore[no-untyped-call]


def _decode(data: bytes) -> Any:
    decode: Any = Message.decode  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return decode(data)


def _released(message: Any) -> Any:
    released = message.copy(queue_name=q_name(message.queue_name))
    del released.options["eta"]
    return released


def _handle(thread: Any, original: Any, message: Any) -> None:
    tag: Any = getattr(message, "_tag", None)
    known: Any = getattr(thread.consumer, "known_tags", ())
    if tag in known and not isinstance(tag, _Tag):
        message._tag = _Tag(tag)
        known.add(message._tag)
        known.discard(tag)
    original(message)


def _post_process(original: Any, message: Any) -> None:
    holder = holder_of(message)
    deferral: Deferral | None = getattr(message, DEFERRAL, None)
    if holder is None:
        original(message)
    elif deferral is not None and deferral.copy is None:
        _put_back(holder, deferral)
    elif not hasattr(message, "_tag") or holder.consumer is holder.thread.consumer:
        holder.thread.post_process_message(message)
    # Else RabbitMQ has delivered it again, and its tag may now be another message's.


def _put_back(holder: Holder, deferral: Deferral) -> None:
    """The message was handed over and denied: it goes on waiting, without a broker operation."""
    held = holder.held
    message = held.message
    if deferral.ticket:
        message.options[TICKET] = deferral.ticket
    if holder.thread.delay_queue is holder.queue:
        due = current_millis() + deferral.delay_ms
        holder.queue.put(Retimed(held.item, due, held.since, holder.waited, deferral.lane))
    elif not hasattr(message, "_tag"):  # RabbitMQ has delivered it again
        holder.thread.requeue_messages([message])


def _requeue(original: Any, messages: Iterable[Any]) -> None:
    by_thread: dict[Any, list[Any]] = {}
    for message in messages:
        holder = holder_of(message)
        by_thread.setdefault(holder and holder.thread, []).append(message)
    for thread, held in by_thread.items():
        (thread.requeue_messages if thread else original)(held)
