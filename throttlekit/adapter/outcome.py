"""What becomes of a job that was to be admitted: one of four values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from throttlekit._core.decision import Decision
from throttlekit._core.job import Job
from throttlekit._core.limit.base import Limit
from throttlekit._engine.delivery import Delivery
from throttlekit._engine.ticket import Ticket, lane_of

__all__ = ["Deferred", "Dropped", "Failed", "Outcome", "Run"]


@dataclass(frozen=True, slots=True)
class Run:
    """
    The job may run. Keep it while the body runs: `Throttling.rate_limited` needs it.

    Attributes:
        job: The job, with the ticket that it carried when it was admitted.
        limits: The limits that it was held to. Empty: it names no limit, and the limiter was not called.
        decision: What the limiter decided; None without a limit, or where another process keeps it. Not
            allowed: the job waited for too long, and `when_over="run"` runs it uncharged.
        delivery: How it would be deferred.
        on_429: The limit that a 429 pauses, by its name.
    """

    job: Job
    limits: tuple[Limit, ...]
    decision: Decision | None
    delivery: Delivery
    on_429: str | None = None

    @property
    def lanes(self) -> tuple[str, ...]:
        """The lanes of the jobs that wait for a slot that this one holds: wake them when it has ended."""
        return () if self.decision is None else tuple(lane_of(each.bucket) for each in self.decision.leases)

    def returned_lanes(self, settled: Decision | None) -> tuple[str, ...]:
        """
        The lanes of the limits to which the body has given units back: wake their first jobs when it has ended.

        Args:
            settled: `Running.decision` at the end of the body, which its `settle` calls may have changed.
        """
        if self.decision is None or settled is None or settled is self.decision:
            return ()
        granted = {each.bucket: each.cost for each in self.decision.charged if not each.holder}
        return tuple(lane_of(each.bucket) for each in settled.charged if each.cost < granted.get(each.bucket, 0))


@dataclass(frozen=True, slots=True)
class Deferred:
    """
    The job goes back through its framework's delayed delivery.

    Attributes:
        delay: Seconds until it is to come back.
        ticket: What its message carries until then, as plain JSON data. None: it keeps no place.
        decision: The denial. None: an error kept the limiter from deciding, and the job comes back soon.
    """

    delay: float
    ticket: Mapping[str, Any] | None
    decision: Decision | None

    @property
    def early(self) -> bool:
        """Whether the job came back before its place was due: not a new denial."""
        return self.decision is not None and self.decision.reason == "early"

    @property
    def is_answered(self) -> bool:
        """Whether all stores have answered. Otherwise the delay says nothing about the jobs behind this one."""
        return self.decision is not None and self.decision.reason != "store unavailable"

    @property
    def kept_by(self) -> str:
        """
        Stands for the limit and key that keep the job back although its turn in its line has come; "" if none does.

        This is a paused limit that is not the one in whose line the job waits. The denial is no news for the jobs
        behind it in that line.
        """
        decision = self.decision
        if decision is None or decision.reason != "paused":
            return ""
        if Ticket.read(self.ticket).limit_name == decision.limit.name:
            return ""
        return lane_of(f"{decision.limit.name}:{decision.key}")

    @property
    def since_us(self) -> int:
        """The first denial of the job, by the store's clock; 0 if it is not known."""
        return Ticket.read(self.ticket).since_us


@dataclass(frozen=True, slots=True)
class Failed:
    """
    The job ends as failed, without its body and without a retry: to ask again cannot help.

    Attributes:
        error: What the job's result shows: a `ConfigurationError`, or `WaitedTooLong`.
        decision: The denial that was the last one, if there was one.
    """

    error: Exception
    decision: Decision | None = None


@dataclass(frozen=True, slots=True)
class Dropped:
    """
    The job ends unrun, and not as a failure: `when_over="drop"`.

    Attributes:
        reason: Why, for a log line or a revoked task's message.
    """

    reason: str


Outcome: TypeAlias = Run | Deferred | Failed | Dropped
