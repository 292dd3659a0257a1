"""
For the tests of those who use throttlekit: a clock that stands still, and the behaviour every store must show.

    clock = FakeClock()
    limiter = Limiter(MemoryStore(clock_us=clock))
    …
    clock.advance(0.6)

    class TestMyStore(StoreConformance):
        def make_store(self) -> Store:
            return MyStore(...)
"""

from __future__ import annotations

from throttlekit._testing.buckets import BucketConformance
from throttlekit._testing.lines import LineConformance

__all__ = ["FakeClock", "StoreConformance"]


class FakeClock:
    """
    A clock that moves only when it is told to. Call it to read it, in microseconds.

    Args:
        start_us: What it shows at first.
    """

    def __init__(self, start_us: int = 1_800_000_000_000_000) -> None:
        self._now_us = start_us

    def __call__(self) -> int:
        return self._now_us

    def advance(self, seconds: float) -> None:
        """Move on by *seconds*; back, if negative. Rounded to whole microseconds."""
        self._now_us += round(seconds * 1_000_000)


class StoreConformance(BucketConformance, LineConformance):
    """
    What a store must do, as tests: subclass it in a test module, and give `make_store`.

    Needs pytest, or any runner that finds methods by their name. Times are told to the store, so
    nothing sleeps. A store that passes may be given to `Limiter`.
    """
