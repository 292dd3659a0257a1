"""Waits for a condition, with a description and a deadline, instead of a bare sleep."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["wait_until"]

_T = TypeVar("_T")


def wait_until(
    condition: Callable[[], _T], *, description: str, timeout: float = 120.0, every: float | None = None
) -> _T:
    """
    Return the result of *condition* when it is true. Fail with *description* after *timeout* seconds.

    A long *timeout* costs nothing in the normal case, and avoids failures on a busy machine.

    Args:
        every: The pause between two calls of *condition*. Default: a tenth of the wait so far, from 0.005 to 0.1 s,
            because a fixed short pause would take a tenth of the machine. A test that measures a time sets it.
    """
    began = time.monotonic()
    while True:
        outcome = condition()
        if outcome:
            return outcome
        waited = time.monotonic() - began
        if waited > timeout:
            raise AssertionError(f"waited {timeout:g} s in vain until {description}; last seen: {outcome!r}")
        time.sleep(min(0.1, max(0.005, waited / 10)) if every is None else every)
