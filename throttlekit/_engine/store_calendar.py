"""About what time it is by the store's clock, for limits whose windows follow a time zone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from throttlekit._core.answer import Answer, Asker, Caller
from throttlekit._core.claim import StoreClaim
from throttlekit._core.time_zone import DAY_US
from throttlekit._engine.attempt import Attempt
from throttlekit.stores.base import Store

__all__ = ["StoreCalendar", "needs_calendar"]


class StoreCalendar:
    """
    Makes sure that a zone's offsets are those of the store's time, whatever this process's clock says.

    The offsets of 200 days each way are sent along. So an answer of the store tells the time well enough for as long
    as this process lives. The first request that needs it peeks before, once in a process.

    Args:
        clock_us: For tests: this process's own time in microseconds, of a clock that is never set.
    """

    def __init__(self, *, clock_us: Callable[[], int] = lambda: time.monotonic_ns() // 1000) -> None:
        self._clock_us = clock_us
        self._ahead_us: int | None = None

    def set(self, store_us: int) -> None:
        """Record that it was *store_us* by the store's clock a moment ago."""
        self._ahead_us = store_us - self._clock_us()

    def heard(self, attempt: Attempt, answer: Answer | Exception) -> None:
        """Learn the time from the store's *answer* to *attempt*, if the attempt needs it."""
        if isinstance(answer, Answer) and needs_calendar(attempt):
            self.set(answer.now_us)

    def now_us(self, store: Store, claims: Sequence[StoreClaim]) -> int:
        """
        About what time it is by the clock of *store*, which is asked for it with a peek of *claims* if need be.

        Raises:
            StoreUnavailable: The store did not answer.
        """
        if self._ahead_us is None:
            self.set(store.ask(claims, Asker(Caller.PEEK)).now_us)
            return self.now_us(store, claims)
        return self._clock_us() + self._ahead_us

    def dated(self, attempt: Attempt, store: Store) -> Attempt:
        """
        *attempt* with the offsets of the store's time, where this process's clock is a day or more from it.

        Raises:
            StoreUnavailable: The time is not known yet, and the store did not answer.
        """
        if not needs_calendar(attempt):
            return attempt
        now_us = self.now_us(store, attempt.request.claims)
        if abs(now_us - time.time_ns() // 1000) < DAY_US:
            return attempt
        claims = [
            replace(asked, algorithm=claim.limit.bind(claim.cost, now_us)) if claim.limit.in_zone else asked
            for claim, asked in zip(attempt.claims, attempt.request.claims, strict=True)
        ]
        return attempt._replace(request=attempt.request._replace(claims=claims))


def needs_calendar(attempt: Attempt) -> bool:
    """Whether one of the limits follows a time zone."""
    for claim in attempt.claims:  # noqa: SIM110 - at each decision, and a generator costs more than the loop
        if claim.limit.in_zone:
            return True
    return False
