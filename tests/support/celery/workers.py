"""Real `celery worker` commands."""

from __future__ import annotations

import contextlib
import os

from support.faults.processes import Command
from support.waiting import wait_until

__all__ = ["Worker"]


class Worker(Command):
    """One `celery worker` command with its pool."""

    def send(self, number: int) -> None:
        """Send a signal to the worker's main process alone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self, timeout: float) -> None:
        """Wait for the main process's end."""
        wait_until(lambda: not self.running, description="the worker has ended", timeout=timeout)
