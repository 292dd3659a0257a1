"""
The units of a bucket that one process has prefetched, and the number that it prefetches next. A set of units that is
prefetched with one request is a lease.

Rule 1: time is an argument, in whole microseconds of the process's own clock. No function here reads a clock.
Rule 2: every unit is charged before it is spent, and is spent within the lease's length after the request for it. So
        all units spent in a window of length w were charged in a window of w plus the lease's length, and the bound is
        the bucket's bound for that longer window.
Rule 3: a unit that is not spent within this time is lost. If the process returned the unit later, it could be charged
        again, and spent another lease's length later, against rule 2. A lease has at most the units that the rate adds
        in its length. So when it ends, the bucket has gained at least as many units as are lost.
Rule 4: a process prefetches nothing while jobs wait. It takes at most half of the remaining units, at most as many as
        it has spent in half of a lease's length, and at most twice as many as before.

Nothing here is safe between threads: the caller holds a lock.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["LocalQuota", "PrefetchQuota"]


class PrefetchQuota(NamedTuple):
    """The size of a lease: a process takes up to *tokens* units, and spends each within *for_us* after the request."""

    tokens: int
    for_us: int


class LocalQuota:
    """
    The units that one process has of one bucket.

    Attributes:
        left: The number of units that were charged, but not spent. They are lost at `until_us`.
    """

    def __init__(self, lease: PrefetchQuota) -> None:
        self._lease = lease
        self.left = self.until_us = 0
        self._size = self._room = self._used = 0
        self._asked_us = self._plain_until_us = self._taking_until_us = 0

    def has(self, units: int, now_us: int) -> bool:
        return units <= self.left and now_us < self.until_us

    def spend(self, units: int, now_us: int) -> bool:
        """Spend all of *units*, or none. Return whether they were spent."""
        if units > self.left or now_us >= self.until_us:
            return False
        self.left -= units
        self._used += units
        return True

    def put_back(self, units: int, until_us: int) -> None:
        """Return *units* that were spent from the lease that ends at *until_us*, but not needed."""
        if until_us == self.until_us:
            self.left += units
            self._used -= units

    def units_to_prefetch(self, cost: int, now_us: int) -> int:
        """Return how many units to request for a job of *cost* and later jobs; 0 to request only this job's units."""
        if now_us < self._plain_until_us or now_us < self._taking_until_us:
            return 0
        if self.has(cost, now_us):
            return 0  # another thread has prefetched units since; a new lease would replace them
        pace = (self._used + cost) * self._lease.for_us // (2 * max(1, now_us - self._asked_us))
        size = min(self._lease.tokens, 2 * self._size, self._room, pace)
        return size if size > cost else 0

    def begin(self, now_us: int) -> None:
        """
        Record that a thread begins to prefetch units. Until its request has ended, or for a lease's length, the other
        threads request only the units of their jobs, so that two threads never prefetch at the same time.
        """
        self._taking_until_us = now_us + self._lease.for_us

    def end_request(self) -> None:
        """Record that the request to prefetch units has ended, or failed."""
        self._taking_until_us = 0

    def record_lease(self, units: int, cost: int, asked_us: int, now_us: int, remaining: int) -> None:
        """
        Record a new lease of *units*, of which *cost* are for the job whose request began at *asked_us*. The bucket has
        *remaining* units left. If the last lease has not ended, its units are spent first.
        """
        older = min(self.left, cost) if now_us < self.until_us else 0
        self.left, self.until_us = units - cost + older, asked_us + self._lease.for_us
        self._size, self._room = units, remaining // 2
        self._used, self._asked_us = 0, asked_us

    def record_request(self, cost: int, allowed: bool, asked_us: int, remaining: int) -> None:
        """Record the result of a request that began at *asked_us*, for only the *cost* of its job."""
        if not allowed:
            self.record_refusal(asked_us)
        elif asked_us < self._taking_until_us:
            self._used += cost
        else:
            self._size, self._room = cost, remaining // 2
            self._used, self._asked_us = 0, asked_us

    def record_refusal(self, now_us: int) -> None:
        """Stop prefetching for a lease's length, as jobs wait or few units are left. So a denial takes one call."""
        self._size, self._plain_until_us = 0, now_us + self._lease.for_us

    def empty(self) -> None:
        """Discard the units that are left."""
        self.left = self.until_us = 0
