"""The message stream of a worker that runs in an event loop. Denied messages wait in it until they are woken."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from throttlekit._engine.waker import Waker
from throttlekit.limiter import Limiter

__all__ = ["HoldingStream"]

_LOOK_EVERY = 0.5
"""Seconds between two checks. Checks are needed because signal handlers of frameworks may not wake their loop."""

_AT_ONCE = 32  # messages that are returned to the broker concurrently
_CANCEL_AGAIN_S = 2.0
_INSIST_S, _TRY_AGAIN_S = 30.0, 0.5
"""The time and the period, in seconds, of a stopping worker's retries to return messages to an unavailable broker."""

_T = TypeVar("_T")
_R = TypeVar("_R")


class HoldingStream(ABC, Generic[_R, _T]):
    """
    Keeps unacknowledged messages of a broker until they may run. Its `listen` replaces that of the broker.

    A denied message leaves the worker and waits with the `waker`. When it is woken, `listen` yields it again, so a
    waiting message does not use the worker's capacity. When the worker ends, waiting messages are returned to the
    broker. One stream belongs to one event loop.

    Args:
        open_stream: The broker's own `listen`, which yields values of R. T is the adapter's type for a message.
        free: Returns how many tasks the worker may begin now.
        most: The largest number of messages that may wait. While so many wait, no message is fetched.
        log: The adapter's logger.
        opens_within: The seconds that a stream may take to open. It is not cancelled before that, because the clients
            of some brokers close the channel if a stream is cancelled while it opens.
        tend_every: Seconds between two calls of `tend`.
        answers_within: The seconds for which a pending read continues after the worker was stopped. Some brokers lose
            or delay a message that is in transit when the read is cancelled.
    """

    def __init__(
        self,
        open_stream: Callable[[], AsyncGenerator[_R, None]],
        limiter: Limiter,
        *,
        free: Callable[[], int],
        most: int,
        log: logging.Logger,
        opens_within: float = 0.0,
        answers_within: float = 0.0,
        tend_every: float = 60.0,
    ) -> None:
        self.is_open = False
        self._make_waker: Callable[[], Waker[_T]] = lambda: limiter.make_waker(
            free,
            lambda id, message: self._call(self._wake, id, message),
            give_back=lambda message: self._call(self._begin_to_put_back, message),
        )
        self.waker = self._make_waker()
        self._open_stream, self._most, self._log = open_stream, most, log
        self._opens_within, self._answers_within, self._tend_every = opens_within, answers_within, tend_every
        self._streams: dict[AsyncGenerator[_R, None], asyncio.Task[_R] | None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken: deque[tuple[str, _T]] = deque()
        self._bell: asyncio.Future[None] | None = None
        self._putting_back: set[asyncio.Task[None]] = set()
        self._opened_at = 0.0
        self._is_away = False

    @abstractmethod
    def convert_message(self, raw: _R) -> _T:
        """Convert a received *raw* value to the adapter's type."""

    @abstractmethod
    def to_framework(self, message: _T, *, waited: bool) -> _R:
        """Convert *message* for the worker. *waited* is whether it waited in this stream, or has just arrived."""

    @abstractmethod
    async def is_ours(self, message: _T) -> bool:
        """Whether *message*, which has waited, still belongs to this worker. If not, it is discarded."""

    @abstractmethod
    def is_redelivered(self, message: _T) -> bool:
        """Whether the broker redelivers *message*, to any worker, if this worker just ends."""

    @abstractmethod
    async def send_back(self, message: _T) -> None:
        """Put *message* into the broker, and then acknowledge it."""

    async def tend(self) -> None:
        """Do periodic work for waiting messages, such as renewing their claims. Errors are logged."""

    def needs_another_stream(self, held: int, streams: int) -> bool:
        """Whether the broker sends no more through *streams* streams while *held* messages are unacknowledged."""
        return False

    def more_streams(self) -> Sequence[AsyncGenerator[_R, None]]:
        """Return further streams to read from the start, besides the broker's own."""
        return ()

    async def listen(self) -> AsyncGenerator[_R, None]:
        """
        Yield woken messages and new messages.

        Raises:
            Exception: The first error of a stream of the broker, even while that is being closed. It is raised after
                the waiting messages are put back. Further errors are logged.
        """
        if self._loop is not None:  # the worker listens again after an error, and its first waker is closed
            self.waker = self._make_waker()
        self._loop, self.is_open = asyncio.get_running_loop(), True
        self._streams = {}
        self._add_stream()
        self._streams.update(dict.fromkeys(self.more_streams()))
        tending = asyncio.ensure_future(self._tend())
        try:
            while True:
                if self._woken:
                    is_ours = await self.is_ours(self._woken[0][1])  # not removed yet, because the worker may stop
                    id, message = self._woken.popleft()
                    if is_ours:
                        yield self.to_framework(message, waited=True)
                    elif (copy := self.waker.pass_on(id)) is not None:  # the broker has delivered it again
                        await self.put_back(copy)
                elif (raw := self._take_arrived()) is not None:
                    yield self.to_framework(self.convert_message(raw), waited=False)
                else:
                    self._fetch()
                    await self._wait_for_ring()
        except StopAsyncIteration:
            return
        finally:
            tending.cancel()
            await self._close()

    async def _tend(self) -> None:
        while True:
            await asyncio.sleep(self._tend_every)
            try:
                await self.tend()
            except Exception as error:
                self._log.warning("The waiting messages could not be renewed in the broker: %r", error)

    def _add_stream(self) -> None:
        self._streams[self._open_stream()] = None
        self._opened_at = asyncio.get_running_loop().time()

    def _take_arrived(self) -> _R | None:
        for stream, reading in self._streams.items():
            if reading is not None and reading.done():
                self._streams[stream] = None
                return reading.result()
        return None

    def _fetch(self) -> None:
        held = len(self.waker) + len(self._woken)
        if held >= self._most:
            return
        if self.needs_another_stream(held, len(self._streams)):
            self._add_stream()
        for stream, reading in self._streams.items():
            if reading is None:
                reading = self._streams[stream] = asyncio.ensure_future(anext(stream))
                reading.add_done_callback(self._ring)

    async def _close(self) -> None:
        """Return the waiting messages as the worker stops, so that other workers get them at once."""
        self.is_open = False
        # A stream that is cancelled while it opens may close the shared channel, and lose every acknowledgement.
        await asyncio.sleep(self._opened_at + self._opens_within - asyncio.get_running_loop().time())
        held = await asyncio.to_thread(self.waker.close)
        # Only now, because the waker may have woken some until it closed.
        held[:0] = [message for _, message in self._woken]
        self._woken.clear()
        read, errors = await self._end_readings()
        held += read
        until = asyncio.get_running_loop().time() + _INSIST_S
        for begin in range(0, len(held), _AT_ONCE):
            await asyncio.gather(*(self.put_back(each, until) for each in held[begin : begin + _AT_ONCE]))
        await self.settle()
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
                # Repeat, because redis-py may swallow a cancel, but not soon: a second cancel while aiormq closes the
                # stream closes the channel.
                reading.cancel()
                await asyncio.wait([reading], timeout=_CANCEL_AGAIN_S)
            if reading.cancelled():
                continue
            error = reading.exception()
            if error is None:
                read.append(self.convert_message(reading.result()))
            elif not isinstance(error, StopAsyncIteration):
                errors.append(error)
        return read, errors

    def _wake(self, id: str, message: _T) -> None:
        self._woken.append((id, message))
        self._ring()

    def _begin_to_put_back(self, message: _T) -> None:
        task = asyncio.ensure_future(self.put_back(message))
        self._putting_back.add(task)
        task.add_done_callback(self._putting_back.discard)

    async def settle(self) -> None:
        """
        Wait, after the stream is closed, until the broker has all returned messages. A denied task awaits this, because
        its worker waits for the task before it stops the loop.
        """
        await asyncio.sleep(0)  # the waker may have scheduled a call in the loop
        while self._putting_back and not self.is_open:
            await asyncio.wait(self._putting_back)

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call *function* in the loop, from any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop was closed: its messages are redelivered
                self._loop.call_soon_threadsafe(function, *arguments)

    async def _wait_for_ring(self) -> None:
        """Wait until a message is woken or arrives."""
        bell = self._bell = asyncio.get_running_loop().create_future()
        timer = asyncio.get_running_loop().call_later(_LOOK_EVERY, self._ring)
        try:
            await bell
        finally:
            self._bell = None
            timer.cancel()

    def _ring(self, _: object = None) -> None:
        if self._bell is not None and not self._bell.done():
            self._bell.set_result(None)

    async def put_back(self, message: _T, until: float | None = None) -> None:
        """
        Return *message* to its broker. If the broker would lose it otherwise, retry until the broker is available.

        Args:
            until: The deadline for retries, by the loop's clock. Default: 30 seconds from now.
        """
        until = asyncio.get_running_loop().time() + _INSIST_S if until is None else until
        while True:
            try:
                await self.send_back(message)
                break
            except Exception as error:
                if self.is_redelivered(message) or asyncio.get_running_loop().time() > until:
                    lost = "the broker redelivers it later" if self.is_redelivered(message) else "it is lost"
                    self._log.error("A message that waited could not be put back, and %s: %r", lost, error)
                    break
                if not self._is_away:
                    self._is_away = True
                    self._log.warning(
                        "The broker is unavailable: waiting messages are put back if it answers within %g s.", _INSIST_S
                    )
                await asyncio.sleep(_TRY_AGAIN_S)
