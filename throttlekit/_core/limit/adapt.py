"""Adapt a limit to the partner's true limit, if that is lower than the declared one, and unknown."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from throttlekit._core.durations import seconds_within
from throttlekit._core.limit.rate import Rate, parse_rate
from throttlekit._core.limit.template import safe_repr
from throttlekit._core.limit.value import Value
from throttlekit._core.number import is_whole
from throttlekit._core.slowdown import LONGEST_SPAN_US, ONE, Refusal
from throttlekit._core.spelling import checks_spelling
from throttlekit.errors import ConfigurationError

__all__ = ["Adapt", "ByLatency", "check_adapt"]

_LEAST = ONE // 1000
_UNITS_OF_A_SPAN = 600
_SHORTEST_SPAN_US = 10_000
_MOST_SLOTS = 1_000_000


class Adapt(Value):
    """
    Reduce a limit's rate, for the whole fleet, while the partner refuses calls. Then raise it again.

    A job that raises `RateLimited`, or calls `throttlekit.current().report_overload()`, reduces the rate to 0.76 of its
    value. After one span the rate is 0.95 of that value, and it rises until the next refusal, at most to the declared
    rate. One overload reduces the rate once: a job that was admitted before the last reduction does not reduce it
    again.

    Example: a limit of 100/s gets a 429. Its rate falls to 76/s, and is 95/s after one span.

    Guarantee: `floor <= rate <= declared rate`, always. So every bound of the limit holds. A success costs nothing.

    Args:
        floor: The least rate, like "10/s": at least a thousandth of the declared rate, and less than the declared rate.
            If a callable returns the rate, each rate that it returns is checked.
        span: The time from a reduction until the rate is at 0.95 of its value before, in seconds or as a timedelta:
            10 ms to a day. Default: the limit's period, or the time of 600 units if that is longer. A longer span
            causes fewer refused calls, but the rate recovers later.

    Raises:
        ConfigurationError: A value can never work. The floor is compared with the rate when the limit is created.

    It is not part of the limit's definition. The rate follows CUBIC (RFC 9438).
    """

    __slots__ = ("_given", "_least", "_span_us", "floor", "span")

    floor: Rate
    span: float | timedelta | None
    _least: tuple[int, int]
    _span_us: int | None
    _given: Refusal | None
    """The floor and span as numbers, for a limit whose rate has changed, or that was read from a message."""

    @checks_spelling
    def __init__(self, floor: Rate, *, span: float | timedelta | None = None) -> None:
        least = parse_rate(floor)
        self._set(floor=floor, span=span, _least=least, _span_us=_within_a_day_us("span", span), _given=None)

    @classmethod
    def _of(cls, given: Refusal) -> Adapt:
        made = object.__new__(cls)
        made._set(floor="", span=None, _given=given)
        return made

    def refusal(self, amount: int, period_us: int, granted_us: int | None) -> Refusal:
        """
        Return the `Refusal` for a limit of this rate.

        Raises:
            ConfigurationError: The floor is not below the rate, or below a thousandth of it.
        """
        if self._given is not None:
            return self._given._replace(granted_us=granted_us)
        least, per_us = self._least
        part = -(-least * period_us * ONE // (per_us * amount))
        if not _LEAST <= part < ONE:
            raise ConfigurationError(
                f"the floor {safe_repr(self.floor)} must be less than the rate, and at least a thousandth of it"
            )
        span_us = self._span_us or max(period_us, _UNITS_OF_A_SPAN * period_us // amount)
        return Refusal(granted_us, min(max(span_us, _SHORTEST_SPAN_US), LONGEST_SPAN_US), part)

    def as_part(self, amount: int, period_us: int) -> Adapt:
        """Return a copy for another rate: the floor is the same part of each rate, and the span is the same."""
        return self._of(self.refusal(amount, period_us, None))

    def plain(self, amount: int, period_us: int) -> list[int]:
        """Return the data for a message, for a limit of this rate. `read` parses the data."""
        return [*self.refusal(amount, period_us, None)[1:]]

    @classmethod
    def read(cls, data: Any) -> Adapt:
        """
        Read the data that `plain` returned.

        Raises:
            ValueError: *data* has another form.
        """
        span_us, floor = data
        if type(span_us) is not int or type(floor) is not int:
            raise ValueError("adapt")
        if not 1 <= span_us <= LONGEST_SPAN_US or not _LEAST <= floor < ONE:
            raise ValueError("adapt")
        return cls._of(Refusal(None, span_us, floor))

    def _identity(self) -> tuple[object, ...]:
        return type(self), self.floor, self.span, self._given

    def __repr__(self) -> str:
        return self._show(self.floor, span=self.span)


class ByLatency(Value):
    """
    Adapt the number of slots of a `Concurrency` limit, for the whole fleet, to the load that the partner can handle.

    The number starts at the floor. If jobs hold their slots for longer than before, the number falls; otherwise it
    rises while all slots are in use. It also falls by a tenth, once for each overload, if a job raises `RateLimited`,
    calls `throttlekit.current().report_overload()` or holds its slot for *timeout*, or if its worker dies.

    Guarantee: `floor <= slots <= declared amount`, always. A job never loses a slot that it holds. A job needs no
    additional round trip, but about 1.8 times the server's time. A key needs about 100 bytes more, until an hour after
    the last job.

    Args:
        floor: The lowest number of slots: a whole number from 1 to the declared amount.
        timeout: A job that holds its slot for this time counts as failed: seconds, or a timedelta, from 10 ms to a day.
            Default: no time-out. If your calls have a time-out, set it here too: calls that all time out take equally
            long, so their length alone does not show an overload.

    Raises:
        ConfigurationError: A value can never work. A floor above the amount is an error when the limit is created.

    If a limit is `set` or scaled to fewer slots than the floor, that number is the floor. *adapt* is not part of the
    definition. `throttlekit._core.latency` contains the rules, and docs/limit-adaptive.md describes the effects.
    """

    __slots__ = ("floor", "timeout", "timeout_us")

    floor: int
    timeout: float | timedelta | None
    timeout_us: int

    @checks_spelling
    def __init__(self, floor: int, *, timeout: float | timedelta | None = None) -> None:
        if not is_whole(floor, 1, _MOST_SLOTS):
            raise ConfigurationError(f"the floor must be a whole number of slots, at least 1, not {safe_repr(floor)}")
        self._set(floor=floor, timeout=timeout, timeout_us=_within_a_day_us("timeout", timeout) or 0)

    def plain(self, amount: int, period_us: int) -> list[int]:
        """Return the data for a message. `read` parses the data."""
        return [self.floor, self.timeout_us]

    @classmethod
    def read(cls, data: Any) -> ByLatency:
        """
        Read the data that `plain` returned.

        Raises:
            ValueError: *data* has another form.
        """
        floor, timeout_us = data
        if type(timeout_us) is not int:
            raise ValueError("adapt")
        return cls(floor, timeout=timeout_us / 1_000_000 if timeout_us else None)

    def _identity(self) -> tuple[object, ...]:
        return type(self), self.floor, self.timeout_us

    def __repr__(self) -> str:
        return self._show(self.floor, timeout=self.timeout)


def _within_a_day_us(option: str, value: float | timedelta | None) -> int | None:
    """
    Return *value*, in seconds, as microseconds; None stays None.

    Raises:
        ConfigurationError: *value* is not a time from 10 ms to a day. The error names *option*.
    """
    if value is None:
        return None
    seconds = seconds_within(f"the {option}", value, _SHORTEST_SPAN_US / 1_000_000, LONGEST_SPAN_US / 1_000_000)
    return round(seconds * 1_000_000)


def check_adapt(limit: Any) -> None:
    """
    Check that *limit*, which has one rate, can adapt.

    Raises:
        ConfigurationError: *limit* cannot adapt in the way that `adapt` names.
    """
    adapt: object = limit.adapt
    if adapt is None:
        return
    if limit.period_us == 0:
        if isinstance(adapt, Adapt):
            raise ConfigurationError(
                f"{adapt!r} lowers a rate, but a concurrency limit has none: write adapt=ByLatency(floor=2)"
            )
        if not isinstance(adapt, ByLatency):
            raise ConfigurationError(f"adapt must be like ByLatency(floor=2), not {safe_repr(adapt)}")
        if not isinstance(limit.cost, int) or limit.cost > 1:
            raise ConfigurationError(f"{adapt!r} measures jobs that hold one slot each: leave out either it or cost=")
        if not limit.by_value and limit.varying_us is None and adapt.floor > limit.amount:
            raise ConfigurationError(f"the floor {adapt.floor} must not be above the {limit.amount} slots")
        return
    if isinstance(adapt, ByLatency):
        raise ConfigurationError(f'{adapt!r} is for slots: for a rate write adapt=Adapt(floor="10/s")')
    if not isinstance(adapt, Adapt):
        raise ConfigurationError(f'adapt must be like Adapt(floor="10/s"), not {safe_repr(adapt)}')
    adapt.refusal(limit.amount, limit.period_us, None)
