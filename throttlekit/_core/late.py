"""
The owners of jobs that their framework returns after a delay.

Some frameworks return a denied job after a delay, for example RQ's scheduler, which checks once a second. No process
holds such a job, so no process can receive its wake. All jobs with the same greatest lateness share one owner: the
owner "~1000" has the jobs that return at most 1000 ms late (`late_owner`). No wake is sent to this owner.

When such a job is woken, its units are kept until the latest time at which it returns, as long as the limit can keep
them without losing any. Further jobs are woken at the limit's pace, but no units are kept for them. So jobs that never
return delay the other jobs only for a short time. If units are kept for several such jobs, the first of them that
requests units gets them, if its turn is near.

lua/throttlekit_lua/waitlist.lua mirrors `lateness_us`. Change both, or the parity tests fail.
"""

from __future__ import annotations

from functools import lru_cache

__all__ = ["EARLY_US", "LATE_EARLY_US", "early_us", "late_owner", "lateness_us"]

EARLY_US = 5_000
"""
A woken job may be granted this long before its units are free; its body begins when they are free. With a small burst,
a unit is lost if its job requests it a little late. Simulated at 50/s, burst 1: use .81 without it, 2.4 requests/job.
"""

LATE_EARLY_US = 250_000
"""
The value of `EARLY_US` for a job that its framework returns after a delay, but at most the job's lateness. If the job
were denied, it would be delayed again. Simulated at 50/s, burst 1, up to 50 ms late: without this, .69 of the limit is
used, with 6.5 requests per job; with it, 1.00 and 2.0.
"""


def late_owner(seconds: float) -> str:
    """Return the owner of jobs that their framework returns after a delay, at most *seconds* late."""
    return f"~{max(1, round(seconds * 1000))}"


def lateness_us(owner: str) -> int:
    """Return how late the jobs of *owner* may return; 0 if the owner is a process, which listens for wakes."""
    return int(owner[1:]) * 1000 if owner.startswith("~") and owner[1:].isdecimal() else 0


@lru_cache
def early_us(owner: str) -> int:
    """Return the time before its units are free at which a job of *owner* may be granted."""
    return max(EARLY_US, min(LATE_EARLY_US, lateness_us(owner)))
