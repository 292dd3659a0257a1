"""
The owners of jobs that come back late.

Some jobs are brought back by their framework after a delay, so no process can be told that they may ask. Their owner
stands for all jobs that come back equally late (`late_owner`); it is never rung. If such a job is woken, its units are
kept until it should have come, but only so many that none is lost meanwhile; beyond that, it is woken at the limit's
pace without any, so that those that never come back stop nobody for long. Units that are kept for one of these jobs
pass to whichever of them asks first, if its turn is near.

lua/throttlekit_lua/waitlist.lua mirrors `lateness_us`. Change both, or the parity tests fail.
"""

from __future__ import annotations

__all__ = ["EARLY_US", "LATE_EARLY_US", "PLAIN_OWNER", "early_us", "late_owner", "lateness_us"]

EARLY_US = 5_000
"""
So long before its units come a job that was woken is granted, for the instant at which they come: at a small burst each
unit whose job comes a little late is lost. Simulated at 50/s, burst 1: use .81 without, and 2.4 questions a job.
"""

LATE_EARLY_US = 250_000
"""
The same for a job that comes back by a delay, at most its lateness: else it would be away for that long. Simulated at
50/s, burst 1, up to 50 ms late: use .69 without, and 6.5 questions a job; 1.00 and 2.0 with it.
"""


def late_owner(seconds: float) -> str:
    """The owner of jobs that come back by a delay, up to so many seconds late."""
    return f"~{max(1, round(seconds * 1000))}"


PLAIN_OWNER = late_owner(0.05)
"""The owner of jobs of which nobody says how late they come."""


def lateness_us(owner: str) -> int:
    """How late the jobs of an owner come at most, if they come back by a delay; else 0."""
    return int(owner[1:]) * 1000 if owner.startswith("~") and owner[1:].isdecimal() else 0


def early_us(owner: str) -> int:
    """How long before its units come a job may be granted."""
    return max(EARLY_US, min(LATE_EARLY_US, lateness_us(owner)))
