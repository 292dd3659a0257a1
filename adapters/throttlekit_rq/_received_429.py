"""A pipe between a work-horse and its worker. The work-horse reports that the job's body raised `RateLimited`."""

from __future__ import annotations

import os
from contextlib import suppress

__all__ = ["Received429"]


class Received429:
    """
    A pipe whose writing end belongs to a work-horse, and whose reading end belongs to its worker.

    Args:
        into: The file descriptor of the writing end, which a spawned work-horse has inherited. If None, this process is
            the worker, and creates the pipe.
    """

    def __init__(self, into: int | None = None) -> None:
        self._from: int | None = None
        if into is None:
            self._from, into = os.pipe()
            os.set_blocking(self._from, False)
            os.set_inheritable(into, True)
        self.into = into

    def put(self, seconds: float) -> None:
        """
        Report that the job was put back for *seconds*; 0 means until the pause in the store ends. If the worker has
        ended, the report is lost, and the job returns at its scheduled time.
        """
        with suppress(OSError):
            os.write(self.into, str(seconds).encode())

    def take(self) -> float | None:
        """Close the pipe, and return the reported seconds, or None if there was no 429."""
        if self._from is None:
            return None
        source, self._from = self._from, None
        try:
            return float(os.read(source, 64) or "nan")
        except (BlockingIOError, ValueError):
            return None
        finally:
            os.close(source)
            os.close(self.into)
