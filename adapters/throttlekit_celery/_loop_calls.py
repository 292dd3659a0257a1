"""Calls that other threads hand over to the thread of a worker's event loop."""

from __future__ import annotations

import contextlib
import logging
import os
from collections import deque
from collections.abc import Callable
from typing import Any

__all__ = ["LoopCalls"]

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
