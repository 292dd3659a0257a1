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

and, while the limit is paused or has just been, the instant up to which it is:

    paused  until then nobody passes; then the limit begins used up. Whoever passes first ends it

Slots stand one charge apart, by the limit's rate; the algorithms say it (`Charge.spacing_us`).

lua/throttlekit_lua/acquire.lua mirrors this file. Change both, or the parity tests fail.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EMPTY", "GRACE_US", "GUESTS_US", "Line", "window_spacing_us", "window_tight"]

GRACE_US = 5_000_000
"""A limit whose units have lain idle for this long has been given up by those in its line."""

GUESTS_US = 60_000_000
"""Guests are spread over this long at most: they may never come back, so they book no further."""

_SLACK = 25  # a window shorter than this many latenesses is tight


@dataclass(frozen=True, slots=True)
class Line:
    """The state of one key's line, in µs. An instant in the past means: nobody waits there."""

    tail_us: int = 0
    late_us: int = 0
    guest_us: int = 0
    paused_us: int = 0

    @property
    def end_us(self) -> int:
        """Where a newcomer would stand: behind both lines."""
        return max(self.tail_us, self.late_us)


EMPTY = Line()


def window_spacing_us(units: int, amount: int, period_us: int, lateness_us: int) -> int:
    """
    The distance between slots where each period begins anew: a job that comes late leaves a unit of
    one period unused, and takes one of the next. So slots stand further apart by the lateness's share
    of the period, up to 1/25.
    """
    charge_us = -(-units * period_us // amount)
    return charge_us + min(charge_us // _SLACK, charge_us * lateness_us // period_us)


def window_tight(period_us: int, lateness_us: int) -> bool:
    """Whether the lateness is a good part of the period."""
    return period_us < _SLACK * lateness_us
