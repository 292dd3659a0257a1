"""
Two counters: while the current window passes, the units of the window before it expire evenly.

Rule 1: the load is `before × (the part of this window that is left) + used`. A request passes if the load, rounded down
to whole units, and its own cost are at most the amount.
Rule 2: time is divided into steps, so that every product is exact. Units expire only at the end of a step.

Example: 100/minute, 60 units used in the previous minute, and 40 in this one. After 15 s the load is
60 × 45/60 + 40 = 85, so 15 more units may pass.

The bound: in any window of length w, less than amount + 1 + w × amount / period units pass. Proof: each admission adds
its units to the load, which is then less than amount + 1. Between admissions the load falls at the rate of before /
period, at most amount / period. At the end of a window it does not jump: `before` has expired, and `used` becomes
`before`. So in a time w that admits n units, the load starts at 0 or more, falls by at most w × amount / period, and
ends below amount + 1: n is less than the sum. In one period that is at most 2 × amount: a whole amount at the very end
of a window, and another as the first one expires. Evenly spread traffic gets exactly its amount.

lua/throttlekit_lua/sliding_window.lua mirrors this file. Change both, or the parity tests fail.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from throttlekit._core.algorithm import STALE_US, Use, WindowAlgorithm
from throttlekit._core.limit.base import Limit
from throttlekit._core.limit.rule import LimitRule

__all__ = ["Counts", "SlidingWindow", "SlidingWindowAlgorithm", "step_us"]

_LARGEST_LOAD = 2**46
_LARGEST_DEBT_AMOUNTS = 60  # a load of twice this plus 1 is exact, even with steps rounded up


class Counts(NamedTuple):
    """The state: the number of the window, the units used in the window before it, and those used in it."""

    window: int
    before: int
    used: int


def step_us(amount: int, period_us: int) -> int:
    """Return the shortest step with which a double represents each load exactly: 1 µs for all ordinary limits."""
    return -(-amount * period_us // _LARGEST_LOAD)


@dataclass(frozen=True, slots=True)
class SlidingWindowAlgorithm(WindowAlgorithm):
    """A request that adds units to the two counters."""

    step_us: int

    code: ClassVar[str] = "s"

    @property
    def params(self) -> tuple[int | str, int | str, int | str]:
        return self.amount, self.period_us, self.step_us

    @property
    def _steps(self) -> int:
        return -(-self.period_us // self.step_us)

    def sanitize(self, state: Counts | None, now_us: int) -> Counts | None:
        if state is None or state.window * self.period_us - now_us <= STALE_US:
            return state
        return Counts(now_us // self.period_us, 0, self.amount)

    def exhaust(self, state: Counts | None, at_us: int) -> Counts:
        """
        Set the counter of this window as if its units had been used evenly, or leave it if it is higher. Set the
        counter of the window before it so that the load is the amount. So units expire from *at_us* on.
        """
        window, before, used = self._current_window(state, at_us)
        if state is not None and window > at_us // self.period_us:
            return state
        over = (at_us - window * self.period_us) // self.step_us
        used = max(used, -(-self.amount * over // self._steps))
        room = max(0, self.amount - used)
        return Counts(window, max(before, -(-room * self._steps // (self._steps - over))), used)

    def ready_us(self, state: Counts | None, now_us: int, ahead: int = 0) -> int:
        """Assume that the units ahead pass as older units expire: until the window's end, then one per interval."""
        window, before, used = self._current_window(state, now_us)
        units = ahead + self.size
        if self.size == 0 or self._units(state, now_us) + units <= self.amount:
            return now_us
        begin_us, next_us = window * self.period_us, (window + 1) * self.period_us
        if used + units <= self.amount:
            return self._faded_us(now_us, begin_us, before, self.amount - used - units)
        alone_us = now_us
        if self._units(state, now_us) + self.size > self.amount:
            room = self.amount - used - self.size
            if room >= 0:
                alone_us = self._faded_us(now_us, begin_us, before, room)
            else:
                alone_us = self._faded_us(now_us, next_us, used, self.amount - self.size)
        if ahead == 0 or used > self.amount:
            return alone_us - (-ahead * self.period_us // self.amount)
        behind_us = next_us - ((self.amount - used - units) * self.period_us // self.amount)
        if units <= self.amount:
            behind_us = min(behind_us, self._faded_us(now_us, next_us, used, self.amount - units))
        return max(alone_us, behind_us)

    def _faded_us(self, now_us: int, begin_us: int, fading: int, room: int) -> int:
        """Return when less than *room* + 1 of *fading* units are left. The units expire evenly from *begin_us* on."""
        faded = self._steps + 1 + -(room + 1) * self._steps // max(1, fading)
        return max(now_us, begin_us + min(self.period_us, max(0, faded) * self.step_us))

    def admit(self, state: Counts | None, now_us: int, begins_us: int | None = None) -> Counts | None:
        if self.size == 0:
            return state
        window, before, used = self._current_window(state, now_us)
        return Counts(window, before, used + self.size)

    def settle(self, state: Counts | None, now_us: int, granted_us: int, by: int) -> Counts | None:
        window, before, used = self._current_window(state, now_us)
        if by > 0:
            return Counts(window, before, min(used + by, _LARGEST_DEBT_AMOUNTS * self.amount))
        granted = granted_us // self.period_us
        if state is None or granted not in (window, window - 1):
            return state
        if granted == window:
            return Counts(window, before, max(0, used + by))
        return Counts(window, max(0, before + by), used)

    def use(self, state: Counts | None, now_us: int) -> Use:
        if state is None:
            return Use(0, now_us)
        expired = state.window + (2 if state.used else 1)
        full_us = expired * self.period_us if state.used or state.before else now_us
        return Use(self._units(state, now_us), full_us)

    def _current_window(self, state: Counts | None, now_us: int) -> Counts:
        window = now_us // self.period_us
        if state is None or state.window < window - 1:
            return Counts(window, 0, 0)
        return Counts(window, state.used, 0) if state.window < window else state

    def _units(self, state: Counts | None, now_us: int) -> int:
        """Return the load, rounded down to whole units."""
        window, before, used = self._current_window(state, now_us)
        over = max(0, now_us - window * self.period_us) // self.step_us
        return used + before * (self._steps - over) // self._steps


class _SlidingRule(LimitRule):
    """An amount of units per period, in a sliding window."""

    __slots__ = ()

    def count_with(self, declared: Any) -> _SlidingRule | None:
        return self if self.period_us == declared.period_us else None

    def bind(self, cost: int, around_us: int) -> SlidingWindowAlgorithm:
        return SlidingWindowAlgorithm(cost, self.amount, self.period_us, step_us(self.amount, self.period_us))


class SlidingWindow(Limit):
    """
    An amount of units per period, with two counters: as the current window passes, the units of the last one expire.

    Guarantee: in any window of length w, less than `amount + 1 + w × amount / period` units pass: at most
    `2 × amount` in any one period. In the worst case, a whole amount passes at the very end of a window, nothing
    before it, and another as the first one expires. Evenly spread traffic gets its amount. The module has a proof.

    When to choose it: "100 requests a minute" for a great many keys, if bursts up to the amount are accepted,
    but not two amounts at the edge of a `FixedWindow`. If the partner counts exactly, use `SlidingLog`. In
    the store, a key needs three numbers, whatever the amount.

    Args:
        name, rate, key, cost, scope, tier, default_tier, on_store_failure, processes: As for every limit; see `Limit`.

    Raises:
        ConfigurationError: A value can never work. The constructor raises it.

    The approximated sliding window, as described by Cloudflare ("How we built rate limiting capable of scaling to
    millions of domains", 2017), in integers. Windows begin at multiples of the period since 1970, UTC.
    """

    __slots__ = ()

    algorithm = "sliding-window"
    rule_type = _SlidingRule
