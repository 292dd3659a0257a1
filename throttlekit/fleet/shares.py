"""
The units of each tenant of a shared limit: in each minute of the last hour, in each ten minutes of the last 24 hours,
and in each four hours of the last 30 days. The store keeps them, next to the history of the limit.

Rule 1: a step contains the reports that the store received during the step. After its end a step never changes.
Rule 2: the sum of a step is exact. A step names the 8 tenants with the most units, and counts the rest as "others". The
units of each tenant are exact if the step has at most 32 tenants; fleet_shares.lua describes the error for more.
That script mirrors this file. Change both; otherwise a step that has ended changes.
Rule 3: at most 50 limits have such a history. A limit without shares has none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import throttlekit_lua
from throttlekit._core.storage_keys import fleet_name
from throttlekit.fleet.history import Bar, Range
from throttlekit.fleet.rules import as_text
from throttlekit.stores.base import SupportsCommands

__all__ = ["SHARES", "SharedStep", "Taken", "largest", "report_shares", "shared_steps", "shares_name", "sum_of"]

SHARES = fleet_name("shares")
"""The storage key of the list of limits that have such a history."""

_SCRIPT = throttlekit_lua.script("fleet_shares")
_SIZES = {60: 61, 600: 145, 14_400: 181}
"""The number of records that are stored, by their length in seconds, which is the length of a chart's bar."""
_RUNNING, _NAMED, _AT_ONCE = 32, 8, 5


@dataclass(frozen=True, slots=True)
class Taken:
    """An addition to the history of a limit: *units* by tenant, and the units of all *others*."""

    units: Mapping[str, int]
    others: int = 0


@dataclass(frozen=True, slots=True)
class SharedStep:
    """
    One bar of a chart.

    Attributes:
        at: The begin of the bar, in seconds since 1970.
        units: The granted units, before corrections, of the tenants with the most units, the largest first; None if not
            known.
        others: The granted units of all other tenants.
    """

    at: int
    units: Mapping[str, int] | None = None
    others: int = 0


def shares_name(id: str) -> str:
    """Return the storage key of this history of the limit *id*."""
    return fleet_name(f"shares:{id}")


def report_shares(added: Mapping[str, Taken]) -> list[tuple[str | int, ...]]:
    """Return the commands that add to the history of limits, by id. Each command covers a few limits."""
    ids = list(added)
    return [_report({id: added[id] for id in ids[first : first + _AT_ONCE]}) for first in range(0, len(ids), _AT_ONCE)]


def _report(added: Mapping[str, Taken]) -> tuple[str | int, ...]:
    rows = [[each.others, list(each.units.items())] for each in added.values()]
    names = (SHARES, *map(shares_name, added))
    return ("EVAL", _SCRIPT, len(names), *names, as_text(rows))


def shared_steps(store: SupportsCommands, id: str, bars: Sequence[Bar], of: Range) -> list[SharedStep]:
    """
    Return how tenants divided the units of the limit *id* in each of *bars*.

    Raises:
        StoreUnavailable: The store did not answer.
    """
    seconds = of.bar_s
    fields = [_field(seconds, bar.at // seconds) for bar in bars]
    begun, last, *records = store.commands([("HMGET", shares_name(id), "begun", "last", *fields)])[0]
    if begun is None or last is None:
        return [SharedStep(bar.at) for bar in bars]
    since, minute = int(begun) * 60, int(last)
    numbers = [bar.at // seconds for bar in bars]
    steps = dict(zip(numbers, map(_parse, records, numbers), strict=True))
    step = steps.get(minute * 60 // seconds)
    if seconds > 60 and step is not None:
        # The longer steps do not include the last minute yet: the next report adds it as `add` does.
        (record,) = store.commands([("HGET", shares_name(id), _field(60, minute))])
        step.add(*_parse(record, minute).largest())
    return [
        SharedStep(bar.at, *steps[bar.at // seconds].largest())
        if bar.units is not None and bar.at + seconds > since
        else SharedStep(bar.at)
        for bar in bars
    ]


def _field(seconds: int, number: int) -> str:
    return f"{seconds}:{number % _SIZES[seconds]}"


@dataclass(slots=True)
class _Counted:
    """One of the tenants of a record."""

    units: int
    debt: int = 0


@dataclass(slots=True)
class _Record:
    """The record of a step; see fleet_shares.lua."""

    others: int
    tenants: dict[str, _Counted]

    def add(self, units: Mapping[str, int], others: int) -> None:
        self.others += others
        for name, count in units.items():
            if name in self.tenants:
                self.tenants[name].units += count
            elif len(self.tenants) < _RUNNING:
                self.tenants[name] = _Counted(count)
            else:
                least = min(self.tenants, key=lambda each: self.tenants[each].units + self.tenants[each].debt)
                left = self.tenants[least]
                self.others += left.units
                left = _Counted(count, left.units + left.debt)
                # Put the new tenant at the position of the one that it replaces.
                self.tenants = {
                    name if each == least else each: left if each == least else known
                    for each, known in self.tenants.items()
                }

    def largest(self) -> tuple[dict[str, int], int]:
        units = {name: each.units for name, each in self.tenants.items()}
        return largest(units, others=self.others, most=_NAMED)


def _parse(record: bytes | None, number: int) -> _Record:
    """Parse the record of step *number*. If *record* belongs to another step, the result is empty."""
    of, others, *tenants = (record or b"-1 0").decode().split(" ")
    if int(of) != number:
        return _Record(0, {})
    return _Record(int(others), dict(map(_tenant, tenants)))


def _tenant(text: str) -> tuple[str, _Counted]:
    counts, _, name = text.partition(":")
    units, _, debt = counts.partition("+")
    return name, _Counted(int(units), int(debt or 0))


def largest(units: Mapping[str, int], *, others: int, most: int) -> tuple[dict[str, int], int]:
    """Return the *most* tenants with the most units (the first of equal ones), and the units of all others."""
    ranked = sorted(units.items(), key=lambda each: -each[1])
    return dict(ranked[:most]), others + sum(count for _, count in ranked[most:])


def sum_of(steps: Iterable[SharedStep]) -> dict[str, int]:
    """Return the units of each tenant that *steps* name, summed over all steps, the largest first."""
    found = Counter[str]()
    for step in steps:
        found.update(step.units or {})
    return dict(found.most_common())
