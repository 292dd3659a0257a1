"""The two limits that gcra.py decides: the token bucket, and the leaky bucket."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import Any

from throttlekit._core.charge import Charge, Use
from throttlekit._core.gcra import Bucket
from throttlekit._core.gcra import Charge as BucketCharge
from throttlekit._core.key import Key, told
from throttlekit._core.limits import Cost, Limit, Rates, Scope, Tier
from throttlekit._core.rate import LONGEST_PERIOD_US, Rate
from throttlekit._core.sharing import OnStoreFailure, shared_bucket
from throttlekit.errors import ConfigurationError

__all__ = ["LeakyBucket", "TokenBucket"]

_LONGEST_REFILL_US = 10 * LONGEST_PERIOD_US
_LARGEST = 2**53 - 1


class TokenBucket(Limit):
    """
    So many units per period on average, with bursts.

    Guarantee: in any window of length w, at most `burst + w / interval` units pass, where
    interval = period / amount. The bound is never passed. It is reached, but for rates of many thousands
    a second whose interval is no whole number of microseconds: there each job's charge is rounded up.

    When to choose it: the partner publishes "100 requests a minute", and does not mind a few at once.
    The default burst is one second's worth of the rate, at least 1: enough that a job delivered a
    little late still finds its unit. Costs one integer per key in the store.

    Args:
        name, rate, key, cost, scope, tier, default_tier, on_store_failure, processes: As for every limit; see `Limit`.
        burst: Capacity in units, **including** the first. Default: one second's worth, at least 1. With
            tiers, one for all, or one for each: {"free": 1, "pro": 20}.

    Raises:
        ConfigurationError: A value that can never work, at once.

    The generic cell rate algorithm (ITU-T I.371), in integer microseconds.
    """

    __slots__ = ("bucket", "burst")

    algorithm = "token-bucket"
    options = ("burst",)

    burst: int
    bucket: Bucket

    def __init__(
        self,
        name: str,
        rate: Rates,
        *,
        burst: int | Mapping[str, int] | None = None,
        key: Key = None,
        cost: Cost = 1,
        scope: Scope = "global",
        tier: Tier = None,
        default_tier: str | None = None,
        on_store_failure: OnStoreFailure = "closed",
        processes: int | None = None,
    ) -> None:
        self._define(name, rate, {"burst": burst}, key, cost, scope, tier, default_tier, on_store_failure, processes)

    def _shape(self, *, burst: int | None = None, **options: Any) -> tuple[int, str]:
        amount, period_us = self.amount, self.period_us
        burst = max(1, amount * 1_000_000 // period_us) if burst is None else burst
        if isinstance(burst, bool) or not isinstance(burst, int) or burst < 1:
            raise ConfigurationError(
                f"the burst must be a whole number of at least 1, not {told(burst)}: it includes the first unit"
            )
        if burst * period_us > _LONGEST_REFILL_US * amount:
            raise ConfigurationError(
                f"a burst of {told(burst)} at {self.rate!r} would take more than ten years to fill: lower it"
            )
        common = gcd(amount, period_us)
        self._set(burst=burst, bucket=Bucket.of(amount // common, period_us // common, burst))
        return burst, f"{self.algorithm} {amount // common} {period_us // common} {burst}"

    def shared_out(self, processes: int, options: Mapping[str, Any]) -> tuple[Rate, Mapping[str, Any]]:
        burst = max(1, self.burst // processes)
        return shared_bucket(self.amount, self.period_us, processes), {"burst": burst}

    def charge(self, cost: int, around_us: int = 0, holder: str = "") -> BucketCharge:
        return self.bucket.charge(cost)

    def remaining(self, use: Use, now_us: int) -> int:
        return self.bucket.remaining(use.full_us, now_us)

    def _remedy(self, cost: int) -> str:
        return f"raise the burst to at least {cost}"


class LeakyBucket(TokenBucket):
    """
    A constant output: one unit, one interval, one unit. Never two at once.

    Guarantee: in any window of length w, at most `1 + w / interval` units pass, where
    interval = period / amount: two units are at least one interval apart. The bound is reached.

    When to choose it: what is downstream wants to be called evenly ("not more than one call every 200 ms"), or a
    job had better be refused than wait behind too many (*queue*). A job that comes late leaves its instant
    unused, so the limit is used a little less than a `TokenBucket`'s. Costs one integer per key in the store.

    Args:
        name, rate, key, scope, tier, default_tier, on_store_failure, processes: As for every limit; see `Limit`.
        cost: 0 or 1: two units never pass at once. For larger costs, take a `TokenBucket` whose burst is the largest.
        queue: How many may wait. A job that finds as many waiting is refused, not delayed: its decision's
            reason is "queue full", and its adapter does as it was told to with jobs that waited too long.
            0: nobody waits. Default: any number may. With tiers, one for all, or one for each.

    Raises:
        ConfigurationError: A value that can never work, at once.
        CostExceedsLimit: The cost is more than 1.

    The generic cell rate algorithm (ITU-T I.371) with a burst of 1, in integer microseconds; as a meter that
    delays and refuses, the leaky bucket of Turner, "New directions in communications" (1986).
    """

    __slots__ = ("queue",)

    algorithm = "leaky-bucket"
    options = ("queue",)

    queue: int | None

    def __init__(
        self,
        name: str,
        rate: Rates,
        *,
        queue: int | Mapping[str, int] | None = None,
        key: Key = None,
        cost: Cost = 1,
        scope: Scope = "global",
        tier: Tier = None,
        default_tier: str | None = None,
        on_store_failure: OnStoreFailure = "closed",
        processes: int | None = None,
    ) -> None:
        self._define(name, rate, {"queue": queue}, key, cost, scope, tier, default_tier, on_store_failure, processes)

    def _shape(self, *, queue: int | None = None, **options: Any) -> tuple[int, str]:
        if queue is not None and (isinstance(queue, bool) or not isinstance(queue, int) or queue < 0):
            raise ConfigurationError(f"the queue must be a whole number of at least 0, not {told(queue)}")
        if queue is not None and queue > _LARGEST:
            raise ConfigurationError("the queue must be less than 2**53: leave it out, and any number may wait")
        self._set(queue=queue)
        return TokenBucket._shape(self, burst=1)

    def shared_out(self, processes: int, options: Mapping[str, Any]) -> tuple[Rate, Mapping[str, Any]]:
        return shared_bucket(self.amount, self.period_us, processes), {}

    def _identity(self) -> tuple[object, ...]:
        queues = self.queue if self.tiers is None else tuple(sorted((t, own.queue) for t, own in self.tiers.items()))
        return *TokenBucket._identity(self), queues

    def room_us(self, charge: Charge) -> int | None:
        return None if self.queue is None else min(self.queue * charge.spacing_us(LONGEST_PERIOD_US), _LARGEST)

    def _remedy(self, cost: int) -> str:
        return f"take a TokenBucket with a burst of at least {cost}: a leaky bucket lets one unit out at a time"
