"""The behaviour that every store must show, as tests."""

from __future__ import annotations

from throttlekit.testing.algorithms import AlgorithmConformance
from throttlekit.testing.basics import BasicConformance
from throttlekit.testing.calendar_windows import CalendarConformance
from throttlekit.testing.corrections import CorrectionConformance
from throttlekit.testing.pauses import PauseConformance
from throttlekit.testing.precision import PrecisionConformance
from throttlekit.testing.queues import QueueConformance
from throttlekit.testing.several_limits import AtomicConformance, SeveralLimitsConformance
from throttlekit.testing.slots import SlotConformance
from throttlekit.testing.slowdowns import SlowdownConformance
from throttlekit.testing.waitlists import WaitlistConformance
from throttlekit.testing.workflows import WorkflowConformance

__all__ = ["StoreConformance"]


class StoreConformance(
    AlgorithmConformance,
    WaitlistConformance,
    CorrectionConformance,
    SlotConformance,
    WorkflowConformance,
    PauseConformance,
    SlowdownConformance,
    QueueConformance,
    CalendarConformance,
    PrecisionConformance,
    SeveralLimitsConformance,
    AtomicConformance,
    BasicConformance,
):
    """
    What a store must do, as tests: subclass it in a test module, and define `make_store`.

    Each promise is a test for each algorithm that makes it, and for five algorithms in one request; slots
    (release, renew), pauses and slowdowns have their own. The tests need pytest, or any runner that finds methods
    by their name, and the time zone Europe/Berlin. They pass the time to the store, so nothing sleeps. A store that
    passes may be given to `Limiter`.
    """
