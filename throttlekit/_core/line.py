"""
The waiting line: why a denied job is deferred about once, whatever the backlog.

Rule 1: every waiting job is due at an instant of its own. No two jobs come back for the same unit.
Rule 2: to be due is right of way, not a right to run. Only the bucket admits.
Rule 3: a job that has waited goes before a new one.
Rule 4: only a denial moves the line on. A newcomer that passes a line that was given up ends it.

A line is three instants, each the next one that is free:

    tail    where the next newcomer joins
    late    where a job goes next that was due and found no unit:
            a short second line that overtakes the first
    guest   the next instant to suggest to a caller that cannot keep a place (there is no job to come back).
            Guests are spread out, but no job waits for them

and, while the limit is paused or has just been, the instant at which the pause ends:

    paused  until then no job passes. Then the limit counts as used up. The first job that passes ends the pause.
            The instant at which it began is kept beside it, so that a clock that steps back makes no pause longer

Instants lie one charge apart, by the limit's rate; each algorithm works it out (`Algorithm.spacing_us`).

lua/throttlekit_lua/acquire.lua and clear_line.lua mirror this file. Change all, or the parity tests fail.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["EMPTY", "GRACE_US", "GUESTS_US", "Line", "window_spacing_us", "window_tight"]

GRACE_US = 5_000_000
"""If units lie idle for so long, the jobs in the line are not coming: the line is given up."""

GUESTS_US = 60_000_000
"""Guests are spread over at most this time: they may never come back, so they book no further."""

_TIGHT_PERIODS = 25  # a window shorter than this many latenesses is tight


@dataclass(frozen=True, slots=True)
class Line:
    """The state of one key's line, in µs. An instant in the past means that no job waits there."""

    tail_us: int = 0
    late_us: int = 0
    guest_us: int = 0
    paused_us: int = 0
    paused_from_us: int = 0

    @property
    def end_us(self) -> int:
        """Where a newcomer would stand: behind both lines."""
        return max(self.tail_us, self.late_us)

    def at(self, now_us: int) -> Line:
        """The line as it counts at *now_us*: a pause that a later clock began begins now, at its full length."""
        if self.paused_from_us <= now_us:
            return self
        paused_us = now_us + self.paused_us - self.paused_from_us
        return replace(self, paused_us=paused_us, paused_from_us=now_us)

    def cleared(self) -> Line | None:
        """The line without the jobs that wait; None if nothing else is in it."""
        return Line(paused_us=self.paused_us, paused_from_us=self.paused_from_us) if self.paused_us else None


EMPTY = Line()


def window_spacing_us(units: int, amount: int, period_us: int, lateness_us: int) -> int:
    """
    The distance between instants where each period begins anew. A job that comes late leaves a unit of one period
    unused, and takes one of the next. So instants lie further apart by the lateness's share of the period, up to 1/25.
    """
    charge_us = -(-units * period_us // amount)
    return charge_us + min(charge_us // _TIGHT_PERIODS, charge_us * lateness_us // period_us)


def window_tight(period_us: int, lateness_us: int) -> bool:
    """Whether the lateness is a good part of the period."""
    return period_us < _TIGHT_PERIODS * lateness_us
