"""One call of a limiter's method, and how its job returns after a denial: after a delay, or woken by its holder."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from throttlekit._core.answer import Answer, Caller, Look, Requester, Waited
from throttlekit._core.claim import StoreClaim
from throttlekit._core.decision import Decision
from throttlekit._core.job import Job
from throttlekit._core.late import late_owner
from throttlekit._core.limit.base import Limit
from throttlekit._core.waitlist import Wake

__all__ = ["NO_JOB", "PLAIN_DELIVERY", "Call", "Delivery", "JobHolder", "Waiting", "WaitlistStore", "end_waiting"]


_late_owner = lru_cache(late_owner)
_PAST = 0.01
"""
A job that cannot begin in time is redelivered this many seconds after its expiry or its longest wait. Exactly at that
time, the framework may not treat it as expired.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """
    How a framework delivers a job after a delay. Times are in seconds.

    Attributes:
        longest: The longest delay that the framework supports. A job with a longer wait is redelivered after this
            delay and deferred again; it keeps its position.
        lateness: The longest time by which the framework's deliveries are late.
        max_wait: The longest wait of a job in total, from its first denial.
        max_deferrals: The number of denials that a job may have.
        expires_in: The time after which the framework discards the job if it has not begun: Dramatiq's `max_age`,
            Celery's `expires`, RQ's `ttl`. A job that cannot begin before that time is redelivered right after it, and
            the framework discards it in its own way. 0 or less if the job has expired.
        again: Whether the job has run before and waits again. Its position is ahead of jobs that have not run.
        comes_back: Whether a denied job is redelivered. If not, it is denied as a caller without a job and gets no
            position. The job still supplies key, cost, tier and share.
        waits: The job's way to wait if it is denied. If None, the framework redelivers it after a delay.
    """

    longest: float = 600.0
    lateness: float = 0.05
    max_wait: float = math.inf
    max_deferrals: float = math.inf
    expires_in: float = math.inf
    again: bool = False
    comes_back: bool = True
    waits: Waiting | None = None

    def ends_in_us(self, waited_us: int) -> int | None:
        """Return how much longer a job that has waited for *waited_us* may wait, or None if there is no bound."""
        seconds = min(self.max_wait - waited_us / 1_000_000, self.expires_in) + _PAST
        return None if seconds == math.inf else max(0, round(seconds * 1_000_000))

    def is_over(self, waited: Waited) -> bool:
        """Whether a job that has *waited* so long, or was denied so often, must stop waiting."""
        return waited.for_us / 1_000_000 >= self.max_wait or waited.denials > self.max_deferrals

    @property
    def owner(self) -> str:
        """For adapters: the owner of the job on a waitlist, if the framework redelivers it after a delay."""
        return _late_owner(self.lateness)

    def in_time(self, delay: float) -> bool:
        """Whether a job that is redelivered in *delay* seconds can begin before it expires."""
        if self.expires_in == math.inf:
            return True
        lives_us = max(0, round((self.expires_in - self.lateness) * 1_000_000))
        return round(delay * 1_000_000) <= lives_us

    def adjust_delay(self, decision: Decision, waited: Waited) -> Decision:
        """Return the denial of a job that has *waited*, with a delay that its framework supports."""
        delay = decision.delay
        if not self.in_time(delay):
            delay = max(0.0, self.expires_in) + _PAST
        delay = min(delay, self.longest, self.max_wait - waited.for_us / 1_000_000)
        return replace(decision, delay=delay)


def end_waiting(decision: Decision) -> Decision:
    """Return *decision*, a denial, for a job that may wait no longer: it leaves its waitlists."""
    return replace(decision, reason="waited too long", delay=0.0, position=None)


PLAIN_DELIVERY = Delivery()


class WaitlistStore(Protocol):
    """The methods of a store that a waker calls."""

    def look(self, claim: StoreClaim, owner: str, free: int, ids: Sequence[str] = ()) -> Look: ...

    def forget(self, claims: Sequence[StoreClaim], ids: Sequence[str], owner: str, *, keep: bool = False) -> None: ...

    def listen(
        self, owner: str, on_wakes: Callable[[str, Sequence[Wake]], None], missed: Callable[[], None]
    ) -> Callable[[], None]:
        """Call *on_wakes* with each bucket and its wakes of *owner*. Return a function that ends the calls."""
        ...


class JobHolder(Protocol):
    """The object that holds a waiting job: a `Waker` of this process, or a `Relay` to the waker of another process."""

    def begin_request(
        self, id: str, buckets: Sequence[str], caller: Caller, ends_in_us: Callable[[int], int | None]
    ) -> tuple[Requester, str]: ...

    def waited_of(self, id: str) -> Waited: ...

    def apply_answer(
        self, id: str, item: Any, units: Sequence[StoreClaim], answer: Answer, ends_in_us: int | None = None
    ) -> None: ...

    def record_no_answer(self, id: str, units: Sequence[StoreClaim], attempt: str) -> None: ...

    def hold(
        self,
        id: str,
        item: Any,
        in_us: int,
        waited: Waited | None = None,
        *,
        ends_in_us: int | None = None,
        claims: Sequence[StoreClaim] = (),
        stops: str = "",
    ) -> None: ...

    def leave(self, id: str, claims: Sequence[StoreClaim]) -> Any: ...

    def leave_lists(self, id: str, claims: Sequence[StoreClaim]) -> None: ...

    def pass_on(self, id: str) -> Any: ...

    def done(self, id: str) -> None: ...


class Waiting(NamedTuple):
    """
    How a job waits if it is denied.

    Attributes:
        waker: The object that holds the job while it waits.
        item: The object that the waker starts when the job is woken.
        id: The id on the waitlists, for a job that has no id of its own.
        denied: Whether the message shows that the job was denied before, perhaps in another process. A full queue does
            not reject such a job, even if the store has lost its state.
    """

    waker: JobHolder
    item: Any
    id: str = ""
    denied: bool = False


NO_JOB = Job()
"""The job of a waiting caller that has none. It gets a position, but no key, cost, tier or tenant is read from it."""


class Call(NamedTuple):  # made for each decision: a frozen dataclass costs three times as much
    """
    The arguments of `acquire` or `peek`.

    Attributes:
        limits: The limits as the caller passed them, with all their tiers.
        job: The job that the call is for; None if there is none.
        key: The key to count under, in place of the job's.
        cost: The units to charge to every limit, in place of the limits' own.
        delivery: The framework's way to redeliver a denied job.
        peek: Whether the call only looks: it charges and stores nothing.
    """

    limits: Sequence[Limit]
    job: Job | None = None
    key: str | int | None = None
    cost: int | None = None
    delivery: Delivery = PLAIN_DELIVERY
    peek: bool = False

    @property
    def waiting(self) -> Job | None:
        """The job, if it gets a position when it is denied."""
        return self.job if self.delivery.comes_back else None

    @property
    def real_job(self) -> Job | None:
        """The job from which keys, costs, tiers and shares are read; None if there is none."""
        return None if self.job is NO_JOB else self.job

    @property
    def id(self) -> str:
        """The job's id on waitlists."""
        waits, job = self.delivery.waits, self.job
        return (waits.id if waits is not None else "") or (job.id if job is not None else "")

    @property
    def question(self) -> tuple[object, ...] | None:
        """
        The cache key of a call without a job, valid while its limits exist; None if a cost may make such calls differ.
        """
        limits, _, key, cost, delivery, peek = self
        if cost is not None or peek or delivery.waits or not (key is None or type(key) is str):
            return None
        return (id(limits[0]), key) if len(limits) == 1 else (*map(id, limits), key)
