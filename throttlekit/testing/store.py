"""The behaviour every store must show, as tests."""

from __future__ import annotations

from throttlekit.testing.algorithms import AlgorithmConformance
from throttlekit.testing.basics import BasicConformance
from throttlekit.testing.lines import LineConformance
from throttlekit.testing.mixtures import MixtureConformance, OneGoConformance
from throttlekit.testing.settles import SettleConformance
from throttlekit.testing.slots import PauseConformance, SlotConformance
from throttlekit.testing.special import CalendarConformance, LongPeriodConformance, QueueConformance

__all__ = ["StoreConformance"]


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
