"""
The messages that a worker process holds, unacknowledged, until they are due.

They wait between the broker and the receiver, so a waiting message has no place of `max_async_tasks` and none of
`max_prefetch`. A message that is denied ends its callback, which gives its places back.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

from taskiq import AckableMessage, AsyncBroker
from taskiq.labels import LabelType
from taskiq.utils import maybe_awaitable

import throttlekit_lua
from throttlekit import ConfigurationError
from throttlekit.adapter import Deferred, Waited, lane_for, lane_left
from throttlekit.adapter.loop import Due, HoldingStream

__all__ = ["TICKET", "Delivered", "Holding", "check_broker"]

TICKET = "throttlekit"
"""The label in which a message that goes back to the broker carries its ticket."""

_RENEW = throttlekit_lua.script("taskiq_renew")
_MOMENT = 0.5

_log = logging.getLogger("throttlekit.taskiq")
_Message: TypeAlias = bytes | AckableMessage


def check_broker(broker: Any) -> None:
    """
    Raises:
        ConfigurationError: *broker* gives each message to several workers: what one of them puts back would run in all.
    """
    kinds = {kind.__name__ for kind in type(broker).__mro__}
    fanout = getattr(getattr(broker, "_exchange", None), "type", None) == "fanout"
    nats = "NatsBroker" in kinds and getattr(broker, "queue", None) is None
    if fanout or nats or kinds & {"PubSubBroker", "PubSubSentinelBroker"}:
        raise ConfigurationError(
            f"Throttle does not work with a {type(broker).__name__} that gives each message to several workers, "
            "since what one of them puts back would run in all: use a stream or a queue"
        )


class Delivered(bytes):
    """
    A message as the broker gave it, which the receiver passes on as bytes.

    Attributes:
        confirm: Acknowledges it; None: its broker knows no acknowledgements.
        ticket: What it was denied with.
        since: When it came, by the loop's clock; then when its broker last heard that it is held.
        waited: Whether it was held here.
        early: By how many seconds it is handed on before it was expected; None: it has not waited here.
        before: Where it has waited here.
        kept: Whether it stays with this process, so that the end of its callback acknowledges nothing.
    """

    confirm: Callable[[], Awaitable[None] | None] | None = None
    ticket: Mapping[str, Any] | None = None
    since = 0.0
    early: float | None = None
    before: Waited | None = None
    waited = kept = acked = False

    def again(self, ticket: Mapping[str, Any] | None) -> Delivered:
        """The same message, after a denial. Its callback, which ends now, can acknowledge it no more."""
        made = copy.copy(self)
        made.ticket, made.waited, self.kept = ticket, True, True
        return made

    @property
    def is_lost(self) -> bool:
        """Whether its connection to RabbitMQ is lost: it is delivered anew, and this one is acknowledged no more."""
        channel = getattr(getattr(self.confirm, "__self__", None), "_IncomingMessage__channel", None)
        return bool(getattr(channel, "is_closed", False))

    async def ack(self) -> None:
        if not self.kept and self.confirm is not None:
            self.acked = True
            await maybe_awaitable(self.confirm())


class Holding(HoldingStream[_Message, Delivered]):
    """Holds the messages of one broker."""

    def __init__(self, broker: AsyncBroker, most: int) -> None:
        # RabbitMQ's client closes a channel if a stream on it is cancelled while it opens. If a read from Redis is
        # cancelled, a message that Redis has sent already is lost, or delivered again after its stream's idle time.
        super().__init__(
            broker.listen,
            most=most,
            log=_log,
            opens_within=1.0 if hasattr(broker, "_qos") else 0.0,
            answers_within=0.5 if hasattr(broker, "connection_pool") else 0.0,
        )
        self._broker: Any = broker
        idle_ms = getattr(broker, "idle_timeout", None)
        self._idle = idle_ms / 1000 if isinstance(idle_ms, int) else None
        # RabbitMQ closes a channel that holds a message for 30 minutes, and the body needs time too. A stream gives a
        # message that is idle for too long to another worker.
        self.longest = 600.0 if self._idle is None else self._idle / 2

    async def hold(self, denied: Delivered, outcome: Deferred) -> None:
        """Let a message that was denied wait: here if it may, else it goes back. Its callback ends now."""
        message, lane = denied.again(outcome.ticket), lane_for(outcome)
        held = asyncio.get_running_loop().time() - message.since
        renewed = self._idle is not None or message.confirm is None
        may_wait = renewed or held < _MOMENT or held + outcome.delay <= self.longest
        if self.is_open and may_wait and not message.acked:
            self.room.put(message, outcome.delay, lane, self.longest, denied.before)
        else:
            await self.put_back(message)
        self.room.wake([lane_left(denied.before, lane, outcome.delay)])

    def received(self, raw: _Message) -> Delivered:
        made = Delivered(raw.data if isinstance(raw, AckableMessage) else raw)
        made.confirm = raw.ack if isinstance(raw, AckableMessage) else None
        made.since = asyncio.get_running_loop().time()
        return made

    def handed_on(self, message: Delivered, *, due: Due[Delivered] | None) -> _Message:
        if due is not None:
            message.early, message.before = due.early, due.waited
        return message if message.confirm is None else AckableMessage(data=message, ack=message.ack)

    def comes_again(self, message: Delivered) -> bool:
        return message.confirm is not None and not message.acked

    async def send_back(self, message: Delivered) -> None:
        if message.is_lost:
            return
        made = self._broker.formatter.loads(bytes(message))
        if message.ticket is not None:
            made.labels[TICKET] = json.dumps(message.ticket)
            if made.labels_types is not None:
                made.labels_types[TICKET] = LabelType.STR
        sent = self._broker.formatter.dumps(made)
        sent.labels = {name: label for name, label in sent.labels.items() if name != "delay"}  # it is over
        await self._broker.kick(sent)
        if not message.acked:
            await message.ack()

    def needs_another_stream(self, held: int, streams: int) -> bool:
        # RabbitMQ gives a consumer so many unacknowledged messages: those that wait here have other consumers.
        window = getattr(self._broker, "_qos", 0)
        return bool(window) and held > window * (streams - 1)

    def more_streams(self) -> Sequence[AsyncGenerator[_Message, None]]:
        return () if self._idle is None else [self._abandoned(self._idle)]

    async def _abandoned(self, idle: float) -> AsyncGenerator[_Message, None]:
        """
        Yield the messages of the broker's streams that killed workers had, once they are idle for *idle* seconds. The
        broker itself claims some of them after it has read other messages, and none if no others arrive.

        It also claims those of live workers, which may be running. This does not: a worker with throttlekit keeps a key
        as long as it lives, and one without counts as dead if the server has not heard from it for *idle* seconds.
        """
        while True:
            for name in (self._broker.queue_name, *self._broker.additional_streams):
                try:
                    async for message in self._claimed(name):
                        yield message
                except Exception as error:
                    _log.warning("Messages of killed workers in the stream %s could not be claimed: %r", name, error)
            await asyncio.sleep(idle / 10)

    def _alive(self, stream: str, consumer: str) -> str:
        """The key that a worker keeps while it lives."""
        return f"throttlekit:taskiq:alive:{stream}:{self._broker.consumer_group_name}:{consumer}"

    async def _dead_consumers(self, stream: str, idle_ms: int) -> list[str]:
        """The consumers of *stream* that have messages and whose workers are gone."""
        dead: list[str] = []
        for info in await self._command("XINFO", "CONSUMERS", stream, self._broker.consumer_group_name):
            pairs: Any = info.items() if hasattr(info, "items") else zip(info[::2], info[1::2], strict=True)
            facts: dict[bytes, Any] = dict(pairs)
            name: str = facts[b"name"].decode()
            if name == self._broker.consumer_name or not facts[b"pending"] or facts[b"idle"] < idle_ms:
                continue
            if not await self._command("EXISTS", self._alive(stream, name)):
                dead.append(name)
        return dead

    async def _claimed(self, stream: str) -> AsyncGenerator[_Message, None]:
        """Record that this worker lives, and claim and yield the messages of consumers that are dead."""
        broker = self._broker
        group, own, least = broker.consumer_group_name, broker.consumer_name, broker.idle_timeout
        await self._command("SET", self._alive(stream, own), "1", "PX", least)
        for consumer in await self._dead_consumers(stream, least):
            start = "-"
            while True:
                most = broker.unacknowledged_batch_size
                pending: list[Any] = await self._command(
                    "XPENDING", stream, group, "IDLE", least, start, "+", most, consumer
                )
                if not pending:
                    break
                for entry_id, *_ in pending:
                    # One by one, as each is handed on: a message that was claimed and is not handed on would stay with
                    # this worker, which lives. Of those that another worker has claimed meanwhile, nothing comes.
                    for entry in await self._command("XCLAIM", stream, group, own, least, entry_id):
                        if entry is not None and entry[1] is not None:  # servers before 7.0 send nil for a deleted one
                            fields = dict(zip(entry[1][::2], entry[1][1::2], strict=True))
                            ack = broker._ack_generator(id=entry[0], queue_name=stream)
                            yield AckableMessage(data=fields[b"data"], ack=ack)
                start = "(" + pending[-1][0].decode()

    async def _command(self, *words: Any) -> Any:
        pool = self._broker.connection_pool
        connection = await pool.get_connection()
        try:
            await connection.send_command(*words)
            return await connection.read_response()
        finally:
            await pool.release(connection)

    async def is_ours(self, message: Delivered) -> bool:
        """The broker of a stream learns that this worker is at work."""
        held = asyncio.get_running_loop().time() - message.since
        if message.is_lost or self._idle is None or message.confirm is None or held < self._idle / 20:
            return not message.is_lost
        if held > 0.9 * self._idle:
            return False
        named, broker = inspect.getclosurevars(message.confirm).nonlocals, self._broker
        told = named["queue_name"], broker.consumer_group_name, broker.consumer_name, named["id"]
        ours = bool(await self._command("EVAL", _RENEW, 1, *told))
        message.since += held
        return ours
