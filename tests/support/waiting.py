"""Waiting for a condition, with a description and a deadline: never a bare sleep."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["wait_until"]

_T = TypeVar("_T")


def wait_until(condition: Callable[[], _T], *, description: str, timeout: float = 120.0, every: float = 0.02) -> _T:
    """
    Return what *condition* returned once that is true; fail with *description* after *timeout* seconds.

    A generous *timeout* costs nothing where all is well, and a busy machine its failures.
    """
    deadline = time.monotonic() + timeout
    while True:
        outcome = condition()
        if outcome:
            return outcome
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout:g} s in vain until {description}; last seen: {outcome!r}")
        time.sleep(every)
