"""
The exact window: the times of the last `amount` units. A unit passes if the unit `amount` units before it has left the
window.

Rule 1: at most `amount` units pass in any window `[t, t + period)`. This is exact, also where two periods meet.
Rule 2: at most the last `amount` units are stored, because older units leave the window before these. So a settled cost
above the amount needs no more memory. It pushes units out of the log: until these would have left the window, no unit
is returned.
Rule 3: the log is in order. If the clock steps back, the time of the newest unit is used instead.

Example: 3/minute, and units at 0, 10 and 50 s. A request at 55 s is denied. It passes at 60 s, when the unit of 0 s has
left the window.

lua/throttlekit_lua/sliding_log.lua mirrors this file. Change both, or the parity tests fail.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from throttlekit._core.algorithm import STALE_US, Use, WindowAlgorithm
from throttlekit._core.limit.base import Limit
from throttlekit._core.limit.rule import LimitRule
from throttlekit.errors import ConfigurationError

__all__ = ["Log", "SlidingLog", "SlidingLogAlgorithm"]

_LARGEST_AMOUNT = 100_000
_PAUSED_GROUPS = 64


class Log(NamedTuple):
    """The state: the times of the last units, at most `amount`, the oldest first."""

    units: tuple[int, ...] = ()
    owed_until_us: int = 0
    """Until this time, the window has more units than the log contains: a settled cost pushed some of them out."""


class SlidingLogAlgorithm(WindowAlgorithm):
    """A request that adds units to the log."""

    __slots__ = ()

    code: ClassVar[str] = "l"

    def sanitize(self, state: Log | None, now_us: int) -> Log | None:
        if state is None or not state.units or state.units[-1] - now_us <= STALE_US:
            return state
        return Log((now_us,) * self.amount)

    def exhaust(self, state: Log | None, at_us: int) -> Log:
        """
        Spread `amount` units evenly over the last period, in at most `_PAUSED_GROUPS` groups, each with the time of its
        last unit. A stored unit keeps its own time if that is later, so it stays in every window in which it was.
        """
        groups = min(self.amount, _PAUSED_GROUPS)
        units: list[int] = []
        for group in range(groups):
            instant_us = at_us - self.period_us - (-(group + 1) * self.period_us // groups)
            begin, end = -(-group * self.amount // groups), -(-(group + 1) * self.amount // groups)
            units += [max(1, instant_us)] * (end - begin)
        if state is None:
            return Log(tuple(units))
        older = self.amount - len(state.units)
        units[older:] = map(max, units[older:], state.units)
        return Log(tuple(units), state.owed_until_us)

    def ready_us(self, state: Log | None, now_us: int, ahead: int = 0) -> int:
        if self.size == 0:
            return now_us
        units = state.units if state else ()
        windows, number = divmod(ahead + self.size - 1, self.amount)
        last = number - self.amount + len(units)
        free_us = now_us if last < 0 else max(now_us, units[last] + self.period_us)
        return free_us + windows * self.period_us

    def admit(self, state: Log | None, now_us: int, begins_us: int | None = None) -> Log | None:
        return state if self.size == 0 else self._with(state or Log(), now_us, self.size)

    def settle(self, state: Log | None, now_us: int, granted_us: int, by: int) -> Log | None:
        if by > 0:
            return self._with(state or Log(), now_us, min(by, self.amount + 1))
        if state is None or now_us < state.owed_until_us:
            return state
        units, end = state.units, bisect_right(state.units, granted_us)
        if by == 0 or end == 0 or units[end - 1] + self.period_us <= now_us:
            return state
        return Log(units[: max(0, end + by)] + units[end:], state.owed_until_us)

    def use(self, state: Log | None, now_us: int) -> Use:
        if state is None or not state.units:
            return Use(0, now_us)
        units = state.units
        return Use(len(units) - bisect_right(units, now_us - self.period_us), units[-1] + self.period_us)

    def _with(self, state: Log, now_us: int, more: int) -> Log:
        at_us = max(now_us, state.units[-1]) if state.units else now_us
        units = state.units + (at_us,) * more
        forgotten_us = units[-self.amount - 1] + self.period_us if len(units) > self.amount else 0
        owed_until_us = max(state.owed_until_us, forgotten_us if forgotten_us > now_us else 0)
        return Log(units[-self.amount :], owed_until_us)


class _LogRule(LimitRule):
    """An amount of units in any window of one period."""

    __slots__ = ()

    @classmethod
    def work_out(cls, rate: Any, amount: int, period_us: int, varying_us: int | None) -> Mapping[str, Any]:
        if amount > _LARGEST_AMOUNT:
            raise ConfigurationError(
                f"the amount of {rate!r} is more than {_LARGEST_AMOUNT}: a sliding log stores 7 bytes per unit. "
                "Use a SlidingWindow or a TokenBucket, which store a few numbers"
            )
        return {"capacity": amount}

    @classmethod
    def sample(cls, options: Mapping[str, Any]) -> _LogRule:
        raise ConfigurationError(
            "the rate of a SlidingLog cannot be a callable: its amount is the size of the log. Use a "
            "TokenBucket or a SlidingWindow, or a rate for each tier"
        )

    def bind(self, cost: int, around_us: int) -> SlidingLogAlgorithm:
        return SlidingLogAlgorithm(cost, self.amount, self.period_us)


class SlidingLog(Limit):
    """
    An exact amount of units in any interval of one period.

    Guarantee: in any window of the period's length, at most `amount` units pass. The bound is exact, and
    it is reached.

    When to choose it: the partner counts "100 requests in any 60 seconds", and punishes the 101st. The whole amount
    may pass at once. In the store, a key needs 7 bytes per unit, so use this limit for small amounts. The time of a
    decision does not depend on the amount.

    Args:
        name, rate, key, cost, scope, tier, default_tier, on_store_failure, processes: As for every limit; see `Limit`.
            The amount is at most 100 000: a key's log is then 700 kB.

    Raises:
        ConfigurationError: A value can never work. The constructor raises it.

    The log is stored as a ring of times.
    """

    __slots__ = ()

    algorithm = "sliding-log"
    rule_type = _LogRule
