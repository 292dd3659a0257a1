"""Waits for a condition, with a description and a deadline, instead of a bare sleep."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["wait_until"]

_T = TypeVar("_T")


def wait_until(condition: Callable[[], _T], *, description: str, timeout: float = 120.0, every: float = 0.02) -> _T:
    """
    Return the result of *condition* when it is true. Fail with *description* after *timeout* seconds.

    A long *timeout* costs nothing in the normal case, and avoids failures on a busy machine.
    """
    deadline = time.monotonic() + timeout
    while True:
        outcome = condition()
        if outcome:
            return outcome
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout:g} s in vain until {description}; last seen: {outcome!r}")
        time.sleep(every)
