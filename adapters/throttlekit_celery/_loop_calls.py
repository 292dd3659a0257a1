"""Calls in the thread of a worker's event loop: those that other threads hand over to it, and those of its timer."""

from __future__ import annotations

import contextlib
import logging
import os
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

__all__ = ["LoopCalls", "NextCall"]

_log = logging.getLogger("throttlekit.celery")


class LoopCalls:
    """
    Makes calls in the worker's own thread, in order. `call` may be used in any thread and never blocks.

    Before kombu 5.7, `Hub.call_soon` does not wake the loop, so the loop also reads a pipe, to which `call` writes. A
    worker without an event loop makes the calls by its timer, in the same way as it runs tasks that are due.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._calls: deque[Callable[[], object]] = deque()
        self._pipe: tuple[int, int] | None = None

    def start(self) -> None:
        """Add the reader again after the worker has connected, because its hub has dropped all readers."""
        hub = self._consumer.hub
        if hub is not None:
            if self._pipe is None:
                self._pipe = os.pipe()
                for end in self._pipe:
                    os.set_blocking(end, False)
            hub.add_reader(self._pipe[0], self._read)
        if self._calls:
            self._wake()

    def call(self, call: Callable[[], object]) -> None:
        """Schedule *call* in the worker's own thread."""
        self._calls.append(call)
        self._wake()

    def run(self) -> None:
        """Make all calls that are scheduled now."""
        for _ in range(len(self._calls)):
            try:
                call = self._calls.popleft()
            except IndexError:  # without an event loop, two timers may run at the same time
                return
            try:
                call()
            except Exception:
                _log.exception("A call that was handed over to the worker's loop failed.")

    def close(self) -> None:
        """Stop listening, because the worker stops. Afterwards, only `run` makes calls."""
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            with contextlib.suppress(Exception):  # the hub may be closed already
                self._consumer.hub.remove(pipe[0])
            for end in pipe:
                os.close(end)

    def _wake(self) -> None:
        if self._consumer.hub is None:
            self._consumer.timer.call_after(0, self.run)
        elif (pipe := self._pipe) is not None:
            with contextlib.suppress(BlockingIOError):  # a full pipe wakes the loop too
                os.write(pipe[1], b"1")

    def _read(self, *_: Any) -> None:
        if self._pipe is not None:
            with contextlib.suppress(BlockingIOError):
                os.read(self._pipe[0], 65_536)
        self.run()


class NextCall:
    """
    The next call of a function by a worker's timer. At most one call is scheduled at a time.

    Args:
        function: It is called without arguments, and may schedule its next call.
    """

    def __init__(self, consumer: Any, function: Callable[[], object]) -> None:
        self._consumer, self._function = consumer, function
        self._scheduled: object = None

    def schedule(self, seconds: float) -> None:
        """Schedule a call in *seconds*, unless one is scheduled."""
        if self._scheduled is None:
            self._scheduled = this = object()
            self._consumer.timer.call_after(seconds, partial(self._run, this))

    def drop(self) -> None:
        """Drop the scheduled call. After a lost connection, the worker may have dropped its timers."""
        self._scheduled = None

    def _run(self, this: object) -> None:
        if this is self._scheduled:
            self._scheduled = None
            self._function()
