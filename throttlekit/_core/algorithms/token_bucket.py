"""The limits `TokenBucket` and `LeakyBucket`. gcra.py decides for both: a leaky bucket has a burst of 1."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from math import gcd
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from throttlekit._core.algorithm import Use
from throttlekit._core.algorithms.gcra import Bucket, GcraAlgorithm
from throttlekit._core.durations import seconds_within
from throttlekit._core.limit.base import Limit
from throttlekit._core.limit.options import LimitOptions, Rates
from throttlekit._core.limit.rate import LONGEST_PERIOD_US, Rate
from throttlekit._core.limit.rule import LimitRule, OfRule
from throttlekit._core.limit.template import safe_repr
from throttlekit._core.local_quota import PrefetchQuota
from throttlekit._core.number import is_whole
from throttlekit.errors import ConfigurationError

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["LeakyBucket", "TokenBucket"]

_ONE = 1000
_LONGEST_REFILL_US = 10 * LONGEST_PERIOD_US
_MANY, _TOO_MANY = 10**9, 10**12  # from so many units on, rounding is exact enough; no rate has so many
_LENGTH_S = 0.25
_B = TypeVar("_B", bound="_BucketRule")


@dataclass(frozen=True, slots=True, kw_only=True)
class _BucketRule(LimitRule):
    """A rate, a burst, and a prefetch quota."""

    bucket: Bucket
    burst: Any
    """The burst in units. If the rate is a callable, the time in which the bucket fills at every rate."""

    options: ClassVar[tuple[str, ...]] = ("burst", "queue")

    @classmethod
    def default_burst(cls, amount: int, period_us: int) -> int:
        """Return the units of one second, at least 1."""
        return max(1, amount * 1_000_000 // period_us)

    @classmethod
    def work_out(
        cls,
        rate: Any,
        amount: int,
        period_us: int,
        varying_us: int | None,
        burst: Any = None,
        prefetch: Any = None,
        prefetch_for: Any = None,
    ) -> Mapping[str, Any]:
        if varying_us:
            timed = Bucket.filling_in(varying_us, amount, period_us)
            return {"capacity": timed.burst, "burst": timed.burst, "bucket": timed}
        if isinstance(burst, timedelta):
            raise ConfigurationError(
                f"the burst must be a number of units, not {burst!r}: a time is only for a rate= that is a callable"
            )
        burst = cls.default_burst(amount, period_us) if burst is None else burst
        if not is_whole(burst, 1):
            raise ConfigurationError(
                f"the burst must be a whole number of at least 1, not {safe_repr(burst)}: it includes the first unit"
            )
        if burst * period_us > _LONGEST_REFILL_US * amount:
            raise ConfigurationError(
                f"a burst of {safe_repr(burst)} at {rate!r} would take more than ten years to fill: lower it"
            )
        quota = _quota_of(prefetch, prefetch_for, amount, period_us, burst)
        return {
            "capacity": burst,
            "burst": burst,
            "bucket": Bucket.of(amount, period_us, burst),
            "prefetch": prefetch,
            "prefetch_for": None if quota is None else quota.for_us / 1_000_000,
            "prefetch_quota": quota,
        }

    @classmethod
    def sample(cls: type[_B], options: Mapping[str, Any]) -> _B:
        burst = options["burst"]
        if options["prefetch"] is not None:
            raise ConfigurationError("prefetch= needs a fixed rate, but rate= is a callable: leave it out")
        if burst is not None and not isinstance(burst, timedelta):
            raise ConfigurationError(
                f"the burst must be a timedelta if rate= is a callable, not {safe_repr(burst)}: the units of that time "
                "are the burst. So the bucket fills in the same time at every rate, and all rates count together"
            )
        fills_us = 1_000_000 if burst is None else burst // timedelta(microseconds=1)
        if not 1 <= fills_us <= LONGEST_PERIOD_US:
            raise ConfigurationError(f"the burst must be a timedelta of at most 366 days, not {burst!r}")
        return replace(cls.sample_at(fills_us, options), burst=timedelta(microseconds=fills_us))

    @property
    def counts_by(self) -> tuple[object, ...]:
        """The interval and the burst, so that 60/minute equals 1/s. If the rate varies, the time in which it fills."""
        if self.varying_us is not None:
            return ("varying", self.varying_us) if self.varying_us else ("varying",)
        common = gcd(self.amount, self.period_us)
        return self.amount // common, self.period_us // common, self.burst

    def with_rate(self: _B, rate: Any, burst: int | None) -> _B:
        return self._with_burst(rate, self._burst_at(None) if burst is None else burst)

    def scale(self: _B, thousandths: int, least: int) -> _B:
        amount, period_us = self._scaled_rate(thousandths)
        rate = self.rate_from(amount, period_us)
        if self.varying_us is not None:
            return self.at(rate)
        fits = _LONGEST_REFILL_US * amount // period_us
        burst = min(fits, self._burst_at(self.default_burst(amount, period_us)))
        return self._with_burst(rate, max(1, burst, min(least, self.burst)))

    def divide(self, processes: int) -> tuple[Rate, Mapping[str, Any]]:
        burst = {} if self.varying_us is not None else {"burst": max(1, self.burst // processes)}
        if self.amount % processes == 0:
            return self.rate_from(self.amount // processes, self.period_us), burst
        return self.rate_from(self.amount, self.period_us * processes), burst

    def count_with(self: _B, declared: Any) -> _B:
        return replace(self, bucket=replace(self.bucket, home=declared.bucket.measure))

    def bind(self, cost: int, around_us: int) -> GcraAlgorithm:
        return self.bucket.bind(cost)

    def remaining(self, use: Use, now_us: int) -> int:
        return self.bucket.remaining(use.full_us, now_us)

    def _scaled_rate(self, thousandths: int) -> tuple[int, int]:
        """Return *thousandths* of the rate exactly, or at most 1/30 000 lower if the period would be too long."""
        units = self.amount * thousandths
        common = gcd(units, _ONE)
        if self.period_us * (_ONE // common) <= LONGEST_PERIOD_US and units // common < _TOO_MANY:
            return units // common, self.period_us * (_ONE // common)
        if units >= _MANY:
            return units // _ONE, self.period_us
        return 1, min(LONGEST_PERIOD_US, -(-self.period_us * _ONE // units))

    def _burst_at(self, default: int | None) -> Any:
        """Return the burst at another rate: *default* if this rule has the default burst of its rate."""
        return default if self.burst == self.default_burst(self.amount, self.period_us) else self.burst

    def _with_burst(self: _B, rate: Any, burst: int | None) -> _B:
        """Return the rule with another *rate* and *burst*, without `prefetch` if that does not fit them."""
        if self.prefetch is not None:
            with suppress(ConfigurationError):
                return self.at(rate, burst=burst, prefetch=self.prefetch, prefetch_for=self.prefetch_for)
        return self.at(rate, burst=burst)


class _LeakyRule(_BucketRule):
    """A bucket with a burst of 1. Its queue is always part of messages and `repr`."""

    __slots__ = ()
    options = LimitRule.options
    later = ()

    @classmethod
    def default_burst(cls, amount: int, period_us: int) -> int:
        return 1

    @classmethod
    def sample(cls, options: Mapping[str, Any]) -> _LeakyRule:
        return cls.sample_at(0, options)


class TokenBucket(Limit):
    """
    An amount of units per period on average, with bursts.

    Guarantee: in any window of length w, at most `burst + w / interval` units pass, where
    interval = period / amount. The bound always holds. It is reached, except for rates of many thousands
    per second whose interval is not a whole number of microseconds: each job's charge is rounded up then.

    When to choose it: the partner publishes "100 requests a minute", and accepts a few at once.
    The default burst is the units of one second, at least 1: if a job is delivered a little late, its
    unit is still available. In the store, a key needs one integer.

    Args:
        name, rate, key, cost, scope, tier, default_tier, on_store_failure, processes: As for every limit; see `Limit`.
        burst: The capacity in units, **including** the first. Default: the units of one second, at least 1. With tiers,
            one burst for all, or one for each: {"free": 1, "pro": 20}. If *rate* is a callable, a timedelta: the burst
            is the units of that time, at least 1. The default is then a timedelta of one second.
        prefetch: For rates of hundreds per second, the most units that a process takes from the store in one call, and
            spends without further calls. It takes as many as it has recently spent in half of *prefetch_for*, but at
            most half of the remaining units, at most the units that the rate adds in *prefetch_for*, and none while a
            job waits. Then at most `burst + (w + prefetch_for) / interval` units pass in any window. When a process
            becomes idle or dies, at most *prefetch* units are lost. The store decides jobs with a greater cost.
            Default: None. With tiers, one value for all, or one for each, which may be None.
        prefetch_for: The time after the charge of a unit within which the process spends it: seconds, or a timedelta,
            from 1 ms to a minute. Default: 0.25. Processes that share the limit may have different values, or no
            prefetch; the longest value applies to the guarantee. It is not part of the definition.

    Attributes:
        prefetch_quota: The most units that a process takes at a time, and the time in µs within which it spends them;
            None without prefetch.

    Raises:
        ConfigurationError: A value can never work. The constructor raises it.

    The generic cell rate algorithm (ITU-T I.371), in integer microseconds.
    """

    __slots__ = ()

    algorithm = "token-bucket"
    rule_type = _BucketRule

    bucket = OfRule[Bucket]()
    burst = OfRule[int](common=True)

    def __init__(
        self,
        name: str,
        rate: Rates,
        *,
        burst: int | Mapping[str, int] | timedelta | None = None,
        prefetch: int | Mapping[str, int | None] | None = None,
        prefetch_for: float | timedelta | None = None,
        **options: Unpack[LimitOptions],
    ) -> None:
        quotas: Any = [prefetch]
        lasting: Any = prefetch_for
        if isinstance(prefetch, Mapping):
            quotas = prefetch.values()
            lasting = {tier: None if tokens is None else prefetch_for for tier, tokens in prefetch.items()}
        own = {"burst": burst, "prefetch": prefetch, "prefetch_for": lasting}
        super().__init__(name, rate, _own=own, **options)
        if self.tiers is not None:
            self._set(prefetch=prefetch, prefetch_for=prefetch_for)
        if prefetch_for is not None and prefetch is None:
            raise self._named_error(ConfigurationError("prefetch_for= needs prefetch="))
        if self.scope == "process" and any(each is not None for each in quotas):
            raise self._named_error(ConfigurationError('a limit of scope "process" uses no store: leave prefetch= out'))

    def bind_ahead(self, units: int) -> GcraAlgorithm:
        """Return a request that prefetches *units*. It passes only if at least as many units remain afterwards."""
        return replace(self.bucket.bind(units), headroom_us=self.bucket.bind(2 * units).headroom_us)

    def _remedy(self, cost: int) -> str:
        return f"raise the burst to at least {cost}"

    def _identity(self) -> tuple[object, ...]:
        own = {"": self} if self.tiers is None else self.tiers
        leases = sorted((tier, str(limit.prefetch), limit.prefetch_for) for tier, limit in own.items())
        return *super()._identity(), tuple(leases)

    def __repr__(self) -> str:
        if self.prefetch is None:
            return super().__repr__()
        return f"{super().__repr__()[:-1]}, prefetch={self.prefetch!r}, prefetch_for={self.prefetch_for!r})"


class LeakyBucket(Limit):
    """
    Units at a constant pace: one unit per interval, never two at once.

    Guarantee: in any window of length w, at most `1 + w / interval` units pass, where
    interval = period / amount: two units are at least one interval apart. The bound is reached.

    When to choose it: the partner requires evenly spread calls ("not more than one call every 200 ms"). If a job starts
    late, the time until then is lost, so a `LeakyBucket` is used a little less than a `TokenBucket`. A key needs one
    integer in the store.

    Args:
        name, rate, key, scope, tier, default_tier, on_store_failure, processes, queue: As for every limit; see `Limit`.
        cost: 0 or 1: two units never pass at once. For larger costs, use a `TokenBucket` with the largest as its burst.

    Raises:
        ConfigurationError: A value can never work. The constructor raises it.
        CostExceedsLimit: The cost is more than 1.

    The generic cell rate algorithm (ITU-T I.371) with a burst of 1, in integer microseconds. It is the leaky bucket
    as a meter of Turner, "New directions in communications" (1986).
    """

    __slots__ = ()

    algorithm = "leaky-bucket"
    rule_type = _LeakyRule

    bucket = OfRule[Bucket]()

    def _remedy(self, cost: int) -> str:
        return f"use a TokenBucket with a burst of at least {cost}: a leaky bucket admits one unit at a time"


def _quota_of(tokens: object, seconds: object, amount: int, period_us: int, burst: int) -> PrefetchQuota | None:
    """
    Return the prefetch quota for a bucket of this rate and *burst*, or None if *tokens* is None.

    The quota is at most half of the burst, so that the other half is left for other processes. It is also at most the
    units that the rate adds in its time. So when that time ends, the bucket has gained as many units as could be lost.

    Raises:
        ConfigurationError: A value can never work.
    """
    if tokens is None:
        return None
    if not is_whole(tokens, 2):
        raise ConfigurationError(f"prefetch must be a whole number of at least 2, not {safe_repr(tokens)}")
    if tokens > burst:
        raise ConfigurationError(f"prefetch={safe_repr(tokens)} units can never pass at once: the burst is {burst}")
    length_s = seconds_within("prefetch_for", _LENGTH_S if seconds is None else seconds, 0.001, 60)
    for_us = round(length_s * 1_000_000)
    most = min(tokens, burst // 2, amount * for_us // period_us)
    if most < 2:
        raise ConfigurationError(
            f"prefetch={tokens} would never be used: it is at most half of the burst, which is {burst}, and at most "
            f"the units that the rate adds in prefetch_for={length_s:g} s. Lengthen that, or leave prefetch= out"
        )
    return PrefetchQuota(most, for_us)
