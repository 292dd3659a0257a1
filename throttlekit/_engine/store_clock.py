"""How long a job that waits has still to wait, as far as this process knows without asking the store."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from throttlekit._core.algorithms.concurrency import Concurrency
from throttlekit._core.limit.base import Limit
from throttlekit._engine.ticket import Ticket

__all__ = ["StoreClock"]

_BELIEVED_US = 60_000_000


class StoreClock:
    """
    Knows the store's clock from its last denial, and believes it for a minute: it may be set, and this one may stop
    while the machine sleeps.

    What it tells decides nothing. A job may be held by it until its slot; then the store is asked.

    Args:
        clock_us: For tests: tells this process's own time in microseconds.
    """

    def __init__(self, *, clock_us: Callable[[], int] = lambda: time.monotonic_ns() // 1000) -> None:
        self._clock_us = clock_us
        self._known = 0, 0

    def told(self, store_us: int) -> None:
        """It was *store_us* by the store's clock a moment ago."""
        self._known = store_us, self._clock_us()

    def until_due(self, limits: Sequence[Limit], ticket: Mapping[str, Any] | None) -> float | None:
        """
        Seconds until the slot that a job has *waited* for; negative if it has passed.

        None: the store has to be asked. It is not known what time it is there; the job has no place that is good
        among *limits*, or its tier would say; or the slot is an estimate, or of another clock than the store's.
        """
        store_us, at_us = self._known
        since_us = self._clock_us() - at_us
        if not store_us or since_us > _BELIEVED_US or any(limit.tiers is not None for limit in limits):
            return None
        read = Ticket.read(ticket)
        place = read.place(limits)
        if place is None or isinstance(limits[place.claim], Concurrency) or limits[place.claim].scope == "process":
            return None
        return (read.due_us - store_us - since_us) / 1_000_000
