"""Who asks, and the answer: what a decision over several claims is asked with, and what it says."""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

from throttlekit._core.algorithm import Use
from throttlekit._core.line import Place

__all__ = ["Caller", "Reason", "Verdict"]


class Caller(Enum):
    """What kind of caller makes the request, and so what a denial writes."""

    JOB = "job"
    """A job, which comes back through its framework: a denial gives it a place in the line."""
    AGAIN = "again"
    """A job that ran, and has to wait once more: its place is in front of those that have not run."""
    GUEST = "guest"
    """A caller without a job, which cannot keep a place: a denial suggests an instant."""
    PEEK = "peek"
    """A caller that only looks: the store writes nothing, whatever the answer."""
    __hash__ = object.__hash__  # that of Enum is written in Python, and a request is encoded by it


class Reason(Enum):
    """Why a decision came out as it did."""

    ALLOWED = "allowed"
    EXHAUSTED = "exhausted"
    """The limit has no unit left for this cost now."""
    IN_LINE = "in line"
    """There may be a unit, but other jobs stand before this one."""
    EARLY = "early"
    """The job came back before it is due; it keeps its place."""
    FULL = "queue full"
    """As many jobs wait as the limit allows. No place is given."""
    PAUSED = "paused"
    """No job passes for now: the service downstream answered 429, or an operator paused the limit."""


class Verdict(NamedTuple):
    """
    The answer to one request.

    Attributes:
        claim: The number of the binding claim: of those that deny, the one that is due last; 0 when allowed.
        now_us: The instant of the decision, by the store's clock.
        retry_us: The earliest instant at which the request would pass if no other request came.
        due_us: The instant to come back at; `now_us` when allowed. Where jobs before it seem not to come, it is
            sooner than the job's places say.
        uses: What is used of each claim's limit after the decision; None: that claim was not decided.
        places: The job's place in the line of each claim; None: it has none there. Empty when no place was given.
        asked_us: The instant of the decision on each claim, where several stores with clocks of their own
            decide; else empty.
        answer: The `throttlekit._core.decide.Answer` to a request with an `asker`; else None.
    """

    reason: Reason
    claim: int
    now_us: int
    retry_us: int
    due_us: int
    uses: tuple[Use | None, ...]
    places: tuple[Place | None, ...] = ()
    asked_us: tuple[int, ...] = ()
    answer: Any = None

    @property
    def allowed(self) -> bool:
        return self.reason is Reason.ALLOWED
