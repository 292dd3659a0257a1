"""Waiting rooms for workers that are event loops, and the stream of messages in which a room stands."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from throttlekit.adapter.waiting import Entry, Lane, Waited, WaitingRoom

__all__ = ["Due", "HoldingStream", "LoopRoom"]

_LOOK_EVERY = 0.5
"""Seconds: a job that is due within so much is on time."""

_AT_ONCE = 32  # messages that go back to the broker at the same time
_CANCEL_AGAIN_S = 2.0
_INSIST_S, _TRY_AGAIN_S = 30.0, 0.5
"""For how long a worker that ends waits for a broker that is away and brings no message again."""

_T = TypeVar("_T")
_R = TypeVar("_R")


class Due(NamedTuple, Generic[_T]):
    """A job that is to ask again, by how many seconds that is before it was expected, and where it has waited."""

    item: _T
    early: float
    waited: Waited


class LoopRoom(Generic[_T]):
    """
    Jobs that wait in an event loop: a `WaitingRoom`, and a bell that rings when one of them is to ask again.

    `await rung()`, then take with `next()` until it returns None. All of it belongs to one loop and its thread.
    """

    def __init__(self) -> None:
        self._room: WaitingRoom[_T] = WaitingRoom()
        self._woken: deque[Entry[_T]] = deque()
        self._bell: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._room) + len(self._woken)

    def put(self, item: _T, delay: float, lane: Lane, longest: float, before: Waited | None = None) -> None:
        """
        Let *item*, which was denied, wait for *delay* seconds.

        Args:
            lane: See `lane_for`.
            longest: For how long at most, however late its lane becomes.
            before: Where it has waited before.
        """
        now = asyncio.get_running_loop().time()
        self._room.put(item, now + delay, lane, now=now, latest=now + longest, before=before)
        self.ring()

    def wake(self, lanes: Sequence[str]) -> None:
        """Let the job that stands first in one of *lanes* ask: it may be admitted now."""
        for lane in lanes:
            entry = self._room.first_in(lane)
            if entry is not None and self._room.remove(entry):
                self._woken.append(entry)
                self.ring()
                return

    def next(self) -> Due[_T] | None:
        """The job that is to ask now; it is taken out."""
        now = asyncio.get_running_loop().time()
        entry = self._woken.popleft() if self._woken else self._room.first()
        if entry is None or (entry.due > now and not entry.gone):
            entry = self._room.to_look_at(now, _LOOK_EVERY, now + _LOOK_EVERY / 2)
        if entry is None:
            return None
        self._room.remove(entry)
        return Due(entry.item, max(0.0, entry.expected - now), entry.waited)

    def drain(self) -> list[_T]:
        """Take out all jobs, in the order in which they are due."""
        found = [entry.item for entry in (*self._woken, *sorted(self._room))]
        self._room, self._woken = WaitingRoom(), deque()
        return found

    async def rung(self) -> None:
        """
        Wait until a job is due or woken, or `ring` is called; for half a second at most, as lines move and as signal
        handlers of frameworks do not always wake their loop. One task at a time.
        """
        loop = asyncio.get_running_loop()
        first, look = self._room.first(), loop.time() + _LOOK_EVERY
        bell = self._bell = loop.create_future()
        timer = loop.call_at(look if first is None else min(first.due, look), self.ring)
        try:
            await bell
        finally:
            self._bell = None
            timer.cancel()

    def ring(self, _: object = None) -> None:
        """End `rung`. May be a callback of a future."""
        if self._bell is not None and not self._bell.done():
            self._bell.set_result(None)


class HoldingStream(ABC, Generic[_R, _T]):
    """
    The messages of a broker, unacknowledged, until they may run: `listen` stands in place of the broker's own.

    A message that is denied ends its turn in the worker, and comes out of `listen` once more when it is due. So one
    that waits takes no place of those that run. As the worker ends, what waits goes back to the broker. All of it
    belongs to one loop.

    Args:
        open_stream: The broker's own `listen`. What it yields is R; T is a message as the adapter holds it.
        most: How many messages may wait here. While so many do, none are fetched.
        log: The adapter's logger.
        opens_within: How many seconds a stream may take to open. It is not cancelled before: the clients of some
            brokers close the channel if a stream is cancelled while it opens.
        answers_within: How many seconds a pending read goes on after the worker was stopped. Some brokers lose or delay
            a message that is on its way when the read is cancelled.
    """

    def __init__(
        self,
        open_stream: Callable[[], AsyncGenerator[_R, None]],
        *,
        most: int,
        log: logging.Logger,
        opens_within: float = 0.0,
        answers_within: float = 0.0,
    ) -> None:
        self.room: LoopRoom[_T] = LoopRoom()
        self.is_open = False
        self._open_stream, self._most, self._log = open_stream, most, log
        self._opens_within, self._answers_within = opens_within, answers_within
        self._streams: dict[AsyncGenerator[_R, None], asyncio.Task[_R] | None] = {}
        self._opened_at = 0.0
        self._is_away = False

    @abstractmethod
    def received(self, raw: _R) -> _T:
        """What has come, as the adapter holds it."""

    @abstractmethod
    def handed_on(self, message: _T, *, due: Due[_T] | None) -> _R:
        """*message* for the worker. *due*: as the room gave it out; None: it has just come."""

    @abstractmethod
    async def is_ours(self, message: _T) -> bool:
        """Whether *message*, which has waited, is this worker's still. If not, it is forgotten."""

    @abstractmethod
    def comes_again(self, message: _T) -> bool:
        """Whether the broker delivers *message* anew, here or elsewhere, if this worker just ends."""

    @abstractmethod
    async def send_back(self, message: _T) -> None:
        """Put *message* into the broker, with its ticket, and then acknowledge it."""

    def needs_another_stream(self, held: int, streams: int) -> bool:
        """Whether the broker sends no more through its *streams* while so many messages are held."""
        return False

    def more_streams(self) -> Sequence[AsyncGenerator[_R, None]]:
        """Return further streams to read from the start, besides the broker's own."""
        return ()

    async def listen(self) -> AsyncGenerator[_R, None]:
        """
        The messages that are due, and those that come.

        Raises:
            Exception: The first error of a stream of the broker, also of one that is being closed. It is raised after
                the waiting messages are put back. Further errors are logged.
        """
        self.is_open = True
        self._add_stream()
        self._streams.update(dict.fromkeys(self.more_streams()))
        try:
            while True:
                if (due := self.room.next()) is not None:
                    if await self.is_ours(due.item):
                        yield self.handed_on(due.item, due=due)
                elif (raw := self._arrived()) is not None:
                    yield self.handed_on(self.received(raw), due=None)
                else:
                    self._fetch()
                    await self.room.rung()
        except StopAsyncIteration:
            return
        finally:
            await self._close()

    def _add_stream(self) -> None:
        self._streams[self._open_stream()] = None
        self._opened_at = asyncio.get_running_loop().time()

    def _arrived(self) -> _R | None:
        for stream, reading in self._streams.items():
            if reading is not None and reading.done():
                self._streams[stream] = None
                return reading.result()
        return None

    def _fetch(self) -> None:
        if len(self.room) >= self._most:
            return
        if self.needs_another_stream(len(self.room), len(self._streams)):
            self._add_stream()
        for stream, reading in self._streams.items():
            if reading is None:
                reading = self._streams[stream] = asyncio.ensure_future(anext(stream))
                reading.add_done_callback(self.room.ring)

    async def _close(self) -> None:
        """The worker stops: what waits goes back, so that others need not find out that it is gone."""
        self.is_open = False
        # A stream that is cancelled while it opens may close the channel of all, and lose every acknowledgement.
        await asyncio.sleep(self._opened_at + self._opens_within - asyncio.get_running_loop().time())
        held = self.room.drain()
        read, errors = await self._end_readings()
        held += read
        until = asyncio.get_running_loop().time() + _INSIST_S
        for begin in range(0, len(held), _AT_ONCE):
            await asyncio.gather(*(self.put_back(each, until) for each in held[begin : begin + _AT_ONCE]))
        for stream in self._streams:
            try:
                await stream.aclose()
            except Exception as error:
                errors.append(error)
        self._streams = {}
        for other in errors[1:]:
            self._log.error("Another stream of the broker failed as it was closed.", exc_info=other)
        if errors:
            raise errors[0]

    async def _end_readings(self) -> tuple[list[_T], list[BaseException]]:
        """End the pending reads. Return the messages that they still read, and the errors that they raised."""
        readings = [reading for reading in self._streams.values() if reading is not None]
        if readings and self._answers_within:
            await asyncio.wait(readings, timeout=self._answers_within)
        read: list[_T] = []
        errors: list[BaseException] = []
        for reading in readings:
            while not reading.done():
                # Again, as redis-py may swallow one; not soon, as one amid aiormq's goodbye closes the channel of all.
                reading.cancel()
                await asyncio.wait([reading], timeout=_CANCEL_AGAIN_S)
            if reading.cancelled():
                continue
            error = reading.exception()
            if error is None:
                read.append(self.received(reading.result()))
            elif not isinstance(error, StopAsyncIteration):
                errors.append(error)
        return read, errors

    async def put_back(self, message: _T, until: float | None = None) -> None:
        """
        Send *message* back, if its broker is there. One that it would not bring again is tried again.

        Args:
            until: By the loop's clock, for how long. None: for 30 seconds from now.
        """
        until = asyncio.get_running_loop().time() + _INSIST_S if until is None else until
        while True:
            try:
                await self.send_back(message)
                break
            except Exception as error:
                if self.comes_again(message) or asyncio.get_running_loop().time() > until:
                    lost = "comes back later" if self.comes_again(message) else "is lost: its broker forgot it"
                    self._log.error("A message that waited could not be put back, and %s: %r", lost, error)
                    break
                if not self._is_away:
                    self._is_away = True
                    self._log.warning(
                        "The broker is away: what waits is put back if it answers within %g s.", _INSIST_S
                    )
                await asyncio.sleep(_TRY_AGAIN_S)
