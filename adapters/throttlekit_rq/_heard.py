"""How a work-horse lets its worker know that the body of its job heard a 429."""

from __future__ import annotations

import os
from contextlib import suppress

__all__ = ["Heard"]


class Heard:
    """
    A pipe. Its end of the work-horse lasts through a spawn.

    Args:
        into: That end, in a process that was spawned. None: in the worker, which makes the pipe.
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
        The job was put back, to wait for so long; 0: for what it heard, which the whole fleet knows. Without its worker
        it comes back all the same.
        """
        with suppress(OSError):
            os.write(self.into, str(seconds).encode())

    def take(self) -> float | None:
        """The seconds, if there was a 429; closes the pipe."""
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
