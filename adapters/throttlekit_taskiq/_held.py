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
        since: The time of the arrival, by the loop's clock.
        stream, entry_id: The stream and the id of the message's entry. Both are empty if the broker has no streams.
        task_id: The id on waitlists. "" if it is not set yet.
        kept: Whether this process holds the message, so that the end of its callback must not acknowledge it.
        has_copy: Whether the stream has delivered the same entry again.
    """

    confirm: Callable[[], Awaitable[None] | None] | None = None
    since = 0.0
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
        self._consumers: list[tuple[Any, str]] = []  # further consumers of RabbitMQ: the queue and the tag of each
        self._arrived: asyncio.Queue[Any] = asyncio.Queue()  # their messages, and numbers of held messages
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
        """Renew the held messages of streams, so that no other worker claims them, or put back old ones."""
        streams: dict[str, dict[bytes, Delivered]] = {}
        for message in list(self._kept.values()):
            if message.stream and not message.acked:
                streams.setdefault(message.stream, {})[message.entry_id] = message
            elif self._is_held_for_long(message) and self._kept.get(message.task_id) is message:  # not woken since
                await self._pass_on(message.task_id)
        for stream, held in streams.items():
            for entry_id in held.keys() - await self._renew_entries(stream, [*held]):
                self._remove(held[entry_id])

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

    def _remove(self, message: Delivered) -> None:
        if self._kept.get(message.task_id) is message:
            del self._kept[message.task_id]

    def convert_message(self, raw: _Message) -> Delivered:
        made = Delivered(raw.data if isinstance(raw, AckableMessage) else raw)
        made.confirm = raw.ack if isinstance(raw, AckableMessage) else None
        made.since = asyncio.get_running_loop().time()
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
        if getattr(self._broker, "_qos", 0):
            return [self._read_further()]
        return [] if self._idle is None else [self._read_abandoned(self._idle)]

    def on_fetch(self, held: int) -> None:
        if getattr(self._broker, "_qos", 0) and (held or self._consumers):
            self._arrived.put_nowait(held)

    async def _read_further(self) -> AsyncGenerator[_Message, None]:
        """
        Yield messages of further consumers of RabbitMQ, of which each queue has one for each `qos` of held messages.

        A consumer gets no more messages while `qos` are unacknowledged, as held ones are. When fewer are held, the
        consumers are cancelled: otherwise this process would fetch messages that other workers could run.
        """
        try:
            while True:
                arrived = await self._arrived.get()
                if isinstance(arrived, int):
                    await self._fit_consumers(arrived)
                else:
                    yield AckableMessage(data=arrived.body, ack=arrived.ack)
        finally:
            if self._consumers and not self._broker.read_channel.is_closed:
                await self._fit_consumers(0, fewest=0)

    async def _fit_consumers(self, held: int, fewest: int = 1) -> None:
        """Open or cancel consumers for *held* messages. Each queue keeps at least *fewest*, once it has them."""
        queues, window = self._broker._task_queues, self._broker._qos
        while len(self._consumers) * window < held * len(queues):
            self.opened_at = asyncio.get_running_loop().time()
            for queue in queues:
                declared = await self._broker.read_channel.declare_queue(queue.name, passive=True)
                self._consumers.append(
                    (declared, await declared.consume(self._arrived.put, **queue.consumer_arguments))
                )
        # Keep up to twice as many as needed, so that they are not opened again at once.
        kept = len(queues) * max(fewest, 2 * held // window)
        surplus, self._consumers = self._consumers[kept:], self._consumers[:kept]
        await asyncio.gather(*(declared.cancel(tag) for declared, tag in surplus))

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

    async def _dead_consumers(self, stream: str, alive: str) -> AsyncGenerator[str, None]:
        """Yield the consumers of *stream* that have messages, and whose workers are dead."""
        for info in await self._command("XINFO", "CONSUMERS", stream, self._broker.consumer_group_name):
            facts: dict[bytes, Any] = info if isinstance(info, dict) else dict(zip(info[::2], info[1::2], strict=True))
            name: str = facts[b"name"].decode()
            is_idle = facts[b"pending"] and facts[b"idle"] >= self._broker.idle_timeout
            if is_idle and name != self._broker.consumer_name and not await self._command("EXISTS", alive + name):
                yield name

    async def _claim(self, stream: str) -> AsyncGenerator[_Message, None]:
        """Renew the key of this worker, and claim and yield the messages of dead consumers."""
        broker = self._broker
        group, own, least = broker.consumer_group_name, broker.consumer_name, broker.idle_timeout
        alive = f"throttlekit:taskiq:alive:{stream}:{group}:"  # and the name of a consumer, whose worker lives
        await self._command("SET", alive + own, "1", "PX", least)
        async for consumer in self._dead_consumers(stream, alive):
            page = ("XPENDING", stream, group, "IDLE", least, "-", "+", broker.unacknowledged_batch_size, consumer)
            while pending := await self._command(*page):
                for entry_id, *_ in pending:
                    # Claim one by one: this worker would keep a message that is claimed but not yielded, because it
                    # lives. XCLAIM returns nothing for a message that another worker has claimed in the meantime.
                    for entry in await self._command("XCLAIM", stream, group, own, least, entry_id):
                        if entry is not None and entry[1] is not None:  # before 7.0: nil for a deleted entry
                            fields = dict(zip(entry[1][::2], entry[1][1::2], strict=True))
                            yield AckableMessage(data=fields[b"data"], ack=broker._ack_generator(entry[0], stream))

    async def _command(self, *words: Any) -> Any:
        connection = await self._broker.connection_pool.get_connection()
        try:
            await connection.send_command(*words)
            return await connection.read_response()
        finally:
            await self._broker.connection_pool.release(connection)

    async def is_ours(self, message: Delivered) -> bool:
        if message.acked or message.is_lost:
            return message.acked  # its body has begun before, so the broker no longer has it
        if self._idle is None or not message.stream or self._held_for(message) < self._idle / 20:
            return True
        return message.entry_id in await self._renew_entries(message.stream, [message.entry_id])

    async def _renew_entries(self, stream: str, ids: Sequence[bytes]) -> list[bytes]:
        """Reset the idle time of these messages in a stream. Return the ids of those that this worker still has."""
        named = (stream, self._broker.consumer_group_name, self._broker.consumer_name)
        ours: list[bytes] = await self._command("EVAL", _RENEW, 1, *named, *ids)
        return ours
