"""
Jobs that are not coming: their entries are taken out of the waiting line, so that they hold no other job back.

This is rule 4 of line.py. lua/throttlekit_lua/line.lua mirrors it. Change both, or the parity tests fail.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace

from throttlekit._core.line import GRACE_US, LOOK_US, NO_TAGS, Entry, Line

__all__ = ["BATCH", "DOUBT", "DOUBT_LASTS_US", "MOST_BATCH", "MOST_DOUBT", "overtaken", "tidied"]

BATCH, MOST_BATCH = 16, 512
"""Entries set aside in one request, at most, for each `GRACE_US` of the grace time; times the budget."""

DOUBT, MOST_DOUBT, DOUBT_LASTS_US = 4, 252, 1_000_000
"""
So many entries set aside, and none that came back, make the budget larger once more. One that comes back halves their
number. It is `MOST_DOUBT` at most: then the budget is 64 times what lies there.
"""


def tidied(line: Line, there: int, mark: int, now_us: int, grace_us: int, own: int) -> tuple[Line, bool]:
    """
    The line without those that are not coming; and whether others were set aside, or may be in a while.

    An entry is set aside once units for it, and for all before it, have lain there for the grace time. After a change
    of the rate, and after a pause, that time begins once every process has looked. The units that lie there are a
    budget, spent once in each grace time; it grows while none of those that were set aside comes back.

    Args:
        there: Units that the limit has now.
        own: The number of the entry of the job that comes, which is not set aside; 0: it has none.
    """
    if not line.jobs:
        return _forgetful(line), False
    if mark < line.mark:
        return replace(line, mark=mark, since_us=now_us + LOOK_US, low=there), False
    looked_us = line.paused_us + LOOK_US if line.paused_us else 0
    grace_us = max(grace_us, line.grace_us)
    if now_us < max(line.since_us, looked_us) + grace_us:
        return line, False
    doubt = line.doubt if 0 <= now_us - line.aside_us <= DOUBT_LASTS_US + 2 * grace_us else 0
    budgets = 1 + doubt // DOUBT
    idle, aside = min(line.low, there) * budgets, 0
    pending = line.jobs[0].number != own and idle < line.jobs[0].cost <= there
    for entry in line.jobs[: min(MOST_BATCH, max(BATCH, BATCH * grace_us // GRACE_US) * budgets)]:
        if entry.number == own or entry.cost > idle:
            break
        idle -= entry.cost
        aside += 1
    line = replace(
        line, since_us=now_us, low=there, doubt=min(doubt + aside, MOST_DOUBT),
        aside_us=now_us if aside else line.aside_us, over_us=0 if aside else line.over_us,
    )  # fmt: skip
    return _forgetful(_without_first(line, aside)), aside > 0 or pending


def overtaken(line: Line, entry: Entry, now_us: int) -> Line:
    """
    The line without the first `MOST_BATCH` of those that stand before *entry*, whose job passes before them: they were
    due, have not come, and their units were lost. One that comes yet keeps its place. For a while after the rate has
    changed the line stays: then they may have been told to come later.
    """
    if now_us < line.since_us:
        return line
    return _without_first(line, min(MOST_BATCH, bisect_left(line.jobs, entry)))


def _without_first(line: Line, number: int) -> Line:
    cost = sum(entry.cost for entry in line.jobs[:number])
    return replace(line, jobs=line.jobs[number:], gone=line.gone + cost, extra=line.extra - cost + number)


def _forgetful(line: Line) -> Line:
    """The line; where no job waits, no tenant owes anything."""
    if line.jobs or not (line.finishes or line.returns):
        return line
    return replace(line, finishes=NO_TAGS, returns=NO_TAGS)
