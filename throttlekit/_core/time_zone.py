"""
Time zones and calendars as numbers: the offset of local time from UTC, and when it changes.

A script has no data about time zones. So the changes of a zone's clocks near the current time are computed here, and
sent with each request.

A script has no calendar either. So this file computes a clock on which each month has 31 days, and each year 366: the
clock is set forward when the next month begins. Example: April has 30 days, so on 1 May this clock is set forward by
one day. A month of 31 days in which a zone's clocks are set back is longer than 31 days. One day after such a month
begins, this clock is set back by the same time. So the number of a window is always (time + offset) // period.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from throttlekit._core.limit.rate import MONTH_US, WEEK_US, YEAR_US
from throttlekit._core.limit.template import safe_repr
from throttlekit.errors import ConfigurationError

__all__ = ["DAY_US", "UTC", "Zone", "zone_around", "zone_named", "zone_on"]

DAY_US = 86_400_000_000
_HOUR_US = 3_600_000_000
_TO_MONDAY_US = 3 * DAY_US  # 1970 began on a Thursday
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_SEARCHED_DAYS = 200  # in both directions: enough to find the last change of a zone's clocks and the next one


class Zone(NamedTuple):
    """The offset of a zone's clocks from UTC, in µs, and its *changes*: each is a time, and the offset from then on."""

    offset_us: int = 0
    changes: tuple[tuple[int, int], ...] = ()

    @property
    def text(self) -> str:
        return " ".join(str(number) for number in (self.offset_us, *(n for change in self.changes for n in change)))

    def at(self, now_us: int) -> int:
        offset_us = self.offset_us
        for from_us, changed_us in self.changes:
            if now_us >= from_us:
                offset_us = changed_us
        return offset_us


UTC = Zone()


def zone_named(tz: object) -> tzinfo | None:
    """
    Return the zone called *tz*, or None for UTC.

    Raises:
        ConfigurationError: *tz* is not the name of a zone.
    """
    from zoneinfo import ZoneInfo  # most limits name no zone, and loading it takes time

    if not isinstance(tz, str):
        raise ConfigurationError(f'tz must be the name of a time zone, like "Europe/Berlin", not {safe_repr(tz)}')
    try:
        return None if tz == "UTC" else ZoneInfo(tz)
    except (KeyError, ValueError, OSError):
        raise ConfigurationError(
            f'the time zone {tz!r} is not known here: write it like "Europe/Berlin". '
            "If the system has no time zones at all: pip install tzdata"
        ) from None


@lru_cache(maxsize=256)
def zone_on(zone: tzinfo | None, day: int, period_us: int, starts: int = 1) -> Zone:
    """
    Return the offsets that windows of *period_us* need on *day*, counted from 1970, in *zone*, or in UTC if it is None.
    Each month begins on its day *starts*.
    """
    if period_us in (MONTH_US, YEAR_US):
        return _months_around(zone or timezone.utc, day * DAY_US, period_us, starts)
    found = UTC if zone is None else zone_around(zone, day * DAY_US)
    if period_us == WEEK_US:
        changes = tuple((from_us, offset_us + _TO_MONDAY_US) for from_us, offset_us in found.changes)
        return Zone(found.offset_us + _TO_MONDAY_US, changes)
    whole = all((offset_us - found.offset_us) % period_us == 0 for _, offset_us in found.changes)
    if whole and period_us <= _HOUR_US:
        # Windows of an hour or less begin as if the clocks were never changed. A longer window's number is computed
        # from local time, whether a change is near or not.
        return Zone(found.offset_us % period_us)
    return found


def zone_around(zone: tzinfo, around_us: int) -> Zone:
    """
    Return the offsets of *zone* for times near *around_us*, about 200 days in both directions, with the changes of its
    clocks.
    """
    start_us = around_us - _SEARCHED_DAYS * DAY_US
    first_us = _offset_us(zone, start_us)
    changes: list[tuple[int, int]] = []
    before_us = first_us
    for day in range(1, 2 * _SEARCHED_DAYS + 1):
        end_us = start_us + day * DAY_US
        after_us = _offset_us(zone, end_us)
        if after_us != before_us:
            low_us, high_us = end_us - DAY_US, end_us
            while high_us - low_us > 1:
                middle_us = (low_us + high_us) // 2
                if _offset_us(zone, middle_us) == before_us:
                    low_us = middle_us
                else:
                    high_us = middle_us
            changes.append((high_us, after_us))
            before_us = after_us
    return Zone(first_us, tuple(changes))


def _months_around(zone: tzinfo, around_us: int, period_us: int, starts: int) -> Zone:
    """Return a `Zone` for the months or years near *around_us*: the one before it to the second one after it."""
    local = (_EPOCH + timedelta(microseconds=around_us)).astimezone(zone)
    step = 1 if period_us == MONTH_US else 12
    first = ((local.year - 1970) * 12 + local.month - 1 - (local.day < starts)) // step - 1
    begins = [_month_begins_us(zone, number * step, starts) for number in range(first, first + 5)]
    known: list[tuple[int, int]] = []
    for number, (begin_us, end_us) in enumerate(pairwise(begins), first):
        offset_us = number * period_us - begin_us
        known.append((begin_us, offset_us))
        over_us = end_us - begin_us - period_us
        if over_us > 0:
            known.append((begin_us + DAY_US, offset_us - over_us))
    (_, offset_us), *changes = known
    return Zone(offset_us, tuple(changes))


def _month_begins_us(zone: tzinfo, month: int, starts: int) -> int:
    """Return the time at which day *starts* of *month*, counted from January 1970, begins in *zone*."""
    begin = datetime(1970 + month // 12, month % 12 + 1, starts, tzinfo=zone)
    return (begin.astimezone(timezone.utc) - _EPOCH) // timedelta(microseconds=1)


def _offset_us(zone: tzinfo, at_us: int) -> int:
    at = _EPOCH + timedelta(microseconds=at_us)
    return (at.astimezone(zone).utcoffset() or timedelta()) // timedelta(microseconds=1)
