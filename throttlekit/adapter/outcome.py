"""The outcome of an admission: one of four values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from throttlekit._core.decision import Decision
from throttlekit._core.job import Job
from throttlekit._core.limit.base import Limit
from throttlekit._engine.call import Delivery

__all__ = ["Deferred", "Dropped", "Failed", "Outcome", "Run"]


@dataclass(frozen=True, slots=True)
class Run:
    """
    The job may run. Keep it while the body runs: `Throttling.rate_limited` needs it.

    Attributes:
        job: The job.
        limits: The limits of the job. Empty: it names no limit, and the limiter was not called.
        decision: What the limiter decided; None without a limit, or where another process keeps it. Not
            allowed: the job waited for too long, and `on_waited_too_long="run"` runs it uncharged.
        delivery: How it would be deferred.
        on_429: The limit that a 429 pauses, by its name.
    """

    job: Job
    limits: tuple[Limit, ...]
    decision: Decision | None
    delivery: Delivery
    on_429: str | None = None


@dataclass(frozen=True, slots=True)
class Deferred:
    """
    The job returns by its framework's delayed delivery.

    Attributes:
        delay: The seconds until the framework should deliver it again.
        decision: The denial. None: an error prevented a decision, and the delay is short.
    """

    delay: float
    decision: Decision | None


@dataclass(frozen=True, slots=True)
class Failed:
    """
    The job ends as failed, without its body and without a retry, because another request cannot help.

    Attributes:
        error: What the job's result shows: a `ConfigurationError`, or `WaitedTooLong`.
        decision: The denial that was the last one, if there was one.
    """

    error: Exception
    decision: Decision | None = None


@dataclass(frozen=True, slots=True)
class Dropped:
    """
    The job ends without running, and not as a failure: `on_waited_too_long="drop"`.

    Attributes:
        reason: Why, for a log line or a revoked task's message.
    """

    reason: str


Outcome: TypeAlias = Run | Deferred | Failed | Dropped
