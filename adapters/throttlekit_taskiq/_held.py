"""
The messages that a worker process holds, unacknowledged, until they are due.

They wait between the broker and the receiver, so a waiting message has no place of `max_async_tasks` and none of
`max_prefetch`. `Holding.listen` stands in place of the broker's own `listen`. A message that is denied ends its
callback, which gives its places back, and comes out of `listen` once more when it is due.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from taskiq import AckableMessage, AsyncBroker
from taskiq.utils import maybe_awaitable

from throttlekit.adapter.loop import LoopRoom

__all__ = ["Delivered", "Holding"]

_AT_ONCE = 32  # messages that go back to the broker at the same time
_MOMENT = 0.5
_INSIST_S, _TRY_AGAIN_S = 30.0, 0.5
"""For how long a worker that ends waits for a broker that is away and knows no acknowledgements."""

_log = logging.getLogger("throttlekit.taskiq")
_Message: TypeAlias = bytes | AckableMessage


class Delivered(bytes):
    """
    A message as the broker gave it, which the receiver passes on as bytes.

    Attributes:
        confirm: Acknowledges it; None: its broker knows no acknowledgements.
        ticket: What it was denied with.
        since: When it came, by the loop's clock; then when its broker last heard that it is held.
        waited: Whether it was held here.
        early: Whether it is handed on before it is due, on the guess that it is admitted.
        kept: Whether it stays with this process, so that the end of its callback acknowledges nothing.
    """

    confirm: Callable[[], Awaitable[None] | None] | None = None
    ticket: Mapping[str, Any] | None = None
    since = 0.0
    waited = early = kept = acked = False

    @classmethod
    def of(cls, message: _Message) -> Delivered:
        made = cls(message.data if isinstance(message, AckableMessage) else message)
        made.confirm = message.ack if isinstance(message, AckableMessage) else None
        made.since = asyncio.get_running_loop().time()
        return made

    def again(self, ticket: Mapping[str, Any] | None) -> Delivered:
        """The same message, after a denial. Its callback, which ends now, can acknowledge it no more."""
        self.kept = True
        made = Delivered(self)
        made.confirm, made.since, made.ticket, made.waited = self.confirm, self.since, ticket, True
        return made

    @property
    def is_lost(self) -> bool:
        """Whether its connection to RabbitMQ is lost: it is delivered anew, and this one is acknowledged no more."""
        channel = getattr(getattr(self.confirm, "__self__", None), "_IncomingMessage__channel", None)
        return bool(getattr(channel, "is_closed", False))

    def for_receiver(self) -> _Message:
        return self if self.confirm is None else AckableMessage(data=self, ack=self.ack)

    async def ack(self) -> None:
        if not self.kept and self.confirm is not None:
            self.acked = True
            await maybe_awaitable(self.confirm())


class Holding:
    """
    Holds the messages of one broker.

    Args:
        most: How many messages may wait here. While so many do, none are fetched.
        send_back: Puts a message back into the broker, with its ticket.
    """

    def __init__(self, broker: AsyncBroker, most: int, send_back: Callable[[Delivered], Awaitable[None]]) -> None:
        self._broker, self._most, self._send_back = broker, most, send_back
        self._listen = broker.listen
        self._sources: dict[AsyncGenerator[_Message, None], asyncio.Task[_Message] | None] = {}
        self._open = self._is_away = False
        self.room: LoopRoom[Delivered] = LoopRoom()
        idle_ms = getattr(broker, "idle_timeout", None)
        self._idle = idle_ms / 1000 if isinstance(idle_ms, int) else None
        # RabbitMQ closes a channel that holds a message for 30 minutes, and the body needs time too. A stream gives a
        # message that is idle for too long to another worker.
        self.longest = 600.0 if self._idle is None else self._idle / 2

    async def listen(self) -> AsyncGenerator[_Message, None]:
        """In place of the broker's `listen`: the messages that are due, and those that come."""
        self._open = True
        self._sources[self._listen()] = None
        try:
            while True:
                if (due := self.room.next()) is not None:
                    due.item.early = due.early
                    if await self._is_mine(due.item):
                        yield due.item.for_receiver()
                elif (arrived := self._arrived()) is not None:
                    yield Delivered.of(arrived).for_receiver()
                else:
                    self._fetch()
                    await self.room.rung()
        except StopAsyncIteration:
            return
        finally:
            await self._close()

    async def hold(self, message: Delivered, delay: float) -> None:
        """Let *message*, which was denied, wait for *delay* seconds: here if it may, else it goes back."""
        if message.is_lost:
            return
        held = asyncio.get_running_loop().time() - message.since
        renewed = self._idle is not None or message.confirm is None
        if self._open and (renewed or held < _MOMENT or held + delay <= self.longest):
            self.room.put(message, delay, message.ticket, self.longest)
        else:
            await self._send_back(message)

    def _arrived(self) -> _Message | None:
        for source, reading in self._sources.items():
            if reading is not None and reading.done():
                self._sources[source] = None
                return reading.result()
        return None

    def _fetch(self) -> None:
        if len(self.room) >= self._most:
            return
        window: int | None = getattr(self._broker, "_qos", None)
        if window and len(self.room) > window * (len(self._sources) - 1):
            # RabbitMQ gives a consumer so many unacknowledged messages: those that wait here have other consumers.
            self._sources[self._listen()] = None
        for source, reading in self._sources.items():
            if reading is None:
                reading = self._sources[source] = asyncio.ensure_future(anext(source))
                reading.add_done_callback(self.room.ring)

    async def _is_mine(self, message: Delivered) -> bool:
        """Whether the broker has not given *message* to another consumer. It learns that this one is at work."""
        if message.is_lost:
            return False
        held = asyncio.get_running_loop().time() - message.since
        if self._idle is None or message.confirm is None or held < self._idle / 20:
            return True
        if held > 0.9 * self._idle:
            return False
        broker: Any = self._broker
        named = inspect.getclosurevars(message.confirm).nonlocals
        group, consumer = broker.consumer_group_name, broker.consumer_name
        connection = await broker.connection_pool.get_connection()
        try:
            await connection.send_command("XCLAIM", named["queue_name"], group, consumer, 0, named["id"], "JUSTID")
            await connection.read_response()
        finally:
            await broker.connection_pool.release(connection)
        message.since += held
        return True

    async def _close(self) -> None:
        """The worker stops: what waits goes back, so that others need not find out that it is gone."""
        self._open = False
        held = [each for each in self.room.drain() if not each.is_lost]
        for reading in filter(None, self._sources.values()):
            while not reading.done():  # redis-py may swallow a cancellation
                reading.cancel()
                await asyncio.wait([reading], timeout=0.1)
            if not reading.cancelled() and reading.exception() is None:
                held.append(Delivered.of(reading.result()))
        until = asyncio.get_running_loop().time() + _INSIST_S
        for begin in range(0, len(held), _AT_ONCE):
            await asyncio.gather(*(self._put_back(each, until) for each in held[begin : begin + _AT_ONCE]))
        for source in self._sources:
            await source.aclose()
        self._sources = {}

    async def _put_back(self, message: Delivered, until: float) -> None:
        """Send *message* back; until then it is tried again, if its broker knows no acknowledgements."""
        kept = message.confirm is not None
        while True:
            try:
                await self._send_back(message)
                break
            except Exception as error:
                if kept or asyncio.get_running_loop().time() > until:
                    lost = "comes back later" if kept else "is lost: its broker knows no acknowledgements"
                    _log.error("A message that waited could not be put back, and %s: %r", lost, error)
                    break
                if not self._is_away:
                    self._is_away = True
                    _log.warning("The broker is away: what waits is put back if it answers within %g s.", _INSIST_S)
                await asyncio.sleep(_TRY_AGAIN_S)
