"""The leaky bucket as a limit. gcra.py decides, with a burst of 1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from throttlekit._core.algorithm import Use
from throttlekit._core.algorithms.gcra import Bucket, GcraAlgorithm, bucket_definition
from throttlekit._core.limit.base import Limit
from throttlekit._core.limit.local_share import shared_bucket
from throttlekit._core.limit.per_tier import PerTier
from throttlekit._core.limit.rate import Rate
from throttlekit._core.limit.shape import Shape

__all__ = ["LeakyBucket"]


class LeakyBucket(Limit):
    """
    A constant output: one unit, one interval, one unit. Never two at once.

    Guarantee: in any window of length w, at most `1 + w / interval` units pass, where
    interval = period / amount: two units are at least one interval apart. The bound is reached.

    When to choose it: the service downstream wants its calls spread evenly ("not more than one call every 200 ms"). A
    job that comes late leaves its instant unused, so the limit is used a little less than a `TokenBucket`'s. Costs one
    integer per key in the store.

    Args:
        name, rate, key, scope, tier, default_tier, on_store_failure, processes, queue: As for every limit; see `Limit`.
        cost: 0 or 1: two units never pass at once. For larger costs, take a `TokenBucket` whose burst is the largest.

    Raises:
        ConfigurationError: A value that can never work, as soon as the limit is made.
        CostExceedsLimit: The cost is more than 1.

    The generic cell rate algorithm (ITU-T I.371) with a burst of 1, in integer microseconds; as a meter that
    delays and refuses, the leaky bucket of Turner, "New directions in communications" (1986).
    """

    __slots__ = ("_bucket",)

    algorithm = "leaky-bucket"
    later = ()

    _bucket: Bucket
    bucket = PerTier[Bucket]()

    def _shape(self, amount: int, period_us: int, **options: Any) -> Shape:
        own = {"_bucket": Bucket.of(amount, period_us, 1)}
        fixed = bucket_definition(self.algorithm, amount, period_us, 1)
        return Shape(1, 1, fixed if self.varying_us is None else f"{self.algorithm} varying", own)

    def shared_out(self, processes: int, options: Mapping[str, Any]) -> tuple[Rate, Mapping[str, Any]]:
        return shared_bucket(self.amount, self.period_us, processes), {}

    def _counts_with(self, declared: Any) -> bool:
        self._set(_bucket=replace(self._bucket, home=declared.bucket.measure))
        return True

    def bind(self, cost: int, around_us: int = 0, holder: str = "") -> GcraAlgorithm:
        return self._bucket.bind(cost)

    def remaining(self, use: Use, now_us: int) -> int:
        return self._bucket.remaining(use.full_us, now_us)

    def _remedy(self, cost: int) -> str:
        return f"take a TokenBucket with a burst of at least {cost}: a leaky bucket lets one unit out at a time"
