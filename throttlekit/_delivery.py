"""What the limiter must know of a framework's delayed delivery."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from throttlekit._core.decision import Decision
from throttlekit._waited import Waited
from throttlekit.inline import InlineWaits

__all__ = ["Delivery"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """
    What the limiter must know of a framework's delayed delivery. Seconds.

    Attributes:
        longest: The longest delay that the framework carries safely. A job whose slot is further
            off comes back then, and is deferred again with the same slot.
        lateness: How late the framework delivers, in all but rare cases.
        early: How much before its slot to ask for a job whose limit has no room for lateness; it
            waits out the rest in place.
        max_wait: How long a job may wait in all, from its first denial.
        max_deferrals: How often a job may be denied. Coming back before its slot is no denial.
        inline: Where short waits are slept in place; None: nowhere.
    """

    longest: float = 600.0
    lateness: float = 0.05
    early: float = 0.0
    max_wait: float = math.inf
    max_deferrals: float = math.inf
    inline: InlineWaits | None = None

    def patience_us(self, waited: Waited) -> int | None:
        """How far off a slot a job that has *waited* so far would come back for; None: any."""
        if waited.deferrals >= self.max_deferrals:
            return 0
        return None if self.max_wait == math.inf else waited.patience_us(round(self.max_wait * 1_000_000))

    def deferred(self, decision: Decision, waited: Waited, now_us: int) -> Decision:
        """A denial as the job's adapter is told it: with a delay that it can carry, or as waited too long."""
        passed = waited.seconds(now_us)
        if passed >= self.max_wait or waited.deferrals > self.max_deferrals:
            return replace(decision, reason="waited too long", delay=0.0, waited=None)
        charge = decision.limit.charge(decision.cost)
        tight = charge.tight(round(self.lateness * 1_000_000)) and decision.delay > 2 * self.early
        delay = min(decision.delay - (self.early if tight else 0.0), self.longest, self.max_wait - passed)
        return replace(decision, delay=delay, waited=waited.write())
