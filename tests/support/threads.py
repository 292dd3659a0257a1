"""The same work in several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["run_in_threads"]


def run_in_threads(threads: int, work: Callable[[int], object]) -> None:
    """Run `work(number)` in *threads* threads at the same time, and wait until all have ended."""
    running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
