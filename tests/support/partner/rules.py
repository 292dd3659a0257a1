"""
Rules for the number of slots, compared on a simulated partner: throttlekit's rule, and three of other projects.

The rules of other projects are reimplemented from their sources, with their defaults: Vector's
`sinks/util/adaptive_concurrency`, `Gradient2Limit` of Netflix's concurrency-limits, and Envoy's adaptive concurrency
filter, whose base is measured at the floor, once in 1 000 calls. In each of them a refusal removes a tenth of the
slots, as in Vector's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from statistics import mean

from support.partner.queueing import Ours, Partner, Rule, constant, even, happen, spread, stepped, two_kinds
from support.reports.tables import table

__all__ = ["compared"]

FLOOR, MOST = 2, 40


class _OfOthers:
    def __init__(self) -> None:
        self.limit = float(FLOOR)

    @property
    def slots(self) -> int:
        return max(FLOOR, min(MOST, int(self.limit)))

    def refused(self, now: float, granted: float) -> None:
        self.limit = max(FLOOR, 0.9 * self.limit)


class Vector(_OfOthers):
    def __init__(self) -> None:
        super().__init__()
        self._held: list[float] = []
        self._past: float | None = None
        self._variance = self._next = 0.0
        self._reached = self._refused = False

    def ended(self, now: float, held: float, used: int) -> None:
        self._reached |= used >= self.slots
        self._held.append(held)
        self._update(now)

    def refused(self, now: float, granted: float) -> None:
        self._refused = True
        self._update(now)

    def _update(self, now: float) -> None:
        found = mean(self._held) if self._held else None
        if self._past is None:
            self._past, self._next = found, now + (found or 0.0)
        if now < self._next or self._past is None:
            return
        if found is not None and self._reached and not self._refused and found <= self._past:
            self.limit = min(MOST, self.limit + 1)
        elif self._refused or (found or 0.0) >= self._past + 2.5 * math.sqrt(self._variance):
            self.limit = max(FLOOR, int(0.9 * self.limit))
        if found is not None:
            off = found - self._past
            self._past, self._variance = self._past + 0.4 * off, 0.6 * (self._variance + 0.4 * off**2)
        self._held, self._next, self._reached, self._refused = [], now + self._past, False, False


class Gradient2(_OfOthers):
    def __init__(self) -> None:
        super().__init__()
        self._first: list[float] = []
        self._long = 0.0

    def ended(self, now: float, held: float, used: int) -> None:
        if len(self._first) < 10:
            self._first.append(held)
            self._long = mean(self._first)
        else:
            self._long += (held - self._long) * 2 / 601
        if self._long / held > 2:
            self._long *= 0.95
        if used >= self.limit / 2:
            new = self.limit * max(0.5, min(1.0, 1.5 * self._long / held)) + 4
            self.limit = max(FLOOR, min(MOST, 0.8 * self.limit + 0.2 * new))


class Envoy(_OfOthers):
    def __init__(self) -> None:
        super().__init__()
        self._held: list[float] = []
        self._base: float | None = None
        self._calls = 0

    @property
    def slots(self) -> int:
        return FLOOR if self._base is None else super().slots

    def ended(self, now: float, held: float, used: int) -> None:
        self._held.append(held)
        self._calls += 1
        if self._base is None:
            if len(self._held) >= 50:
                self._base, self._held, self._calls = mean(self._held), [], 0
            return
        if len(self._held) < max(16, self.slots):
            return
        gradient, self._held = max(0.5, min(2.0, 1.25 * self._base / mean(self._held))), []
        if gradient <= 1 or used >= self.slots:
            self.limit = max(FLOOR, min(MOST, gradient * self.limit + math.sqrt(self.limit)))
        if self._calls >= 1000:
            self._base = None


RULES: Mapping[str, Callable[[], Rule]] = {
    "`ByLatency`": lambda: Ours(FLOOR, MOST),
    "Vector": Vector,
    "Gradient2": Gradient2,
    "Envoy": Envoy,
}
PARTNERS = {
    "all jobs alike": Partner(constant(20), even),
    "6 slots": Partner(constant(6), spread(0.3)),
    "halved, then doubled": Partner(stepped(20, 10, 20), spread(0.3)),
    "lengths differ: deviation 0.3 of the mean": Partner(constant(20), spread(0.3)),
    "deviation as great as the mean": Partner(constant(20), spread(1.0)),
    "one job in ten is 20 times as long": Partner(constant(20), two_kinds),
    "jobs become half as long again, and short once more": Partner(
        constant(20), lambda rnd, at: 0.15 if 1 / 3 < at < 2 / 3 else 0.1
    ),
    "refuses beyond 20": Partner(constant(20), spread(0.3), refuses=True),
}


def compared(seconds: float, runs: int) -> str:
    """
    Return a table with a line for each partner: the use of each rule, and how long calls took or how many got 429.
    """
    lines: list[list[str]] = []
    for name, partner in PARTNERS.items():
        cells = [name]
        for make in RULES.values():
            found = [happen(make(), partner, seconds, seed) for seed in range(runs)]
            use, longer, refused = (
                mean(getattr(each, what) for each in found) for what in ("use", "longer", "refused")
            )
            cells.append(f"{use:.2f}, {refused:.0f} of 1 000" if partner.refuses else f"{use:.2f}, {longer:.2f} x")
        lines.append(cells)
    return table(["the partner bears 20 at once", *RULES], lines)
