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
    Makes calls in the worker's own thread, in their order. `call` is for any thread and never blocks.

    Kombu's `Hub.call_soon` does not wake the loop before kombu 5.7, so the loop reads a pipe of ours. A worker without
    an event loop makes the calls by its timer, as it does with tasks that are due.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._calls: deque[Callable[[], object]] = deque()
        self._pipe: tuple[int, int] | None = None

    def start(self) -> None:
        """The worker has connected: its hub has forgotten its readers."""
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
        """Make *call* in the worker's own thread, soon."""
        self._calls.append(call)
        self._wake()

    def run(self) -> None:
        """Make all calls that are due."""
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
        """The worker stops: calls are made by `run` only."""
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
