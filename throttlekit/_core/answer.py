"""What a decision is asked with, and what it answers: `throttlekit._core.decide.ask`."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from throttlekit._core.algorithm import Use
from throttlekit._core.late import LATE_EARLY_US
from throttlekit._core.waitlist import Place, Wake

__all__ = [
    "GUEST", "NOT_WAITED", "Answer", "Asker", "Caller", "Kept", "Look", "Position", "Reason", "Waited",
]  # fmt: skip


class Caller(Enum):
    """What kind of caller makes the request, and so what a denial writes."""

    JOB = "job"
    """A job: a denial gives it a position on a waitlist."""
    AGAIN = "again"
    """A job that ran, and has to wait once more: its position is in front of those that have not run."""
    GUEST = "guest"
    """A caller without a job, which keeps no position: a denial suggests an instant."""
    PEEK = "peek"
    """A caller that only looks: the store writes nothing but in place of what a clock that was wrong has written."""
    __hash__ = object.__hash__  # that of Enum is written in Python, and a request is encoded by it


class Reason(Enum):
    """Why a decision came out as it did."""

    ALLOWED = "allowed"
    EXHAUSTED = "exhausted"
    """The limit has no unit left for this cost now."""
    IN_LINE = "in line"
    """There may be a unit, but other jobs wait before this one."""
    FULL = "queue full"
    """As many jobs wait as the limit allows. No position is given."""
    PAUSED = "paused"
    """No job passes for now: the service downstream answered 429, or an operator paused the limit."""


class Asker(NamedTuple):
    """
    Who asks.

    Attributes:
        job: The job's id; "" for a caller that keeps no position.
        owner: The process, by the name of its channel; of a job that its framework brings back, `late_owner`.
        free: How many threads it has free besides that which asks.
        max_wait_us: How long the job wants to wait from now on; None: for ever.
        waited_us, denials: For how long it has waited, and how often it was denied, as far as its process knows. A full
            queue does not refuse a job that was denied before, even if the store has lost its state.
        most_early_us: How long before its units come a job that was woken may be granted at most; `late.early_us` if
            that is less.
    """

    caller: Caller
    job: str = ""
    owner: str = ""
    free: int = 0
    max_wait_us: int | None = None
    waited_us: int = 0
    denials: int = 0
    most_early_us: int = LATE_EARLY_US


GUEST = Asker(Caller.GUEST, most_early_us=0)
"""A caller that keeps no position."""


class Kept(NamedTuple):
    """
    Where a denied job waits.

    Attributes:
        claim: The number of the claim on whose list it waits.
        epoch: That of the list.
    """

    claim: int
    epoch: str


class Position(NamedTuple):
    """
    What a job had on one list until it was granted.

    Attributes:
        turn: It was woken there, or before another limit held it back.
    """

    place: Place
    turn: bool


class Waited(NamedTuple):
    """
    How a job has waited.

    Attributes:
        for_us: Since its first denial.
        denials: How often it was denied, this time included.
        claim: The number of the claim on whose list it waits, or waited until it was granted; None: unknown.
    """

    for_us: int
    denials: int
    claim: int | None


NOT_WAITED = Waited(0, 0, None)


class Answer(NamedTuple):
    """
    The answer to one question.

    Attributes:
        claim: The number of the binding claim; 0 when allowed.
        retry_us: About when the request would pass, if every job before it does. When allowed, the time at which its
            body may begin: at most `late.early_us` of its owner from now if it was woken, else now.
        uses: What is used of each claim's limit after the decision; None: that claim was not decided.
        kept: Where the job waits; None: it does not.
        wakes: The asker's own wakes, and for each claim that somebody should look at, in how many microseconds.
        positions: When a job that waited is granted, what it had on each list.
        asked_us: The instant of the decision on each claim, where several stores with clocks of their own decide; else
            empty.
        waited: How the job has waited; None: it has not.
    """

    reason: Reason
    claim: int
    now_us: int
    retry_us: int
    uses: tuple[Use | None, ...]
    kept: Kept | None = None
    wakes: tuple[tuple[int, Wake], ...] = ()
    looks: tuple[tuple[int, int], ...] = ()
    positions: tuple[Position | None, ...] = ()
    asked_us: tuple[int, ...] = ()
    waited: Waited | None = None

    @property
    def allowed(self) -> bool:
        return self.reason is Reason.ALLOWED


class Look(NamedTuple):
    """
    The answer to a look at one list.

    Attributes:
        wakes: All wakes of the owner that have not asked.
        again: Of the ids that it named, those that are not waiting here for it: they ask anew.
        owners: How many owners have jobs in the order.
        look_in_us: In how many microseconds somebody should look; None: nobody needs to.
    """

    epoch: str
    wakes: tuple[Wake, ...] = ()
    again: tuple[str, ...] = ()
    owners: int = 0
    look_in_us: int | None = None
