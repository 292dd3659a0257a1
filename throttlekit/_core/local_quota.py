"""
How many units one process has taken ahead of one bucket, and how many it takes next: token leases as arithmetic.

Rule 1: time is an argument, in whole microseconds of the process's own clock, and never read here.
Rule 2: every unit is charged before it is spent, and is spent within the lease's length after the request for it. So
        all units spent in a window of length w were charged in a window that is longer by the lease's length, and the
        bound is the bucket's with that length added to w.
Rule 3: a unit that is not spent by then is lost. If the process gave it back later, it could be charged again and be
        spent as late again after the first charge: that would break rule 2. A lease is at most what the rate gives
        while it lasts, so the loss is then made up for.
Rule 4: a process takes nothing ahead while jobs wait, at most half of what is left, and no more than it will need: what
        it has spent in half of a lease's length, and at most twice what it took before.

Nothing here is safe between threads: the caller holds a lock.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["LocalQuota", "PrefetchQuota"]


class PrefetchQuota(NamedTuple):
    """Up to *tokens* units at a time. A process spends each within *for_us* of its request for them."""

    tokens: int
    for_us: int


class LocalQuota:
    """
    The units that one process has of one bucket.

    Attributes:
        left: Units that were charged and not spent. From `until_us` on they are lost.
    """

    __slots__ = (
        "_asked_us",
        "_lease",
        "_plain_until_us",
        "_room",
        "_size",
        "_taking_until_us",
        "_used",
        "left",
        "until_us",
    )

    def __init__(self, lease: PrefetchQuota) -> None:
        self._lease = lease
        self.left = self.until_us = 0
        self._size = self._room = self._used = 0
        self._asked_us = self._plain_until_us = self._taking_until_us = 0

    def has(self, units: int, now_us: int) -> bool:
        return units <= self.left and now_us < self.until_us

    def spend(self, units: int, now_us: int) -> bool:
        """Spend *units*, all or none."""
        if units > self.left or now_us >= self.until_us:
            return False
        self.left -= units
        self._used += units
        return True

    def put_back(self, units: int, until_us: int) -> None:
        """Take back *units* that were spent of the lease that ends at *until_us*, and were not needed."""
        if until_us == self.until_us:
            self.left += units
            self._used -= units

    def worth_taking(self, cost: int, now_us: int) -> int:
        """How many units to request, for a job of *cost* and the jobs after it; 0: only what the job takes."""
        if now_us < self._plain_until_us or now_us < self._taking_until_us:
            return 0
        if self.has(cost, now_us):
            return 0  # another thread has taken units since: what is left would be lost
        pace = (self._used + cost) * self._lease.for_us // (2 * max(1, now_us - self._asked_us))
        size = min(self._lease.tokens, 2 * self._size, self._room, pace)
        return size if size > cost else 0

    def begin(self, now_us: int) -> None:
        """
        A thread requests more units. Until it has ended, or for a lease's length, the others request only what their
        jobs take, so that no two threads take ahead at once.
        """
        self._taking_until_us = now_us + self._lease.for_us

    def end_request(self) -> None:
        """The thread that requested more has its answer, or failed."""
        self._taking_until_us = 0

    def record_lease(self, units: int, cost: int, asked_us: int, now_us: int, remaining: int) -> None:
        """
        *units* were granted, *cost* of them to the job whose request began at *asked_us*; *remaining* are left in the
        bucket. What was left of the last lease is spent first, if that has not ended in the meantime.
        """
        older = min(self.left, cost) if now_us < self.until_us else 0
        self.left, self.until_us = units - cost + older, asked_us + self._lease.for_us
        self._size, self._room = units, remaining // 2
        self._used, self._asked_us = 0, asked_us

    def record_request(self, cost: int, allowed: bool, asked_us: int, remaining: int) -> None:
        """A request that began at *asked_us*, for no more than the *cost* of its job, has its answer."""
        if not allowed:
            self.record_refusal(asked_us)
        elif asked_us < self._taking_until_us:
            self._used += cost
        else:
            self._size, self._room = cost, remaining // 2
            self._used, self._asked_us = 0, asked_us

    def record_refusal(self, now_us: int) -> None:
        """Jobs wait, or too little is left: for a while, request only what jobs take, and a denial costs one call."""
        self._size, self._plain_until_us = 0, now_us + self._lease.for_us

    def empty(self) -> None:
        """What is left is lost."""
        self.left = self.until_us = 0
