"""The behaviour that every store must show, as tests."""

from __future__ import annotations

from conformance.suite.algorithms import AlgorithmConformance
from conformance.suite.basics import BasicConformance
from conformance.suite.calendar_windows import CalendarConformance
from conformance.suite.corrections import CorrectionConformance
from conformance.suite.pauses import PauseConformance
from conformance.suite.precision import PrecisionConformance
from conformance.suite.queues import QueueConformance
from conformance.suite.several_limits import AtomicConformance, SeveralLimitsConformance
from conformance.suite.slots import SlotConformance
from conformance.suite.slowdowns import SlowdownConformance
from conformance.suite.waitlists import WaitlistConformance
from conformance.suite.workflows import WorkflowConformance

__all__ = ["StoreSuite"]


class StoreSuite(
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
