"""The rule of a limit: a rate, and the options of its algorithm. `Limit` adds the name, keys and costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Generic, TypeVar, cast

from throttlekit._core.algorithm import Algorithm, Use
from throttlekit._core.limit.rate import Rate, parse_rate
from throttlekit._core.limit.template import safe_repr
from throttlekit._core.local_quota import PrefetchQuota
from throttlekit._core.number import LARGEST_EXACT, is_whole
from throttlekit.errors import ConfigurationError

__all__ = ["SAMPLE", "LimitRule", "OfRule"]

SAMPLE = 1_000_000
"""An amount that can be divided among any number of processes."""

_ONE = 1000
_DAY_US = 86_400_000_000
_T = TypeVar("_T")
_R = TypeVar("_R", bound="LimitRule")


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRule:
    """
    The rule by which a limit admits units: a rate, and its algorithm's options. Each algorithm has its own subclass.

    A limit may need several rules, all of the same class: for its tiers, for the rates that a callable returns or an
    operator sets, for a scaled rate, and for the share of one process.

    Attributes:
        rate: The rate as the user wrote it.
        capacity: The most units that can ever pass at once, and so the greatest cost of one job.
        queue: The longest queue: a new job is refused if this many jobs wait. None if there is no limit.
        varying_us: If a callable returns the rate, the time in which the bucket fills at every rate, or 0 if the
            algorithm does not use it. None if the rate is fixed.
        in_zone: Whether the rule depends on a time zone's calendar: see `Limit.bind`.
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
    """The names of the options that belong to a rate: each tier may have its own value."""
    later: ClassVar[tuple[str, ...]] = ("queue",)
    """The options that older releases do not know: a message contains them only if the user has set them."""

    @classmethod
    def of(cls: type[_R], rate: Any, *, queue: Any = None, varying_us: int | None = None, **options: Any) -> _R:
        """
        Create the rule from the arguments of a limit's constructor: the *rate*, and the algorithm's own *options*.

        Raises:
            ConfigurationError: A value can never work.
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
        """Return the rate with this amount and period, as an argument for the constructor."""
        return amount, timedelta(microseconds=period_us)

    @classmethod
    def work_out(cls, rate: Any, amount: int, period_us: int, varying_us: int | None) -> Mapping[str, Any]:
        """Compute the capacity and the algorithm's own attributes from the rate and the algorithm's own options."""
        return {"capacity": amount}

    @classmethod
    def sample(cls: type[_R], options: Mapping[str, Any]) -> _R:
        """
        Return the rule at an example rate, for a limit whose rate is a callable.

        Raises:
            ConfigurationError: Not all rates can be counted together, or an option can never work.
        """
        return cls.sample_at(0, options)

    @classmethod
    def sample_at(cls: type[_R], varying_us: int, options: Mapping[str, Any]) -> _R:
        """Return the rule at an example rate, with a known `varying_us`."""
        return cls.of(cls.rate_from(SAMPLE, _DAY_US) or SAMPLE, varying_us=varying_us, **options)

    @property
    def counts_by(self) -> tuple[object, ...]:
        """A value that is equal for two rules only if they count in the same way."""
        return (self.amount if self.varying_us is None else "varying", self.period_us)

    def at(self: _R, rate: Any, **changes: Any) -> _R:
        """
        Return the same rule at another *rate*, without prefetch, and with *changes* of its options.

        Raises:
            ConfigurationError: A value can never work.
        """
        own = {option: getattr(self, option) for option in self.options}
        return self.of(rate, varying_us=self.varying_us, **{**own, **changes})

    def with_rate(self: _R, rate: Any, burst: int | None) -> _R:
        """Return the rule at another *rate* and *burst*: see `throttlekit._core.limit.change.change_rate`."""
        return self.at(rate)

    def scale(self: _R, thousandths: int, least: int) -> _R:
        """
        Return the rule at *thousandths* of its rate, in whole units, at least one. If *least* units could pass at once
        before, they still can.
        """
        amount = max(1, self.amount * thousandths // _ONE, min(least, self.amount))
        return self.at(self.rate_from(amount, self.period_us))

    def divide(self, processes: int) -> tuple[Rate, Mapping[str, Any]]:
        """
        Return the rate of one of *processes*, and the other options that change.

        Raises:
            ConfigurationError: There are fewer units than processes.
        """
        if self.amount < processes:
            raise ConfigurationError(
                f"an amount of {self.amount} cannot be divided among processes={processes}: name fewer, or use "
                'on_store_failure="closed" or "open"'
            )
        return self.rate_from(self.amount // processes, self.period_us), {}

    def count_with(self: _R, declared: Any) -> _R | None:
        """Return the rule with the count of *declared*, a rule of the same class, or None if that is impossible."""
        return None

    def bind(self, cost: int, around_us: int) -> Algorithm:
        """Return the algorithm for a request: see `Limit.bind`."""
        raise NotImplementedError

    def remaining(self, use: Use, now_us: int) -> int:
        """Return the number of whole units that could pass at *now_us*."""
        return max(0, self.capacity - use.units)


class OfRule(Generic[_T]):
    """
    An attribute of a limit that is read from its rule. If the limit has tiers, and so a rule for each tier, reading it
    raises an `AttributeError` with advice. The same applies if the rate is a callable, unless the attribute is *common*
    to all rates.
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
    if queue is None:
        return None
    if not is_whole(queue, 0):
        raise ConfigurationError(f"the queue must be a whole number of at least 0, not {safe_repr(queue)}")
    if queue > LARGEST_EXACT:
        raise ConfigurationError("the queue must be less than 2**53: without queue=, any number of jobs may wait")
    return int.__int__(queue)
