"""The token bucket as a limit. gcra.py decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from throttlekit._core.algorithm import Use
from throttlekit._core.algorithms.gcra import Bucket, GcraAlgorithm, bucket_definition
from throttlekit._core.limit.base import Limit
from throttlekit._core.limit.local_share import shared_bucket
from throttlekit._core.limit.options import LimitOptions, Rates
from throttlekit._core.limit.per_tier import PerTier
from throttlekit._core.limit.prefetch_options import prefetch_quota_from
from throttlekit._core.limit.rate import LONGEST_PERIOD_US, Rate
from throttlekit._core.limit.shape import Shape
from throttlekit._core.limit.template import safe_repr
from throttlekit._core.limit.varying import depends_on_job
from throttlekit.errors import ConfigurationError

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["TimedBucket", "TokenBucket"]

_LONGEST_REFILL_US = 10 * LONGEST_PERIOD_US


@dataclass(frozen=True, slots=True)
class TimedBucket(Bucket):
    """
    A bucket that fills in a given time, whatever its rate: so that one TAT means the same at every rate.

    Its bound holds for all rates together. Let W be how far the TAT is ahead of now, but at most T, the time in which
    the bucket fills. A unit at interval I moves W on by I, or by T if I is longer: such a unit passes only if W is 0.
    W is never more than T, and falls by the time that passes; a TAT that is cut (`GcraAlgorithm.sanitized`) is cut to
    T or more. So in any window of length w, at most (T + w) / I units pass, where I is the shortest interval of all.
    (If that is longer than T, it takes the place of T.)
    """

    fills_us: int

    @classmethod
    def of_rate(cls, rate: Bucket, fills_us: int) -> TimedBucket:
        """The bucket of a *rate* that fills in *fills_us*, or in the time of one unit if that is longer."""
        fills_us = max(fills_us, -(-rate.numerator // rate.denominator))
        burst = fills_us * rate.denominator // rate.numerator
        return cls(burst, rate.numerator, rate.denominator, fills_us)

    def bind(self, cost: int) -> GcraAlgorithm:
        charge_us = -(-cost * self.numerator // self.denominator)
        return GcraAlgorithm(
            charge_us, max(0, self.fills_us - charge_us), self.fills_us, self.numerator, self.denominator
        )

    def remaining(self, tat_us: int, now_us: int) -> int:
        left_us = self.fills_us - max(0, tat_us - now_us)
        return max(0, left_us * self.denominator // self.numerator)


class TokenBucket(Limit):
    """
    So many units per period on average, with bursts.

    Guarantee: in any window of length w, at most `burst + w / interval` units pass, where
    interval = period / amount. The bound always holds. It is reached, but for rates of many thousands
    a second whose interval is not a whole number of microseconds: there each job's charge is rounded up.

    When to choose it: the partner publishes "100 requests a minute", and accepts a few at once.
    The default burst is one second's worth of the rate, at least 1: enough that a job delivered a
    little late still finds its unit. Costs one integer per key in the store.

    Args:
        name, rate, key, cost, scope, tier, default_tier, on_store_failure, processes: As for every limit; see `Limit`.
        burst: Capacity in units, **including** the first. Default: one second's worth, at least 1. With
            tiers, one for all, or one for each: {"free": 1, "pro": 20}. Where *rate* is a callable, a timedelta: what
            the rate gives in that time, at least 1. Default there: a second's worth.
        prefetch: For rates of hundreds a second: a process takes up to so many units from the store in one call,
            and spends them with no more calls. It takes as many as it has lately spent in half of *prefetch_for*, at
            most half of what is left and what the rate gives in *prefetch_for*, and none while any job waits. Then at
            most `burst + (w + prefetch_for) / interval` units pass in any window; and of what it took, at most so many
            units go unused each time that a process has nothing more to do, or dies. A job of a greater cost is
            decided by the store. Default: none. With tiers, one for all, or one for each, None included.
        prefetch_for: Seconds, or a timedelta, from 1 ms to a minute: a process spends no unit later than that after
            it was charged. Default: 0.25. Processes that share the limit may name different leases, or none: the
            longest counts. It is not part of the definition.

    Attributes:
        prefetch_quota: The most units that a process takes at a time, and for how many µs; None: it takes none.

    Raises:
        ConfigurationError: A value that can never work, as soon as the limit is made.

    The generic cell rate algorithm (ITU-T I.371), in integer microseconds.
    """

    __slots__ = ("_bucket", "_burst", "prefetch", "prefetch_for", "prefetch_quota")

    algorithm = "token-bucket"
    options = ("burst", "queue")

    _bucket: Bucket
    bucket = PerTier[Bucket]()
    burst = PerTier[int]()

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
        lasting: Any = prefetch_for
        if isinstance(prefetch, Mapping):
            lasting = {tier: None if tokens is None else prefetch_for for tier, tokens in prefetch.items()}
        own = {"burst": burst, "prefetch": prefetch, "prefetch_for": lasting}
        if depends_on_job(rate):
            self._set(prefetch=prefetch, prefetch_for=prefetch_for, prefetch_quota=None)
        super().__init__(name, rate, _own=own, **options)
        if prefetch_for is not None and prefetch is None:
            raise self._named_error(ConfigurationError("prefetch_for= needs prefetch="))

    def _shape(
        self, amount: int, period_us: int, *, burst: int | None = None, prefetch: Any = None, prefetch_for: Any = None,
        **options: Any,
    ) -> Shape:  # fmt: skip
        if self.varying_us is not None:
            return self._shape_varying(Bucket.of(amount, period_us, 1), self.varying_us)
        if isinstance(burst, timedelta):
            raise ConfigurationError(
                f"the burst must be a number of units, not {burst!r}: a time is for a rate= that is a callable"
            )
        burst = max(1, amount * 1_000_000 // period_us) if burst is None else burst
        if isinstance(burst, bool) or not isinstance(burst, int) or burst < 1:
            raise ConfigurationError(
                f"the burst must be a whole number of at least 1, not {safe_repr(burst)}: it includes the first unit"
            )
        if burst * period_us > _LONGEST_REFILL_US * amount:
            raise ConfigurationError(
                f"a burst of {safe_repr(burst)} at {self.rate!r} would take more than ten years to fill: lower it"
            )
        quota = prefetch_quota_from(
            prefetch, prefetch_for, amount=amount, period_us=period_us, burst=burst, scope=self.scope
        )
        own = {
            "_bucket": Bucket.of(amount, period_us, burst), "_burst": burst, "prefetch": prefetch,
            "prefetch_for": None if quota is None else quota.for_us / 1_000_000, "prefetch_quota": quota,
        }  # fmt: skip
        return Shape(burst, burst, bucket_definition(self.algorithm, amount, period_us, burst), own)

    def _shape_varying(self, bucket: Bucket, fills_us: int) -> Shape:
        timed = TimedBucket.of_rate(bucket, fills_us)
        own = {"_bucket": timed, "_burst": timed.burst, "prefetch": None, "prefetch_for": None, "prefetch_quota": None}
        return Shape(timed.burst, timed.burst, f"{self.algorithm} varying {fills_us}", own)

    def check_varying(self, options: Mapping[str, Any]) -> int:
        burst = options["burst"]
        if options["prefetch"] is not None:
            raise ConfigurationError("prefetch= needs a rate that is fixed, and rate= is a callable: leave it out")
        if burst is not None and not isinstance(burst, timedelta):
            raise ConfigurationError(
                f"the burst must be a timedelta where rate= is a callable, not {safe_repr(burst)}: what the rate gives "
                "in that time. So the bucket of every rate fills in the same time, and all can be counted together"
            )
        fills_us = 1_000_000 if burst is None else burst // timedelta(microseconds=1)
        if not 1 <= fills_us <= LONGEST_PERIOD_US:
            raise ConfigurationError(f"the burst must be a timedelta of at most 366 days, not {burst!r}")
        self._set(_burst=timedelta(microseconds=fills_us))
        return fills_us

    def shared_out(self, processes: int, options: Mapping[str, Any]) -> tuple[Rate, Mapping[str, Any]]:
        own = {} if self.varying_us is not None else {"burst": max(1, self.burst // processes)}
        return shared_bucket(self.amount, self.period_us, processes), own

    def _counts_with(self, declared: Any) -> bool:
        self._set(_bucket=replace(self._bucket, home=declared.bucket.measure))
        return True

    def bind(self, cost: int, around_us: int = 0, holder: str = "") -> GcraAlgorithm:
        return self._bucket.bind(cost)

    def bind_ahead(self, units: int) -> GcraAlgorithm:
        """What it means to take *units* before they are needed: passes only if as many are left afterwards."""
        return replace(self._bucket.bind(units), headroom_us=self._bucket.bind(2 * units).headroom_us)

    def remaining(self, use: Use, now_us: int) -> int:
        return self._bucket.remaining(use.full_us, now_us)

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
