"""
The check of a history: do the grants, by the server's clock, keep the bound of the limit's algorithm?

Rule 1: it shares no code with the limits. It uses only the bounds in the limits' docstrings, in whole numbers.
Rule 2: it checks every window, from any grant to any later one.

Times are in whole µs. A grant is (time, units). A period is in µs.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

__all__ = [
    "Broken",
    "Grant",
    "Rule",
    "bucket",
    "check",
    "fixed_window",
    "leased_bucket",
    "sliding_log",
    "sliding_window",
]

Grant: TypeAlias = "tuple[int, int]"


@dataclass(frozen=True)
class Broken:
    """The first grant at which a window exceeded its bound, and by how many units or parts of a unit."""

    at_us: int
    by: float


Rule: TypeAlias = "Callable[[Sequence[Grant]], Broken | None]"


def bucket(amount: int, period_us: int, burst: int) -> Rule:
    """At most `burst + w × amount / period` units in any window of length w."""
    return lambda grants: _excess(grants, amount, period_us, burst * period_us)


def leased_bucket(amount: int, period_us: int, burst: int, for_us: int) -> Rule:
    """At most `burst + (w + for) × amount / period` units in any window of length w."""
    return lambda grants: _excess(grants, amount, period_us, burst * period_us + for_us * amount)


def sliding_window(amount: int, period_us: int) -> Rule:
    """Less than `amount + 1 + w × amount / period` units in any window of length w."""
    return lambda grants: _excess(grants, amount, period_us, (amount + 1) * period_us - 1)


def fixed_window(amount: int, period_us: int) -> Rule:
    """At most `amount` units in each window of the calendar, in UTC."""

    def judge(grants: Sequence[Grant]) -> Broken | None:
        used: Counter[int] = Counter()
        for at_us, units in grants:
            used[at_us // period_us] += units
            if (by := used[at_us // period_us] - amount) > 0:
                return Broken(at_us, by)
        return None

    return judge


def sliding_log(amount: int, period_us: int) -> Rule:
    """At most `amount` units in any window `[t, t + period)`."""

    def judge(grants: Sequence[Grant]) -> Broken | None:
        inside: deque[Grant] = deque()
        used = 0
        for at_us, units in grants:
            inside.append((at_us, units))
            used += units
            while inside[0][0] <= at_us - period_us:
                used -= inside.popleft()[1]
            if used > amount:
                return Broken(at_us, used - amount)
        return None

    return judge


def check(rule: Rule, grants: Iterable[Grant]) -> Broken | None:
    """Return None if the bound is kept. The order of *grants* does not matter."""
    return rule(sorted(grants))


def _excess(grants: Sequence[Grant], amount: int, period_us: int, room: int) -> Broken | None:
    """
    Check that units × period - length × amount is at most *room* in each window.

    Of the windows that end with a grant, the worst one begins where units until then × period - time × amount is
    lowest.
    """
    so_far, lowest = 0, None
    for at_us, units in grants:
        before = so_far * period_us - at_us * amount
        lowest = before if lowest is None else min(lowest, before)
        so_far += units
        if (beyond := so_far * period_us - at_us * amount - lowest - room) > 0:
            return Broken(at_us, beyond / period_us)
    return None
