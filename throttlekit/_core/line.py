"""
The waiting line: why a denied job is deferred about once, whatever the backlog.

Rule 1: every waiter gets an instant of its own, its slot. No two come back for the same unit.
Rule 2: a slot is right of way, not a right to fire. The bucket alone admits.
Rule 3: whoever has waited goes before whoever comes new.
Rule 4: only a denial moves the line on. A newcomer that passes a line given up ends it.

A line is three instants, each the next one free:

    tail    where the next newcomer joins
    late    where somebody whose slot has passed, and who found no unit, goes next:
            a short second line that overtakes the first
    guest   the next instant to suggest to a caller who cannot keep a place (no job to come back).
            Guests are spread out, but nobody waits for them

Slots stand one charge apart. A bucket with room for less than the lateness of the delivery cannot
store what a late waiter leaves unused, and each bit of lateness would push everybody behind it out
of step for good. So its slots stand a little further apart (`spacing_us`), which lets the line catch
up; measured at burst 1, 10/s, that is 0.96 of the limit at 2.0 deliveries a job in place of 0.69 at 3.4.

lua/throttlekit_lua/acquire.lua mirrors this file. Change both, or the parity tests fail.
"""

from __future__ import annotations

from dataclasses import dataclass

from throttlekit._core.gcra import Charge

__all__ = ["EMPTY", "GRACE_US", "GUESTS_US", "Line", "spacing_us"]

GRACE_US = 5_000_000
"""A bucket that has stood full for this long has been given up by those in its line."""

GUESTS_US = 60_000_000
"""Guests are spread over this long at most: they may never come back, so they book no further."""

_SLACK = 25  # a tight bucket's slots stand up to 1/25 further apart …
_MOST_SLACK_US = 20_000  # … and never more than this: enough to catch up with ordinary lateness


@dataclass(frozen=True, slots=True)
class Line:
    """The state of one key's line, in µs. An instant in the past means: nobody waits there."""

    tail_us: int = 0
    late_us: int = 0
    guest_us: int = 0

    @property
    def end_us(self) -> int:
        """Where a newcomer would stand: behind both lines."""
        return max(self.tail_us, self.late_us)


EMPTY = Line()


def spacing_us(request: Charge, lateness_us: int) -> int:
    """The distance from *request*'s slot to the next, for a delivery that comes up to *lateness_us* late."""
    if request.headroom_us >= lateness_us:
        return request.charge_us
    return request.charge_us + min(request.charge_us // _SLACK, _MOST_SLACK_US)
