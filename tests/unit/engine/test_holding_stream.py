"""The stream in which an event loop's worker holds denied messages: what it yields, and what it returns at the end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator

import pytest

from throttlekit import Limiter
from throttlekit.adapter.loop import HoldingStream

_log = logging.getLogger("tests.holding")


class _Stream(HoldingStream[str, str]):
    """
    Messages are texts. Those in *sent* come from the first stream of the broker; other streams wait forever.

    Attributes:
        broken: How many streams were cancelled while they opened.
        failures: How many calls of `send_back` fail at first.
    """

    def __init__(
        self, *sent: str, most: int = 100, opens_in: float = 0.0, opens_within: float = 1.0, failures: int = 0
    ) -> None:
        super().__init__(
            self._listen, Limiter("memory://"), free=lambda: 100, most=most, log=_log, opens_within=opens_within
        )
        self.sent, self.opens_in, self.failures = list(sent), opens_in, failures
        self.forgets = failures > 0
        self.broken = 0
        self.back: list[str] = []
        self.others: set[str] = set()

    async def _listen(self) -> AsyncGenerator[str, None]:
        try:
            await asyncio.sleep(self.opens_in)
        except asyncio.CancelledError:
            self.broken += 1
            raise
        while self.sent:
            yield self.sent.pop(0)
        await asyncio.Event().wait()

    def convert_message(self, raw: str) -> str:
        return raw

    def to_framework(self, message: str, *, waited: bool) -> str:
        return message.upper() if waited else message

    async def is_ours(self, message: str) -> bool:
        return message not in self.others

    def is_redelivered(self, message: str) -> bool:
        return not self.forgets

    async def send_back(self, message: str) -> None:
        if self.failures:
            self.failures -= 1
            raise ConnectionError("away")
        self.back.append(message)


def _hold(stream: _Stream, message: str, seconds: float = 60.0) -> None:
    stream.waker.hold(message, message, round(seconds * 1_000_000))


def test_held_messages_are_yielded_when_woken_if_still_owned() -> None:
    """
    Held messages are yielded in the order of their wakes, if they still belong to this worker. The waker knows no
    message of another worker: otherwise it would keep its wake, and the units for it.
    """

    async def run() -> list[str]:
        stream = _Stream("a")
        listening = stream.listen()
        got = [await anext(listening)]
        stream.others.add("c")
        for message, delay in (("b", 0.02), ("c", 0.01), ("d", 0.03)):
            _hold(stream, message, delay)
        got += [await anext(listening), await anext(listening)]
        assert "c" not in stream.waker._here.room._busy
        await listening.aclose()
        assert stream.back == []
        return got

    assert asyncio.run(run()) == ["a", "B", "D"]


def test_a_copy_of_a_message_that_is_lost_is_returned() -> None:
    """A broker may deliver a message again while its first copy is woken. Only that copy may be lost."""

    async def run() -> list[str]:
        stream = _Stream("a", "b")
        listening = stream.listen()
        await anext(listening)
        stream.others.add("c")
        _hold(stream, "c", 0.01)
        while not stream._woken:
            await asyncio.sleep(0.001)
        stream.waker.hold("c", "another c", 60_000_000)
        assert await anext(listening) == "b"
        assert len(stream.waker) == 0
        await listening.aclose()
        return stream.back

    assert asyncio.run(run()) == ["another c"]


def test_held_messages_are_returned_at_the_end() -> None:
    """Messages that arrived but were not fetched are returned too; and none is fetched while the maximum is held."""

    async def run() -> _Stream:
        stream = _Stream("a", "b", "c", most=2)
        listening = stream.listen()
        for _ in range(2):
            _hold(stream, await anext(listening))
        waiting = asyncio.ensure_future(anext(listening))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        return stream

    stream = asyncio.run(run())
    assert (stream.back, stream.sent, stream.is_open) == (["a", "b"], ["c"], False)


class _Failing(_Stream):
    """A stream whose pending read, and that of a second stream, fail when cancelled. `pending` counts these reads."""

    def __init__(self, *sent: str) -> None:
        super().__init__(*sent, opens_within=0.0)
        self.pending = 0

    async def _listen(self) -> AsyncGenerator[str, None]:
        while self.sent:
            yield self.sent.pop(0)
        await self._fail_at_end("the pending read failed")

    def more_streams(self) -> list[AsyncGenerator[str, None]]:
        async def other() -> AsyncGenerator[str, None]:
            await self._fail_at_end("another one failed")
            yield ""

        return [other()]

    async def _fail_at_end(self, message: str) -> None:
        self.pending += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise RuntimeError(message) from None


def test_error_of_a_read_that_is_closed_is_raised(caplog: pytest.LogCaptureFixture) -> None:
    """The first error is raised once the held messages were put back; the other one is logged."""

    async def run() -> _Stream:
        stream = _Failing("a")
        listening = stream.listen()
        _hold(stream, await anext(listening))
        waiting = asyncio.ensure_future(anext(listening))
        while stream.pending < 2:
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(RuntimeError, match="the pending read failed"):
            await waiting
        return stream

    assert asyncio.run(run()).back == ["a"]
    assert "another one failed" in caplog.text


def test_stream_that_needs_no_time_is_closed_at_once() -> None:
    """A worker that stops does not wait for a broker that needs no time to open a stream."""

    async def run() -> float:
        waiting = asyncio.ensure_future(anext(_Stream(opens_within=0.0).listen()))
        await asyncio.sleep(0.01)
        begun = asyncio.get_running_loop().time()
        waiting.cancel()
        await asyncio.wait([waiting])
        return asyncio.get_running_loop().time() - begun

    assert asyncio.run(run()) < 1.0  # other brokers get a second to open a stream


def test_an_opening_stream_is_not_cancelled() -> None:
    """A stopping worker waits for an opening stream: otherwise a client might close the channel of all streams."""

    async def run() -> _Stream:
        stream = _Stream(opens_in=0.05)
        waiting = asyncio.ensure_future(anext(stream.listen()))
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.wait([waiting])
        return stream

    assert asyncio.run(run()).broken == 0


def test_an_unavailable_broker_without_redelivery_is_retried() -> None:
    """A message that the broker would not redeliver is put back once the broker answers."""

    async def run() -> _Stream:
        stream = _Stream(failures=1)
        waiting = asyncio.ensure_future(anext(stream.listen()))
        await asyncio.sleep(0)
        _hold(stream, "a")
        waiting.cancel()
        await asyncio.wait([waiting])
        return stream

    assert asyncio.run(run()).back == ["a"]


def test_a_message_woken_at_shutdown_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the waker's thread is about to wake a message when it is stopped, it does so, and the message is returned."""

    async def run() -> _Stream:
        stream = _Stream("a", opens_within=0.0)
        close = stream.waker.close

        def wake_and_close() -> list[str]:
            stream._call(stream._wake, "woken", "woken")  # as the waker's thread does
            return close()

        monkeypatch.setattr(stream.waker, "close", wake_and_close)
        listening = stream.listen()
        _hold(stream, await anext(listening))
        await listening.aclose()
        return stream

    assert asyncio.run(run()).back == ["woken", "a"]


def test_a_message_whose_owner_is_checked_at_shutdown_is_returned() -> None:
    """The worker stops while it checks with the broker whether a woken message still belongs to it."""

    class Checking(_Stream):
        checked: asyncio.Event

        async def is_ours(self, message: str) -> bool:
            self.checked.set()
            await asyncio.Event().wait()
            return True

    async def run() -> Checking:
        stream = Checking("a", opens_within=0.0)
        stream.checked = asyncio.Event()
        listening = stream.listen()
        _hold(stream, await anext(listening), 0.0)
        waiting = asyncio.ensure_future(anext(listening))
        await stream.checked.wait()
        waiting.cancel()
        await asyncio.wait([waiting])
        return stream

    assert asyncio.run(run()).back == ["a"]
