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
    The job may run. Keep this outcome while the body runs, because `Throttling.rate_limited` needs it.

    Attributes:
        job: The job.
        limits: The limits of the job. If they are empty, the limiter was not called.
        decision: The limiter's decision, or None if the job has no limit or another process has the decision. If it is
            a denial, the job waited for too long, and `on_waited_too_long="run"` runs it uncharged.
        delivery: The framework's way to redeliver the job.
        on_429: The name of the limit that a 429 pauses.
    """

    job: Job
    limits: tuple[Limit, ...]
    decision: Decision | None
    delivery: Delivery
    on_429: str | None = None


@dataclass(frozen=True, slots=True)
class Deferred:
    """
    The job is denied, and its framework redelivers it later.

    Attributes:
        delay: The seconds until the framework should redeliver the job.
        decision: The denial, or None if an error prevented a decision; then the delay is short.
    """

    delay: float
    decision: Decision | None


@dataclass(frozen=True, slots=True)
class Failed:
    """
    The job fails without running and without a retry, because another request cannot help.

    Attributes:
        error: The error for the job's result: a `ConfigurationError`, or `WaitedTooLong`.
        decision: The last denial, if there was one.
    """

    error: Exception
    decision: Decision | None = None


@dataclass(frozen=True, slots=True)
class Dropped:
    """
    The job ends without running, and not as a failure: `on_waited_too_long="drop"`.

    Attributes:
        reason: The reason, for a log line or the message of a revoked task.
    """

    reason: str


Outcome: TypeAlias = Run | Deferred | Failed | Dropped
