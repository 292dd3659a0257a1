"""What the limiter must know of a framework's delayed delivery."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from throttlekit._core.decision import Decision, decision_of
from throttlekit._core.late import late_owner
from throttlekit._engine.waker import Waiting

__all__ = ["PLAIN_DELIVERY", "Delivery"]

_PAST = 0.01
"""
Seconds after its expiry, or the end of its longest wait, at which a job comes back: at the very instant that may not be
over yet.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """
    What the limiter must know of a framework's delayed delivery. Seconds.

    Attributes:
        longest: The longest delay that the framework carries safely. A job that is due later
            comes back then, and is deferred again; its position stays.
        lateness: How late the framework delivers, in all but rare cases.
        latest: How late it delivers at worst, if that is more.
        max_wait: How long a job may wait in all, from its first denial.
        max_deferrals: How often a job may be denied.
        expires_in: In how many seconds the framework ends the job if it has not begun: Dramatiq's `max_age`, Celery's
            `expires`, RQ's `ttl`. A job that cannot begin before that comes back right after it; the framework ends it
            in its own way. 0 or less: the job has expired.
        again: Whether the job ran before, and has to wait once more: it stands in front of those that have not run.
        comes_back: Whether a denied job comes back. If not, it is denied as a caller without a job: it gets no
            position. Its key, cost, tier and share are read of it all the same.
        waits: How it waits if it is denied. None: it comes back by its delay.
    """

    longest: float = 600.0
    lateness: float = 0.05
    latest: float = 0.0
    max_wait: float = math.inf
    max_deferrals: float = math.inf
    expires_in: float = math.inf
    again: bool = False
    comes_back: bool = True
    waits: Waiting | None = None

    def ends_in_us(self, waited_us: int) -> int | None:
        """In how long it is certain that a job that has waited for *waited_us* is to wait no longer; None: never."""
        seconds = min(self.max_wait - waited_us / 1_000_000, self.expires_in) + _PAST
        return None if seconds == math.inf else max(0, round(seconds * 1_000_000))

    def is_over(self, waited: float, denials: int) -> bool:
        """Whether a job that waited for so many seconds, and was denied so often, is to wait no longer."""
        return waited >= self.max_wait or denials > self.max_deferrals

    @property
    def owner(self) -> str:
        """For adapters: the owner of the job on a waitlist, if it comes back by its delay."""
        return _owner_of(self.lateness, self.latest)

    def in_time(self, delay: float) -> bool:
        """Whether a job that is due in *delay* seconds can begin before it expires."""
        lives_us = self._lives_us()
        return lives_us is None or round(delay * 1_000_000) <= lives_us

    def deferred(self, decision: Decision, waited: float, denials: int) -> Decision:
        """
        A denial as an adapter gets it: with a delay that its framework can carry, or as waited too long.

        Args:
            waited: Seconds since the job's first denial.
            denials: How often it was denied.
        """
        if self.is_over(waited, denials):
            return replace(decision, reason="waited too long", delay=0.0)
        delay = decision.delay
        if self.expires_in != math.inf and not self.in_time(delay):
            delay = max(0.0, self.expires_in) + _PAST
        delay = min(delay, self.longest, self.max_wait - waited)
        return decision_of(
            False, decision.limit, decision.key, decision.cost, decision.remaining, decision.retry_after, delay,
            decision.reset_after, decision.reason, (),
        )  # fmt: skip

    def _lives_us(self) -> int | None:
        """How far off the last instant is at which the job can begin in time; None: any."""
        if self.expires_in == math.inf:
            return None
        return max(0, round((self.expires_in - max(self.lateness, self.latest)) * 1_000_000))


@lru_cache
def _owner_of(lateness: float, latest: float) -> str:
    return late_owner(max(lateness, latest))


PLAIN_DELIVERY = Delivery()
