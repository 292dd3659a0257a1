"""
Time zones as numbers: how far local time is ahead of UTC, and when that changes.

A script knows no zones. So the changes of a zone's clocks near an instant are worked out here, and sent along.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import NamedTuple

from throttlekit._core.limit.template import safe_repr
from throttlekit.errors import ConfigurationError

__all__ = ["DAY_US", "UTC", "Zone", "zone_around", "zone_named", "zone_on"]

DAY_US = 86_400_000_000
_HOUR_US = 3_600_000_000
_SEARCHED_DAYS = 200  # each way: so that both the last change of a zone's clocks and the next are seen


class Zone(NamedTuple):
    """How far a zone's clocks are ahead of UTC, in µs: before the *changes*, and from each of them on."""

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
    The zone that is called *tz*; None: UTC.

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
            "Where the system has no time zones at all: pip install tzdata"
        ) from None


@lru_cache(maxsize=256)
def zone_on(zone: tzinfo, day: int, period_us: int) -> Zone:
    """The part of *zone* that windows of *period_us* need on *day*, counted from 1970."""
    found = zone_around(zone, day * DAY_US)
    whole = all((offset_us - found.offset_us) % period_us == 0 for _, offset_us in found.changes)
    if whole and period_us <= _HOUR_US:
        # Windows of an hour or less begin where they would if the clocks were never changed. A longer one's number is
        # that of the local time, whether a change is in sight or not.
        return Zone(found.offset_us % period_us)
    return found


def zone_around(zone: tzinfo, around_us: int) -> Zone:
    """
    The part of *zone* that is needed near *around_us*: some 200 days each way, so its changes of clocks
    before and after.
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


def _offset_us(zone: tzinfo, at_us: int) -> int:
    at = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=at_us)
    return (at.astimezone(zone).utcoffset() or timedelta()) // timedelta(microseconds=1)
