"""The arguments and the result of `throttlekit._core.decide.decide`."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from throttlekit._core.algorithm import Use
from throttlekit._core.waitlist import Place, Wake

__all__ = [
    "NOT_WAITED",
    "WITHOUT_JOB",
    "Answer",
    "Caller",
    "Kept",
    "Look",
    "Position",
    "Reason",
    "Requester",
    "Waited",
]


class Caller(Enum):
    """The kind of a caller. It determines what the store writes after a denial."""

    JOB = "job"
    """A job: a denial gives it a position on a waitlist."""
    AGAIN = "again"
    """A job that ran and has to wait again, after a 429: its position is ahead of jobs that have not run."""
    WITHOUT_JOB = "nojob"
    """A caller without a job: a denial gives it a retry time, but no position."""
    PEEK = "peek"
    """A caller that only looks: the store writes nothing, except to replace a state that a wrong clock wrote."""
    __hash__ = object.__hash__  # each request is hashed, and the hash of Enum, written in Python, is slower


class Reason(Enum):
    """The reason for a decision."""

    ALLOWED = "allowed"
    EXHAUSTED = "exhausted"
    """The limit has no unit left for this cost now."""
    IN_LINE = "in line"
    """A unit may be free, but other jobs are ahead of this one."""
    FULL = "queue full"
    """As many jobs wait as the limit allows, so the job gets no position."""
    PAUSED = "paused"
    """No job passes for now, because the partner sent a 429, or an operator paused the limit."""


class Waited(NamedTuple):
    """
    The wait of a job.

    Attributes:
        for_us: The time since its first denial.
        denials: The number of its denials, including this one.
        claim: The number of the claim on whose list it waits, or waited until it was granted; None if unknown.
    """

    for_us: int = 0
    denials: int = 0
    claim: int | None = None


NOT_WAITED = Waited()


class Requester(NamedTuple):
    """
    The caller that makes a request.

    Attributes:
        job: The job's id; "" for a caller that keeps no position.
        owner: The name of the process's channel; for a job that its framework returns after a delay, `late_owner`.
        free: The number of free threads of the process, without the one that makes the request.
        max_wait_us: The longest time for which the job waits, from now on; None if there is no limit.
        waited: The wait of the job, as far as its process knows. A full queue does not refuse a job that was denied
            before, even if the store has lost its state.
        early_us: A woken job may be granted at most this long before its units are free. None: as its owner allows
            (`late.early_us`).
    """

    caller: Caller
    job: str = ""
    owner: str = ""
    free: int = 0
    max_wait_us: int | None = None
    waited: Waited = NOT_WAITED
    early_us: int | None = None


WITHOUT_JOB = Requester(Caller.WITHOUT_JOB, early_us=0)
"""The caller of a request without a job."""


class Kept(NamedTuple):
    """
    The list on which a denied job waits.

    Attributes:
        claim: The number of the claim to which the list belongs.
        epoch: The epoch of the list.
        position: The number of jobs on the list that the retry time counts as ahead of this one.
    """

    claim: int
    epoch: str
    position: int = 0


class Position(NamedTuple):
    """
    The position that a job had on one list until it was granted. If another store then denies the job, it is restored.

    Attributes:
        turn: Whether the job was woken on that list. It keeps its turn if another limit then denies it.
    """

    place: Place
    turn: bool


class Answer(NamedTuple):
    """
    The answer to one request.

    Attributes:
        claim: The number of the binding claim; 0 if the request is allowed.
        retry_us: If denied: an estimate of the time at which the request passes. If allowed: the time at which the body
            may begin, which is now, or for a woken job at most `decide.early_us_of` later.
        uses: The use of each claim's limit after the decision; None for a claim that was not decided.
        kept: The list on which the job waits, or None if it does not wait.
        wakes: The woken jobs of the caller's own process: each the number of a claim, and the wake.
        looks: The lists at which the caller's process should look: each the number of a claim, and a delay in µs.
        positions: For a granted job that had waited, its position on each list.
        asked_us: The time of the decision on each claim, if stores with different clocks decide; otherwise empty.
        waited: The wait of the job, or None if it has not waited.
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
        wakes: All woken jobs of the owner that have not requested their units yet.
        again: Those ids of the call that have no entry of this owner on the list. These jobs make a new request.
        owners: The number of owners with jobs in the order.
        look_in_us: The delay after which a process should look at the list again, or None if no look is needed.
    """

    epoch: str
    wakes: tuple[Wake, ...] = ()
    again: tuple[str, ...] = ()
    owners: int = 0
    look_in_us: int | None = None
