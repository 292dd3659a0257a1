"""
What one process has taken ahead of one bucket, and how much it takes next: token leases as arithmetic.

Rule 1: time is an argument, in whole microseconds of the process's own clock, and never read here.
Rule 2: every unit was charged before it is spent, and is spent within the lease's length of being asked for. So of the
        units spent in a window of length w, all were charged in one that is longer by that, and the bound is the
        bucket's, with w longer by that.
Rule 3: what is not spent by then is lost. To give it back later would let it be charged anew, and so be spent as late
        again after the first charge: that would break rule 2. A lease is no larger than what the rate gives while it
        lasts, so it is then made up for.
Rule 4: nobody takes ahead while others wait, more than half of what is left, or more than it will need. A process
        takes what it has spent in half of a lease's length, and at most twice what it took before.

Nothing here is safe between threads: the caller holds a lock.
"""

from __future__ import annotations

from throttlekit._core.limit.prefetch_options import PrefetchQuota

__all__ = ["LocalQuota"]


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
        """*units* that were spent of the lease that ends at *until_us* were not needed."""
        if until_us == self.until_us:
            self.left += units
            self._used -= units

    def worth_taking(self, cost: int, now_us: int) -> int:
        """How many units to ask for, for a job of *cost* and for what comes after it; 0: only for the job."""
        if now_us < self._plain_until_us or now_us < self._taking_until_us:
            return 0
        if self.has(cost, now_us):
            return 0  # somebody has taken since it was looked for: what is left would be lost
        pace = (self._used + cost) * self._lease.for_us // (2 * max(1, now_us - self._asked_us))
        size = min(self._lease.tokens, 2 * self._size, self._room, pace)
        return size if size > cost else 0

    def begin(self, now_us: int) -> None:
        """
        Somebody asks for more: the others ask for their own cost, so that no two take ahead at once. Until he has
        ended, or for a lease's length, if nothing is heard of him.
        """
        self._taking_until_us = now_us + self._lease.for_us

    def ended(self) -> None:
        """He was answered, or failed."""
        self._taking_until_us = 0

    def took(self, units: int, cost: int, asked_us: int, now_us: int, remaining: int) -> None:
        """
        *units* were granted, *cost* of them to the job that asked at *asked_us*; *remaining* are left in the bucket.

        What was left of the last lease is spent first, if it has not ended meanwhile.
        """
        older = min(self.left, cost) if now_us < self.until_us else 0
        self.left, self.until_us = units - cost + older, asked_us + self._lease.for_us
        self._size, self._room = units, remaining // 2
        self._used, self._asked_us = 0, asked_us

    def asked_plainly(self, cost: int, allowed: bool, asked_us: int, remaining: int) -> None:
        """A job that asked at *asked_us* for no more than its *cost* was answered."""
        if not allowed:
            self.refused(asked_us)
        elif asked_us < self._taking_until_us:
            self._used += cost
        else:
            self._size, self._room = cost, remaining // 2
            self._used, self._asked_us = 0, asked_us

    def refused(self, now_us: int) -> None:
        """Others wait, or too little is left: ask plainly for a while, so that a denial costs one question."""
        self._size, self._plain_until_us = 0, now_us + self._lease.for_us

    def empty(self) -> None:
        """What is left is lost."""
        self.left = self.until_us = 0
