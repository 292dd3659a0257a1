"""A clock for tests."""

from __future__ import annotations

__all__ = ["FakeClock"]


class FakeClock:
    """
    A clock that moves only with `advance`. Calling it returns the time in microseconds.

    Args:
        start_us: The initial time.
    """

    def __init__(self, start_us: int = 1_800_000_000_000_000) -> None:
        self._now_us = start_us

    def __call__(self) -> int:
        return self._now_us

    def advance(self, seconds: float) -> None:
        """Advance by *seconds*, or go backwards if that is negative. Rounded to whole microseconds."""
        self._now_us += round(seconds * 1_000_000)
