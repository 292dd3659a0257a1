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

from throttlekit._testing.algorithms import AlgorithmConformance
from throttlekit._testing.basics import BasicConformance
from throttlekit._testing.lines import LineConformance
from throttlekit._testing.mixtures import MixtureConformance, OneGoConformance
from throttlekit._testing.settles import SettleConformance
from throttlekit._testing.slots import PauseConformance, SlotConformance
from throttlekit._testing.special import CalendarConformance, LongPeriodConformance, QueueConformance

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


class StoreConformance(
    AlgorithmConformance,
    LineConformance,
    SettleConformance,
    SlotConformance,
    PauseConformance,
    QueueConformance,
    CalendarConformance,
    LongPeriodConformance,
    MixtureConformance,
    OneGoConformance,
    BasicConformance,
):
    """
    What a store must do, as tests: subclass it in a test module, and give `make_store`.

    Each promise is a test for each algorithm that it is made for, and for five of them in one request; slots
    (release, renew) and pauses have their own. Needs
    pytest, or any runner that finds methods by their name, and the time zone Europe/Berlin. Times are told to the
    store, so nothing sleeps. A store that passes may be given to `Limiter`.
    """
