"""How a limit counts: a rate, and its algorithm's options. What the limit is for, `Limit` says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Generic, TypeVar, cast

from throttlekit._core.algorithm import Algorithm, Use
from throttlekit._core.exact import LARGEST_EXACT
from throttlekit._core.limit.rate import Rate, parse_rate
from throttlekit._core.limit.template import safe_repr
from throttlekit._core.local_quota import PrefetchQuota
from throttlekit.errors import ConfigurationError

__all__ = ["SAMPLE", "LimitRule", "OfRule"]

SAMPLE = 1_000_000
"""An amount of which every number of processes has a part."""

_ONE = 1000
_DAY_US = 86_400_000_000
_T = TypeVar("_T")
_R = TypeVar("_R", bound="LimitRule")


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRule:
    """
    What a limit admits: a rate, and its algorithm's options. Each algorithm has its own kind.

    A tier, a rate that a callable returns, a rate that an operator sets, a part of a rate, and the part of one process
    are rules of the same kind.

    Attributes:
        rate: As it is written.
        capacity: The most units that can ever pass at once, and so the greatest cost of one job.
        queue: How many jobs may wait for one more to join them. None: any number.
        varying_us: If the rate comes from a callable: the time in which a bucket of every rate fills, or 0 if that is
            not used. None: the rate is fixed.
        in_zone: Whether it depends on a time zone's calendar: see `bind`.
    """

    rate: Any
    amount: int
    period_us: int
    capacity: int
    queue: int | None
    varying_us: int | None
    prefetch: int | None = None
    prefetch_for: float | None = None
    prefetch_quota: PrefetchQuota | None = None
    in_zone: bool = False

    options: ClassVar[tuple[str, ...]] = ("queue",)
    """The names of the options that belong to a rate: there may be one for each tier."""
    later: ClassVar[tuple[str, ...]] = ("queue",)
    """Those of them that older releases do not know: messages have them only if they are given."""

    @classmethod
    def of(cls: type[_R], rate: Any, *, queue: Any = None, varying_us: int | None = None, **options: Any) -> _R:
        """
        The rule of a *rate*, as a limit's constructor takes it, and of the algorithm's own *options*.

        Raises:
            ConfigurationError: A value that can never work.
        """
        amount, period_us = cls.parse(rate)
        own = cls.work_out(rate, amount, period_us, varying_us, **options)
        return cls(
            rate=rate, amount=amount, period_us=period_us, queue=_check_queue(queue), varying_us=varying_us, **own
        )

    @classmethod
    def parse(cls, rate: Any) -> tuple[int, int]:
        """Read *rate* as (amount, period in µs)."""
        return parse_rate(rate)

    @classmethod
    def rate_from(cls, amount: int, period_us: int) -> Any:
        """The rate whose amount and period these are, as the constructor takes it."""
        return amount, timedelta(microseconds=period_us)

    @classmethod
    def work_out(cls, rate: Any, amount: int, period_us: int, varying_us: int | None) -> Mapping[str, Any]:
        """What follows from the rate and the algorithm's own options: the capacity, and the attributes of its own."""
        return {"capacity": amount}

    @classmethod
    def sample(cls: type[_R], options: Mapping[str, Any]) -> _R:
        """
        The rule at some rate, for a limit whose rate comes from a callable.

        Raises:
            ConfigurationError: Not all rates can be counted together, or an option can never work.
        """
        return cls.sample_at(0, options)

    @classmethod
    def sample_at(cls: type[_R], varying_us: int, options: Mapping[str, Any]) -> _R:
        """The same for a known `varying_us`."""
        return cls.of(cls.rate_from(SAMPLE, _DAY_US) or SAMPLE, varying_us=varying_us, **options)

    @property
    def counts_by(self) -> tuple[object, ...]:
        """Two rules that count in the same way have the same, and no others."""
        return (self.amount if self.varying_us is None else "varying", self.period_us)

    def at(self: _R, rate: Any, **changes: Any) -> _R:
        """
        The same at another *rate*, without a lease of tokens, and with *changes* of its options.

        Raises:
            ConfigurationError: A value that can never work.
        """
        own = {option: getattr(self, option) for option in self.options}
        return self.of(rate, varying_us=self.varying_us, **{**own, **changes})

    def with_rate(self: _R, rate: Any, burst: int | None) -> _R:
        """The same at another *rate*, with another *burst*; as `throttlekit._core.limit.base.altered` says."""
        return self.at(rate)

    def scale(self: _R, thousandths: int, least: int) -> _R:
        """
        The same at so many *thousandths* of its rate: in whole units, at least one. What lets *least* units pass at
        once still does.
        """
        amount = max(1, self.amount * thousandths // _ONE, min(least, self.amount))
        return self.at(self.rate_from(amount, self.period_us))

    def divide(self, processes: int) -> tuple[Rate, Mapping[str, Any]]:
        """
        The rate that one of *processes* has of it, and what else of it changes.

        Raises:
            ConfigurationError: There are fewer units than processes.
        """
        if self.amount < processes:
            raise ConfigurationError(
                f"an amount of {self.amount} cannot be shared out among processes={processes}: name fewer, or take "
                'on_store_failure="closed" or "open"'
            )
        return self.rate_from(self.amount // processes, self.period_us), {}

    def count_with(self: _R, declared: Any) -> _R | None:
        """The same, counted where *declared* counts, a rule of the same kind; None: the algorithm cannot."""
        return None

    def bind(self, cost: int, around_us: int, holder: str) -> Algorithm:
        """Like `Limit.bind`."""
        raise NotImplementedError

    def remaining(self, use: Use, now_us: int) -> int:
        """Whole units that would pass at *now_us*."""
        return max(0, self.capacity - use.units)


class OfRule(Generic[_T]):
    """
    An attribute of a limit's rule. A limit with tiers has it once for each tier, and not itself: it raises an
    `AttributeError` that says so. So does a limit whose rate is a callable, unless all its rates have it in *common*.
    """

    __slots__ = ("_common", "_name")

    def __init__(self, *, common: bool = False) -> None:
        self._common = common

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, limit: Any, owner: type | None = None) -> _T:
        rule = limit.rule or (limit.sample if self._common else None)
        if rule is not None:
            return cast("_T", getattr(rule, self._name))
        fault = f"limit {limit.name!r} has tiers, and a {self._name!r} for each: read it from one of its .tiers"
        if limit.tiers is None:
            fault = f"limit {limit.name!r} has a {self._name!r} for each rate: read it from limit.at(rate)"
        raise AttributeError(fault)


def _check_queue(queue: Any) -> int | None:
    if queue is not None and (isinstance(queue, bool) or not isinstance(queue, int) or queue < 0):
        raise ConfigurationError(f"the queue must be a whole number of at least 0, not {safe_repr(queue)}")
    if queue is not None and queue > LARGEST_EXACT:
        raise ConfigurationError("the queue must be less than 2**53: leave it out, and any number may wait")
    return None if queue is None else int.__int__(queue)
