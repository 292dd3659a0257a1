"""Worker processes of taskiq, and an event loop in a separate thread for tests that use a broker."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from support.faults.processes import Command
from support.waiting import wait_until

__all__ = ["Loop", "taskiq_worker", "worker_command"]

_T = TypeVar("_T")


class Loop:
    """An event loop in a thread, for tests that are not coroutines."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(60)
        self.loop.close()


def worker_command(broker: str, *options: str, processes: int = 1) -> list[str]:
    """Return the command of a worker of the broker with the name "module:name"."""
    return [sys.executable, "-m", "taskiq", "worker", broker, "--workers", str(processes), *options]


def taskiq_worker(broker: str, *options: str, environment: Mapping[str, str], processes: int = 1) -> Command:
    """Start a worker of a broker, which listens when this returns."""
    command = Command(worker_command(broker, *options, processes=processes), environment)
    try:
        wait_until(
            lambda: command.log().count("Listening started.") >= processes or not command.running,
            description="the workers listen",
        )
        assert command.running, command.log()
    except BaseException:
        print(command.log()[-4000:])
        command.close()
        raise
    return command
