"""How long a job that waits has still to wait, as far as this process knows without asking the store."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from throttlekit._core.algorithms.concurrency import Concurrency
from throttlekit._core.limit.base import Limit
from throttlekit._engine.ticket import Ticket

__all__ = ["StoreClock"]

_TRUSTED_US = 60_000_000


class StoreClock:
    """
    Estimates the store's clock from its last denial, for a minute: the store's clock may be set, and this process's
    clock may stop while the machine sleeps.

    The estimate decides nothing. A process may hold a job by it until the job is due; then the store decides.

    Args:
        clock_us: For tests: this process's own time in microseconds.
    """

    def __init__(self, *, clock_us: Callable[[], int] = lambda: time.monotonic_ns() // 1000) -> None:
        self._clock_us = clock_us
        self._known = 0, 0

    def set(self, store_us: int) -> None:
        """Record that it was *store_us* by the store's clock a moment ago."""
        self._known = store_us, self._clock_us()

    def until_due(self, limits: Sequence[Limit], ticket: Mapping[str, Any] | None) -> float | None:
        """
        Seconds until a job that carries *ticket* is due; negative if it was due before.

        None: only the store knows. Its time is not known here; the ticket is for none of *limits*, or a tier decides
        which; or the instant is an estimate, or of another clock than the store's.
        """
        store_us, at_us = self._known
        since_us = self._clock_us() - at_us
        if not store_us or since_us > _TRUSTED_US or any(limit.varies for limit in limits):
            return None
        read = Ticket.read(ticket)
        limit = read.binding(limits)
        if limit is None or isinstance(limit, Concurrency) or limit.scope == "process":
            return None
        return (read.due_us - store_us - since_us) / 1_000_000
