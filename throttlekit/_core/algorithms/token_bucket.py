"""The two limits that gcra.py decides: the token bucket, and the leaky bucket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from math import gcd
from typing import Any

from throttlekit._core.algorithm import Algorithm, Use
from throttlekit._core.algorithms.gcra import Bucket, GcraAlgorithm
from throttlekit._core.limit.base import Cost, Limit, Rates, Scope, Tier
from throttlekit._core.limit.local_share import OnStoreFailure, shared_bucket
from throttlekit._core.limit.prefetch_options import prefetch_quota_from
from throttlekit._core.limit.rate import LONGEST_PERIOD_US, Rate
from throttlekit._core.limit.template import Key, safe_repr
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
        prefetch: For rates of hundreds a second: a process takes up to so many units from the store in one call,
            and spends them with no more calls. As many as it has lately spent in half of *prefetch_for*; never more
            than half of what is left, than the rate gives in *prefetch_for*, nor while anybody waits. Then at most
            `burst + (w + prefetch_for) / interval` units pass in any window; and of what it took, at most so many
            units go unused each time that a process has nothing more to do, or dies. Costs of more ask the store.
            Default: none. With tiers, one for all, or one for each, None included.
        prefetch_for: Seconds, or a timedelta, from 1 ms to a minute: no unit is spent later than that after it was
            charged. Default: 0.25. Processes that share the limit may name different leases, or none: the longest
            counts. It is no part of the definition.

    Attributes:
        prefetch_quota: The most that is taken at a time, and for how many µs; None: nothing is.

    Raises:
        ConfigurationError: A value that can never work, at once.

    The generic cell rate algorithm (ITU-T I.371), in integer microseconds.
    """

    __slots__ = ("bucket", "burst", "prefetch", "prefetch_for", "prefetch_quota")

    algorithm = "token-bucket"
    options = ("burst",)
    leases = True

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
        prefetch: int | Mapping[str, int | None] | None = None,
        prefetch_for: float | timedelta | None = None,
    ) -> None:
        lasting: Any = prefetch_for
        if isinstance(prefetch, Mapping):
            lasting = {tier: None if tokens is None else prefetch_for for tier, tokens in prefetch.items()}
        options = {"burst": burst, "prefetch": prefetch, "prefetch_for": lasting}
        self._set(
            prefetch=prefetch, prefetch_for=prefetch_for, prefetch_quota=None
        )  # of a limit with tiers, it stays so
        self._define(name, rate, options, key, cost, scope, tier, default_tier, on_store_failure, processes)
        if prefetch_for is not None and prefetch is None:
            raise self._told(ConfigurationError("prefetch_for= says nothing without prefetch="))

    def _shape(
        self, *, burst: int | None = None, prefetch: int | None = None, prefetch_for: Any = None, **options: Any
    ) -> tuple[int, str]:
        amount, period_us = self.amount, self.period_us
        burst = max(1, amount * 1_000_000 // period_us) if burst is None else burst
        if isinstance(burst, bool) or not isinstance(burst, int) or burst < 1:
            raise ConfigurationError(
                f"the burst must be a whole number of at least 1, not {safe_repr(burst)}: it includes the first unit"
            )
        if burst * period_us > _LONGEST_REFILL_US * amount:
            raise ConfigurationError(
                f"a burst of {safe_repr(burst)} at {self.rate!r} would take more than ten years to fill: lower it"
            )
        common = gcd(amount, period_us)
        self._set(burst=burst, bucket=Bucket.of(amount, period_us, burst))
        rate = {"amount": amount, "period_us": period_us}
        lease = prefetch_quota_from(prefetch, prefetch_for, burst=burst, scope=self.scope, **rate)
        self._set(
            prefetch_quota=lease, prefetch=prefetch, prefetch_for=None if lease is None else lease.for_us / 1_000_000
        )
        return burst, f"{self.algorithm} {amount // common} {period_us // common} {burst}"

    def shared_out(self, processes: int, options: Mapping[str, Any]) -> tuple[Rate, Mapping[str, Any]]:
        burst = max(1, self.burst // processes)
        return shared_bucket(self.amount, self.period_us, processes), {"burst": burst}

    def bind(self, cost: int, around_us: int = 0, holder: str = "") -> GcraAlgorithm:
        return self.bucket.bind(cost)

    def bind_ahead(self, units: int) -> GcraAlgorithm:
        """What it means to take *units* before they are needed: passes only if as many are left afterwards."""
        return replace(self.bucket.bind(units), headroom_us=self.bucket.bind(2 * units).headroom_us)

    def remaining(self, use: Use, now_us: int) -> int:
        return self.bucket.remaining(use.full_us, now_us)

    def _remedy(self, cost: int) -> str:
        return f"raise the burst to at least {cost}"

    def _identity(self) -> tuple[object, ...]:
        own = {"": self} if self.tiers is None else self.tiers
        leases = sorted((tier, str(limit.prefetch), limit.prefetch_for) for tier, limit in own.items())
        return *super()._identity(), tuple(leases)

    def __repr__(self) -> str:
        if not self.leases or self.prefetch is None:
            return super().__repr__()
        return f"{super().__repr__()[:-1]}, prefetch={self.prefetch!r}, prefetch_for={self.prefetch_for!r})"


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
    leases = False

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
            raise ConfigurationError(f"the queue must be a whole number of at least 0, not {safe_repr(queue)}")
        if queue is not None and queue > _LARGEST:
            raise ConfigurationError("the queue must be less than 2**53: leave it out, and any number may wait")
        self._set(queue=queue)
        return TokenBucket._shape(self, burst=1)

    def shared_out(self, processes: int, options: Mapping[str, Any]) -> tuple[Rate, Mapping[str, Any]]:
        return shared_bucket(self.amount, self.period_us, processes), {}

    def _identity(self) -> tuple[object, ...]:
        queues = self.queue if self.tiers is None else tuple(sorted((t, own.queue) for t, own in self.tiers.items()))
        return *TokenBucket._identity(self), queues

    def max_queue_us(self, algorithm: Algorithm) -> int | None:
        return None if self.queue is None else min(self.queue * algorithm.spacing_us(LONGEST_PERIOD_US), _LARGEST)

    def _remedy(self, cost: int) -> str:
        return f"take a TokenBucket with a burst of at least {cost}: a leaky bucket lets one unit out at a time"
