"""
The decisions of each limit in the last 24 hours, by minute, and in the last 30 days, by hour. The store keeps them.

Rule 1: a step contains the reports that the store received during the step. After its end a step never changes.
Rule 2: a step is known if any process reported in it, and the history had begun. Otherwise its numbers are None, which
is not the same as 0.
Rule 3: a limit uses 69 kB, and at most 200 limits have a history. fleet_common.lua describes which one is replaced.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import throttlekit_lua
from throttlekit._core.storage_keys import fleet_name
from throttlekit.fleet.rules import as_text
from throttlekit.stores.base import SupportsCommands

__all__ = ["CHANGED", "HISTORIES", "RANGES", "Bar", "Moment", "Range", "bars_of", "history_name", "report_history"]

HISTORIES = (fleet_name("timelines"), fleet_name("timeline"))
"""The storage keys of the list of limits that have a history, and of the record of when any process reported."""
CHANGED = 2**36 - 1
"""Recorded in place of the rate if it changed during the record."""

_SCRIPT = throttlekit_lua.script("fleet_history")
_BYTES, _MINUTES, _HOURS = 32, 1_440, 720
_AT_ONCE = 25
_BEGUN = ((_MINUTES + _HOURS) * _BYTES, (_MINUTES + _HOURS) * _BYTES + 4)
"""The bytes that store the minute in which the history begins."""
_WIDTHS = (16, 40, 28, 28, 28, 24, 8, 36, 24, 24)


class Moment(NamedTuple):
    """
    An addition to the history of a limit, or a stored record of it.

    Attributes:
        units: The granted units, with the corrections by `settle` so far.
        granted, arrived: The number of granted jobs, and of jobs that requested units for the first time.
        denied, paused: The number of denials for other reasons than a pause, and because of a pause.
        partner_429s: 429s from the partner that paused the limit.
        rate: The rate, as `reported_rate` returns it; 0 if not known.
        wait_ds: The longest wait of a job that requested units, in tenths of a second.
        waiting: The number of waiting jobs that a reader saw; None if only processes have reported.
    """

    units: int = 0
    granted: int = 0
    arrived: int = 0
    denied: int = 0
    paused: int = 0
    partner_429s: int = 0
    rate: int = 0
    wait_ds: int = 0
    waiting: int | None = None


@dataclass(frozen=True, slots=True)
class Bar:
    """
    One bar of a chart: a minute, an hour, or several of them. The numbers are as in `Moment`, or None if not known.

    Attributes:
        at: The begin of the bar, in seconds since 1970.
        longest_wait: The longest wait, in seconds.
        rate: The rate that was in force throughout; None if it changed, or is not known.
        waiting: The largest number of jobs that a reader saw waiting.
    """

    at: int
    units: int | None = None
    granted: int | None = None
    arrived: int | None = None
    denied: int | None = None
    paused: int | None = None
    partner_429s: int | None = None
    rate: int | None = None
    longest_wait: float | None = None
    waiting: int | None = None


@dataclass(frozen=True, slots=True)
class Range:
    """The length of a chart: *bars* bars of *merged* records each; a record covers *step* seconds."""

    step: int
    merged: int
    bars: int

    @property
    def bar_s(self) -> int:
        return self.step * self.merged


RANGES: Mapping[str, Range] = {
    "15m": Range(60, 1, 15),
    "1h": Range(60, 1, 60),
    "24h": Range(60, 10, 144),
    "30d": Range(3_600, 4, 180),
}
"""The ranges that a chart can have, by name."""


def history_name(id: str) -> str:
    """Return the storage key of the history of the limit *id*."""
    return fleet_name(f"timeline:{id}")


def report_history(added: Mapping[str, Moment], *, by_reader: bool = False) -> list[tuple[str | int, ...]]:
    """
    Return the commands that add to the history of limits, by id, and mark the time as known unless *by_reader*.

    Each command covers only a few limits, so that none blocks the server for long.
    """
    ids = list(added)
    return [
        _report({id: added[id] for id in ids[first : first + _AT_ONCE]}, by_reader)
        for first in range(0, max(1, len(ids)), _AT_ONCE)
    ]


def _report(added: Mapping[str, Moment], by_reader: bool) -> tuple[str | int, ...]:
    rows = [[*each[:-1], 0 if each.waiting is None else each.waiting + 1] for each in added.values()]
    names = (*HISTORIES, *map(history_name, added))
    return ("EVAL", _SCRIPT, len(names), *names, as_text(rows), "0" if by_reader else "1")


def bars_of(store: SupportsCommands, ids: Sequence[str], now: float, of: Range) -> dict[str, list[Bar]]:
    """
    Return the bars of each limit, the oldest first. The last one is still running.

    Args:
        now: The store's clock, seconds since 1970.

    Raises:
        StoreUnavailable: The store did not answer.
    """
    last = int(now // of.bar_s)
    numbers = range((last - of.bars + 1) * of.merged, int(now // of.step) + 1)
    ring, skipped = (_MINUTES, 0) if of.step == 60 else (_HOURS, _MINUTES)
    parts = [((skipped + first) * _BYTES, (skipped + end) * _BYTES) for first, end in _pieces(numbers, ring)]
    keys = (HISTORIES[1], *map(history_name, ids))
    replies = iter(
        store.commands([("GETRANGE", key, first, end - 1) for key in keys for first, end in (*parts, _BEGUN)])
    )

    def records() -> tuple[dict[int, Moment], float]:
        """Return the records of the next key by number, and the time when its history begins, in seconds since 1970."""
        joined = b"".join(bytes(next(replies)).ljust(end - first, b"\0") for first, end in parts)
        found = ((number, _parse(joined[at * _BYTES : (at + 1) * _BYTES])) for at, number in enumerate(numbers))
        begun = bytes(next(replies))
        return (
            {number: moment for number, (lap, moment) in found if lap == number // ring},
            int.from_bytes(begun, "big") * 60 if len(begun) == 4 else math.inf,
        )

    reported, _ = records()
    bars = dict[str, list[Bar]]()
    for id in ids:
        own, begun = records()
        known = {number for number in reported if (number + 1) * of.step > begun}
        bars[id] = [
            _bar(at * of.bar_s, [(own.get(n), n in known) for n in range(at * of.merged, (at + 1) * of.merged)])
            for at in range(last - of.bars + 1, last + 1)
        ]
    return bars


def _pieces(numbers: range, ring: int) -> list[tuple[int, int]]:
    """Return the ranges of records, as first and end. If the ring wraps around within *numbers*, there are two."""
    first = numbers[0] % ring
    if first + len(numbers) <= ring:
        return [(first, first + len(numbers))]
    return [(first, ring), (0, first + len(numbers) - ring)]


def _parse(record: bytes) -> tuple[int, Moment]:
    """Return the lap of the ring in which *record* was stored, and the record."""
    number, rest = int.from_bytes(record, "big"), 8 * _BYTES
    lap, *counts, waiting = (number >> (rest := rest - width) & (1 << width) - 1 for width in _WIDTHS)
    return lap, Moment._make([*counts, waiting - 1 if waiting else None])


def _bar(at: int, records: Sequence[tuple[Moment | None, bool]]) -> Bar:
    """Merge records into a bar. A record is None if nothing was recorded. Each comes with whether its time is known."""
    kept = [moment for moment, _ in records if moment is not None]
    waiting = max((each.waiting for each in kept if each.waiting is not None), default=None)
    if not any(known for _, known in records):
        return Bar(at, waiting=waiting)
    rates = {each.rate for each in kept if each.rate}
    (rate,) = rates if len(rates) == 1 else (CHANGED,)
    return Bar(
        at,
        units=sum(each.units for each in kept),
        granted=sum(each.granted for each in kept),
        arrived=sum(each.arrived for each in kept),
        denied=sum(each.denied for each in kept),
        paused=sum(each.paused for each in kept),
        partner_429s=sum(each.partner_429s for each in kept),
        rate=None if rate == CHANGED else rate,
        longest_wait=max((each.wait_ds for each in kept), default=0) / 10,
        waiting=waiting,
    )
