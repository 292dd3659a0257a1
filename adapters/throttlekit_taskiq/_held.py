"""
Hold the denied messages of a worker process, unacknowledged, until the store wakes them.

Denied messages wait between the broker and taskiq's receiver. The receiver's callback of a denied message ends, so the
message does not count for `max_async_tasks` or `max_prefetch` while it waits.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, TypeAlias
from uuid import uuid4

from taskiq import AckableMessage, AsyncBroker
from taskiq.utils import maybe_awaitable

import throttlekit_lua
from throttlekit import ConfigurationError, Limiter
from throttlekit.adapter import Waiting
from throttlekit.adapter.loop import HoldingStream

__all__ = ["Delivered", "Holding", "check_broker"]

_RENEW = throttlekit_lua.script("taskiq_renew")
_RENEWED_AT_ONCE = 100

_LONGEST_HOLD = 600.0
"""The seconds after which a waiting message of RabbitMQ is requeued: see `Holding._is_held_for_long`."""

_log = logging.getLogger("throttlekit.taskiq")
_Message: TypeAlias = bytes | AckableMessage


def check_broker(broker: Any) -> None:
    """
    Check that *broker* delivers each message to one worker only.

    Raises:
        ConfigurationError: *broker* delivers each message to several workers, so a requeued message would run in all.
    """
    kinds = {kind.__name__ for kind in type(broker).__mro__}
    fanout = getattr(getattr(broker, "_exchange", None), "type", None) == "fanout"
    nats = "NatsBroker" in kinds and getattr(broker, "queue", None) is None
    if fanout or nats or kinds & {"PubSubBroker", "PubSubSentinelBroker"}:
        raise ConfigurationError(
            f"Throttle does not work with a {type(broker).__name__} that delivers each message to several workers, "
            "because a message that one of them requeues would run in all: use a stream or a queue"
        )


class Delivered(bytes):
    """
    A message from the broker. It is a subclass of bytes, because the receiver passes the message on as bytes.

    Attributes:
        confirm: The function that acknowledges the message. None if the broker has no acknowledgements.
        since, renewed_at: The times of the arrival and of the last renewal in its stream, by the loop's clock.
        stream, entry_id: The stream and the id of the message's entry. Both are empty if the broker has no streams.
        task_id: The id on waitlists. "" if it is not set yet.
        kept: Whether this process holds the message, so that the end of its callback must not acknowledge it.
        has_copy: Whether the stream has delivered the same entry again.
    """

    confirm: Callable[[], Awaitable[None] | None] | None = None
    since = renewed_at = 0.0
    stream = task_id = ""
    entry_id = b""
    kept = acked = has_copy = False

    def copy_for_callback(self) -> Delivered:
        """Return a copy for a new callback, so that the denied callback cannot acknowledge the message."""
        made = copy.copy(self)
        made.kept = False
        return made

    @property
    def is_lost(self) -> bool:
        """Whether the broker delivers the message again, so that this one must not run, be put back or acknowledged."""
        # RabbitMQ delivers it again after a lost connection.
        channel = getattr(getattr(self.confirm, "__self__", None), "_IncomingMessage__channel", None)
        return self.has_copy or bool(getattr(channel, "is_closed", False))

    async def ack(self) -> None:
        if not self.kept and not self.acked and self.confirm is not None:
            await maybe_awaitable(self.confirm())
            self.acked = True


class Holding(HoldingStream[_Message, Delivered]):
    """Holds the messages of one broker."""

    def __init__(self, broker: AsyncBroker, limiter: Limiter, free: Callable[[], int], most: int) -> None:
        # RabbitMQ's client closes a channel if a stream on it is cancelled while it opens. If a read from a Redis
        # stream is cancelled, a message that Redis has already sent is redelivered only after the stream's idle time.
        idle_ms = getattr(broker, "idle_timeout", None)
        self._idle = idle_ms / 1000 if isinstance(idle_ms, int) else None
        is_list = type(broker).listen.__qualname__ == "ListQueueBroker.listen"
        super().__init__(
            self._read_list if is_list else broker.listen,
            limiter,
            free=free,
            most=most,
            log=_log,
            opens_within=1.0 if hasattr(broker, "_qos") else 0.0,
            answers_within=10.0 if is_list else 0.5 if hasattr(broker, "connection_pool") else 0.0,
            tend_every=_LONGEST_HOLD / 10 if self._idle is None else self._idle / 4,
        )
        self._broker: Any = broker
        self._kept: dict[str, Delivered] = {}

    def waiting_of(self, message: Delivered, task_id: str) -> Waiting:
        """Return the `Waiting` of *message*, with a separate id if another message with the same task id waits."""
        if not message.task_id:
            other = self._kept.get(task_id)
            if other is not None and other.stream and other.entry_id == message.entry_id:
                other.has_copy = True
            is_other = other is not None and not other.is_lost
            message.task_id = f"{task_id}:{uuid4().hex}" if is_other else task_id
        return Waiting(self.waker, message, message.task_id)

    async def keep(self, denied: Delivered) -> None:
        """Hold a denied message, whose callback ends now, or requeue the message if this process must not hold it."""
        denied.kept = True
        self._kept[denied.task_id] = denied
        if denied.acked or self._is_held_for_long(denied):
            await self._pass_on(denied.task_id)
        await self.settle()

    async def tend(self) -> None:
        if self._idle is not None:
            await self._renew()
        else:
            for id, message in list(self._kept.items()):
                if self._kept.get(id) is message and self._is_held_for_long(message):  # it may have been woken since
                    await self._pass_on(id)

    def _is_held_for_long(self, message: Delivered) -> bool:
        """Return whether to requeue *message*: RabbitMQ closes a channel that holds a message for 30 minutes."""
        return self._idle is None and message.confirm is not None and self._held_for(message) > _LONGEST_HOLD

    def _held_for(self, message: Delivered) -> float:
        return asyncio.get_running_loop().time() - message.since

    async def _pass_on(self, id: str) -> None:
        """Requeue a waiting message, which keeps its position on the waitlists."""
        message = self._kept.pop(id)
        if self.waker.pass_on(id) is message:
            await self.put_back(message)

    async def _renew(self) -> None:
        """Renew the held messages of streams, so that no other worker claims them as idle."""
        streams: dict[str, list[Delivered]] = {}
        for message in self._kept.values():
            if message.stream and not message.acked:
                streams.setdefault(message.stream, []).append(message)
        for stream, held in streams.items():
            for first in range(0, len(held), _RENEWED_AT_ONCE):
                part = held[first : first + _RENEWED_AT_ONCE]
                ours = await self._renew_entries(stream, part)
                for message in part:
                    if message.entry_id not in ours:
                        self._remove(message)

    def _remove(self, message: Delivered) -> None:
        if self._kept.get(message.task_id) is message:
            del self._kept[message.task_id]

    def convert_message(self, raw: _Message) -> Delivered:
        made = Delivered(raw.data if isinstance(raw, AckableMessage) else raw)
        made.confirm = raw.ack if isinstance(raw, AckableMessage) else None
        made.since = made.renewed_at = asyncio.get_running_loop().time()
        if self._idle is not None and made.confirm is not None:
            named = inspect.getclosurevars(made.confirm).nonlocals
            made.stream, made.entry_id = named.get("queue_name", ""), named.get("id", b"")
        return made

    def to_framework(self, message: Delivered, *, waited: bool) -> _Message:
        if waited:
            self._remove(message)
            message = message.copy_for_callback()
        return message if message.confirm is None else AckableMessage(data=message, ack=message.ack)

    def is_redelivered(self, message: Delivered) -> bool:
        return message.confirm is not None and not message.acked

    async def send_back(self, message: Delivered) -> None:
        self._remove(message)
        if message.is_lost:
            return
        sent = self._broker.formatter.dumps(self._broker.formatter.loads(bytes(message)))
        sent.labels = {name: label for name, label in sent.labels.items() if name != "delay"}  # the delay has passed
        await self._broker.kick(sent)
        if not message.acked:
            await message.copy_for_callback().ack()

    def needs_another_stream(self, held: int, streams: int) -> bool:
        # RabbitMQ limits the unacknowledged messages of a consumer, so held messages need additional consumers.
        window = getattr(self._broker, "_qos", 0)
        return bool(window) and held > window * (streams - 1)

    async def _read_list(self) -> AsyncGenerator[_Message, None]:
        """
        Yield the messages of the broker's list.

        The broker's own read has no time-out, so it has to be cancelled, and a message that Redis sends at that time
        is lost. The read in this method has a time-out, so no cancellation is needed.
        """
        while self.is_open:
            for message in (await self._command("BRPOP", self._broker.queue_name, 0.5) or ())[1:]:
                yield message

    def more_streams(self) -> Sequence[AsyncGenerator[_Message, None]]:
        return () if self._idle is None else [self._read_abandoned(self._idle)]

    async def _read_abandoned(self, idle: float) -> AsyncGenerator[_Message, None]:
        """
        Yield messages of killed workers from the broker's streams, when they have been idle for *idle* seconds.

        The broker itself claims some of these messages only after it has read others. It also claims messages of live
        workers, whose tasks may be running. This method claims only messages of dead workers. A worker with throttlekit
        has a key in Redis while it lives. Any other worker counts as dead if it has sent no command for *idle* seconds.
        """
        while True:
            for name in (self._broker.queue_name, *self._broker.additional_streams):
                try:
                    async for message in self._claim(name):
                        yield message
                except Exception as error:
                    _log.warning("Messages of killed workers in the stream %s could not be claimed: %r", name, error)
            await asyncio.sleep(idle / 10)

    def _alive_key(self, stream: str, consumer: str) -> str:
        """Return the key that exists while the worker of *consumer* lives."""
        return f"throttlekit:taskiq:alive:{stream}:{self._broker.consumer_group_name}:{consumer}"

    async def _dead_consumers(self, stream: str, idle_ms: int) -> list[str]:
        """Return the consumers of *stream* that have messages, and whose workers are dead."""
        dead: list[str] = []
        for info in await self._command("XINFO", "CONSUMERS", stream, self._broker.consumer_group_name):
            pairs: Any = info.items() if hasattr(info, "items") else zip(info[::2], info[1::2], strict=True)
            facts: dict[bytes, Any] = dict(pairs)
            name: str = facts[b"name"].decode()
            is_idle = name != self._broker.consumer_name and facts[b"pending"] and facts[b"idle"] >= idle_ms
            if is_idle and not await self._command("EXISTS", self._alive_key(stream, name)):
                dead.append(name)
        return dead

    async def _claim(self, stream: str) -> AsyncGenerator[_Message, None]:
        """Renew the key of this worker, and claim and yield the messages of dead consumers."""
        broker = self._broker
        group, own, least = broker.consumer_group_name, broker.consumer_name, broker.idle_timeout
        await self._command("SET", self._alive_key(stream, own), "1", "PX", least)
        size = broker.unacknowledged_batch_size
        for consumer in await self._dead_consumers(stream, least):
            pages = ("XPENDING", stream, group, "IDLE", least, "-", "+", size, consumer)
            while pending := await self._command(*pages):
                for entry_id, *_ in pending:
                    # Claim one by one: this worker would keep a message that is claimed but not yielded, because it
                    # lives. XCLAIM returns nothing for a message that another worker has claimed in the meantime.
                    for entry in await self._command("XCLAIM", stream, group, own, least, entry_id):
                        if entry is not None and entry[1] is not None:  # before 7.0: nil for a deleted entry
                            fields = dict(zip(entry[1][::2], entry[1][1::2], strict=True))
                            yield AckableMessage(data=fields[b"data"], ack=broker._ack_generator(entry[0], stream))

    async def _command(self, *words: Any) -> Any:
        pool = self._broker.connection_pool
        connection = await pool.get_connection()
        try:
            await connection.send_command(*words)
            return await connection.read_response()
        finally:
            await pool.release(connection)

    async def is_ours(self, message: Delivered) -> bool:
        if message.acked or message.is_lost:
            return message.acked  # the broker no longer has it, for example because its body has begun before
        if self._idle is None or not message.stream or self._held_for(message) < self._idle / 20:
            return True
        return message.entry_id in await self._renew_entries(message.stream, [message])

    async def _renew_entries(self, stream: str, messages: Sequence[Delivered]) -> list[bytes]:
        """
        Reset the idle time of *messages* in their stream. Return the ids of those that this worker still has.

        If a message was deleted from the stream, this worker alone has it, as if it had acknowledged it, unless another
        worker can have claimed and acknowledged it: it was not renewed for the idle time.
        """
        now = asyncio.get_running_loop().time()
        named = (stream, self._broker.consumer_group_name, self._broker.consumer_name)
        ours, deleted = await self._command("EVAL", _RENEW, 1, *named, *(each.entry_id for each in messages))
        for message in messages:
            if message.entry_id in ours:
                message.renewed_at = now
            elif message.entry_id in deleted and now - message.renewed_at < (self._idle or 0.0):
                message.acked = True
                ours.append(message.entry_id)
        return [*ours]
