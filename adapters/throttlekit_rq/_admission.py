"""How a job is asked for: by whom denied ones are brought back, what it waits in place, and what is told of it."""

from __future__ import annotations

import logging
import math
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from throttlekit import Decision, Delivery, Limiter
from throttlekit._engine.inline import InlineWaits
from throttlekit._util.log_limiter import Every
from throttlekit.adapter.options import refusal
from throttlekit.errors import WaitedTooLong
from throttlekit_rq._deferral import first_to_tell
from throttlekit_rq._options import Terms, describe
from throttlekit_rq._settings import limiter_for, settings

__all__ = [
    "BY_RQ_SCHEDULER",
    "BY_WORKER",
    "Patience",
    "Redelivery",
    "ask",
    "delivery_of",
    "limiter_of",
    "told_once",
    "too_long",
]


@dataclass(frozen=True, slots=True)
class Redelivery:
    """
    How denied jobs are brought back. Seconds.

    Attributes:
        newcomer: The longest wait in place of a job that has not been denied before.
        returning: The same of one that has.
    """

    delivery: Delivery
    newcomer: float
    returning: float


BY_RQ_SCHEDULER = Redelivery(Delivery(longest=600.0, lateness=0.9, early=1.0), newcomer=0.05, returning=1.25)
"""By RQ's own scheduler: it looks once a second, and takes what was due by the last whole second."""

BY_WORKER = Redelivery(Delivery(longest=600.0, lateness=0.05, early=0.015), newcomer=0.0, returning=0.05)
"""By a worker of ours, while it has nothing to run."""

_log = logging.getLogger("throttlekit.rq")
_told_of_memory = Every(math.inf)


class _OnceForTheFleet(logging.Filter):
    """Lets the line at INFO about a limit that holds jobs back pass once in a while, whatever process it comes from."""

    connection: Any = None

    def filter(self, record: logging.LogRecord) -> bool:
        if self.connection is None or record.levelno != logging.INFO or not isinstance(record.args, tuple):
            return True
        return first_to_tell(self.connection, f"held-back:{record.args[0]}", 30)


_held_back = _OnceForTheFleet()
logging.getLogger("throttlekit").addFilter(_held_back)


@contextmanager
def told_once(connection: Any) -> Generator[None, None, None]:
    """What is asked meanwhile is told of by one work-horse of the fleet: each is a new process."""
    _held_back.connection = connection
    try:
        yield
    finally:
        _held_back.connection = None


class Patience(InlineWaits):
    """
    What a job may wait in place, in all, while it is asked for: that counts against its timeout.

    Attributes:
        left: What is left of it, in seconds.
    """

    def __init__(self, job: Any) -> None:
        super().__init__()
        self.left = _patience(job)

    def wait(self, seconds: float) -> bool:
        if seconds > self.left or not super().wait(seconds):
            return False
        self.left -= seconds
        return True


def ask(
    job: Any, terms: Terms, ticket: Mapping[str, Any] | None, bringing: Redelivery, patience: Patience | None = None
) -> Decision:
    """
    Ask whether *job* may run under *terms*. It waits in place within its *patience*; None: that of one question.

    Raises:
        ConfigurationError: As `Limiter.acquire`: asking again will not help.
    """
    known = settings()
    patience = Patience(job) if patience is None else patience
    patience.longest = min(known.max_inline_wait, bringing.returning if ticket else bringing.newcomer)
    delivery = replace(delivery_of(job, terms, bringing), inline=patience if patience.longest else None)
    limiter = limiter_of(job, terms)
    if limiter.in_memory and _told_of_memory.due():
        _log.warning(
            "The limits of %s are kept in memory, where no other process sees them; a work-horse forgets them when "
            'its job is done. Name a store: Limiter("redis://…").',
            job.func_name,
        )
    return limiter.acquire(*terms.limits, job=describe(job, ticket), delivery=delivery)


def delivery_of(job: Any, terms: Terms, bringing: Redelivery) -> Delivery:
    """What *bringing* can do for *job*, and how long it may wait in all. Nothing is waited out in place."""
    known = settings()
    return replace(
        bringing.delivery,
        early=min(bringing.delivery.early, known.max_inline_wait, _patience(job)),
        max_wait=known.rules.max_wait if terms.max_wait is None else terms.max_wait,
        max_deferrals=known.rules.max_deferrals,
    )


def limiter_of(job: Any, terms: Terms) -> Limiter:
    """The limiter that is asked for *job*."""
    return terms.limiter or limiter_for(job.connection)


def _patience(job: Any) -> float:
    """How long *job* may wait in place: that counts against its timeout."""
    return job.timeout / 4 if job.timeout and job.timeout > 0 else math.inf


def too_long(job: Any, decision: Decision) -> WaitedTooLong:
    """The error of a job that has waited for too long. No `Retry` of its own would help: it has none left."""
    job.retries_left = None
    return WaitedTooLong(
        f"job {job.id}: {refusal(decision)}: raise the limit or the wait, or requeue it when there is room"
    )
