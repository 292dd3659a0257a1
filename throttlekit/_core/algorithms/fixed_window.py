"""
Windows of the calendar, such as hours or days, and the units used in the current one.

Rule 1: a window has a number: local time divided by the period. When a new window begins, 0 of its units are used.
Rule 2: the number never decreases, even if the clock steps back. So a unit counts in its window or in a later one.

Example: 100/hour in UTC. At 13:59 all 100 units are used, and a request is denied until 14:00. If the clock steps back
from 14:01 to 13:58, requests still count in the window that began at 14:00.

lua/throttlekit_lua/fixed_window.lua mirrors this file. Change both, or the parity tests fail.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import tzinfo
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from throttlekit._core.algorithm import STALE_US, Use, WindowAlgorithm
from throttlekit._core.limit.base import Limit
from throttlekit._core.limit.options import LimitOptions, Rates
from throttlekit._core.limit.rate import MONTH_US, WEEK_US, YEAR_US, parse_window
from throttlekit._core.limit.rule import LimitRule, OfRule
from throttlekit._core.limit.template import safe_repr
from throttlekit._core.number import is_whole
from throttlekit._core.time_zone import DAY_US, UTC, Zone, zone_named, zone_on
from throttlekit.errors import ConfigurationError

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Count", "FixedWindow", "FixedWindowAlgorithm"]

_LARGEST_DEBT_AMOUNTS = 60  # the largest debt, in amounts, so that every number is exact
_PARTS = 4096  # the most steps of a window, so that the product with an amount is exact


class Count(NamedTuple):
    """The state: the number of the window, and the units used in it."""

    window: int
    used: int


@dataclass(frozen=True, slots=True)
class FixedWindowAlgorithm(WindowAlgorithm):
    """A request for units of the current window."""

    zone: Zone = UTC

    code: ClassVar[str] = "f"

    @property
    def params(self) -> tuple[int | str, int | str, int | str]:
        return self.amount, self.period_us, self.zone.text

    def sanitize(self, state: Count | None, now_us: int) -> Count | None:
        if state is None or self._first_begin_us(state.window, now_us) - now_us <= STALE_US:
            return state
        return Count(self._window(now_us), self.amount)

    def exhaust(self, state: Count | None, at_us: int) -> Count:
        """
        Count units as used in proportion to the part of the window that has passed by the local clock. Example: at
        noon, half of a day's units count as used, and the other half may pass at once.
        """
        window, used = self._current_window(state, at_us)
        if state is not None and window > self._window(at_us):
            return state
        step_us = -(-self.period_us // _PARTS)
        steps, over = -(-self.period_us // step_us), -(-((at_us + self.zone.at(at_us)) % self.period_us) // step_us)
        return Count(window, max(used, -(-self.amount * over // steps)))

    def ready_us(self, state: Count | None, now_us: int, ahead: int = 0) -> int:
        """Assume that in each window `amount` of the units ahead pass, whatever the costs of their jobs."""
        window, used = self._current_window(state, now_us)
        if self.size == 0 or used + ahead + self.size <= self.amount:
            return now_us
        over = min(used, self.amount) + ahead + self.size - self.amount
        return self._begin_us(window + max(1, -(-over // self.amount)), now_us)

    def admit(self, state: Count | None, now_us: int, begins_us: int | None = None) -> Count | None:
        if self.size == 0:
            return state
        window, used = self._current_window(state, now_us)
        return Count(window, used + self.size)

    def settle(self, state: Count | None, now_us: int, granted_us: int, by: int) -> Count | None:
        window, used = self._current_window(state, now_us)
        if by <= 0 and (state is None or self._window(granted_us) != window):
            return state
        return Count(window, max(0, min(used + by, _LARGEST_DEBT_AMOUNTS * self.amount)))

    def use(self, state: Count | None, now_us: int) -> Use:
        if state is None:
            return Use(0, now_us)
        used = self._current_window(state, now_us).used
        return Use(used, self._begin_us(state.window + 1, now_us) if state.used else now_us)

    def _current_window(self, state: Count | None, now_us: int) -> Count:
        window = self._window(now_us)
        return Count(window, 0) if state is None or state.window < window else state

    def _window(self, now_us: int) -> int:
        return (now_us + self.zone.at(now_us)) // self.period_us

    def _begin_us(self, window: int, now_us: int) -> int:
        """
        Return the time at which *window* begins. The clocks may change between *now_us* and that time. If they are set
        forward across the begin of the window, the window begins at the time of the change.
        """
        local_us = window * self.period_us
        begin_us = local_us - self.zone.at(now_us)
        for from_us, changed_us in self.zone.changes:
            if now_us < from_us <= begin_us:
                begin_us = max(from_us, local_us - changed_us)
        return begin_us

    def _first_begin_us(self, window: int, now_us: int) -> int:
        """Return when *window* first began: if the clocks are set back across its begin, it begins twice."""
        local_us, begin_us, offset_us = window * self.period_us, self._begin_us(window, now_us), self.zone.offset_us
        for from_us, changed_us in self.zone.changes:
            if local_us - offset_us < from_us <= now_us:
                begin_us = local_us - offset_us
            offset_us = changed_us
        return begin_us


@dataclass(frozen=True, slots=True, kw_only=True)
class _FixedRule(LimitRule):
    """An amount of units in each window of the calendar."""

    tz: str | None
    starts: int | None
    zone: tzinfo | None

    options = ("tz", "starts", "queue")
    later = ("starts", "queue")

    @classmethod
    def parse(cls, rate: Any) -> tuple[int, int]:
        return parse_window(rate)

    @classmethod
    def rate_from(cls, amount: int, period_us: int) -> Any:
        of_calendar = {MONTH_US: "month", YEAR_US: "year"}.get(period_us)
        return f"{amount}/{of_calendar}" if of_calendar else LimitRule.rate_from(amount, period_us)

    @classmethod
    def work_out(
        cls, rate: Any, amount: int, period_us: int, varying_us: int | None, tz: Any = None, starts: Any = None
    ) -> Mapping[str, Any]:
        if DAY_US % period_us and period_us not in (WEEK_US, MONTH_US, YEAR_US):
            raise ConfigurationError(
                f"the period of {rate!r} must fit evenly into a day, like 10s, 15m, 6h or 1d, or be a week, a "
                "month or a year: a fixed window begins with the calendar's. For other periods, use a SlidingWindow "
                "or a SlidingLog"
            )
        if starts is not None:
            if not is_whole(starts, 1, 28):
                raise ConfigurationError(f"starts must be a day of every month, from 1 to 28, not {safe_repr(starts)}")
            if period_us != MONTH_US:
                raise ConfigurationError(f"starts= is the day on which a month begins, and {rate!r} has no month")
        zone = None if tz is None else zone_named(tz)
        in_zone = zone is not None or period_us in (MONTH_US, YEAR_US)
        return {"capacity": amount, "tz": tz, "starts": starts, "zone": zone, "in_zone": in_zone}

    @classmethod
    def sample(cls, options: Mapping[str, Any]) -> _FixedRule:
        if options["starts"] is not None:
            raise ConfigurationError("starts= needs a fixed rate, but rate= is a callable: leave it out")
        return cls.sample_at(0, options)

    @property
    def counts_by(self) -> tuple[object, ...]:
        counted = self.amount if self.varying_us is None else "varying"
        own = () if self.starts in (None, 1) else (self.starts,)
        return counted, self.period_us, "UTC" if self.zone is None else self.tz, *own

    def count_with(self, declared: Any) -> _FixedRule | None:
        return self if self.period_us == declared.period_us else None

    def bind(self, cost: int, around_us: int) -> FixedWindowAlgorithm:
        plain = self.zone is None and self.period_us <= DAY_US
        zone = UTC if plain else zone_on(self.zone, around_us // DAY_US, self.period_us, self.starts or 1)
        return FixedWindowAlgorithm(cost, self.amount, self.period_us, zone)


class FixedWindow(Limit):
    """
    An amount of units in each second, minute, hour, day, week, month or year of the calendar. When the next one starts,
    all units are available again.

    Guarantee: in each window of the calendar, at most `amount` units pass. So at most `2 × amount` pass in any interval
    that is not longer than the shortest of these windows: one amount at the end of a window, and one at the start of
    the next. Both bounds are reached.

    When to choose it: the partner's contract says "resets at the top of the hour", "1000 a day, Berlin time", or
    "10 000 a month". Otherwise use `SlidingWindow` or `SlidingLog`: a partner that counts in any interval would see up
    to two amounts. When a window begins, as many waiting jobs start as fit into it. A key needs two numbers.

    Args:
        name, rate, key, cost, scope, tier, default_tier, on_store_failure, processes: As for every limit; see `Limit`.
            A period must fit evenly into a day: windows of ten seconds begin at :00, :10, :20. Or it is a week, which
            begins on Monday, a month, "1000/month", or a year.
        tz: The name of the time zone of hours, days and longer windows: "Europe/Berlin". A day of 23 or 25 hours,
            because the clocks change, is one window. Default: UTC.
        starts: For a rate in months, the day, 1 to 28, on which each month begins, such as a customer's billing month.
            Default: 1.

    Raises:
        ConfigurationError: A value can never work. The constructor raises it.

    The store's clock decides which window is current, and which changes of the zone's clocks apply. With a time zone,
    months or years, each process sends one additional request, once, to get the store's time. The process's own clock
    is used only for scope "process", and for a process's own share while the store is unavailable.
    """

    __slots__ = ()

    algorithm = "fixed-window"
    rule_type = _FixedRule

    tz = OfRule["str | None"](common=True)
    starts = OfRule["int | None"](common=True)

    def __init__(
        self,
        name: str,
        rate: Rates,
        *,
        tz: str | None = None,
        starts: int | None = None,
        **options: Unpack[LimitOptions],
    ) -> None:
        super().__init__(name, rate, _own={"tz": tz, "starts": starts}, **options)
