"""The leaky bucket as a limit. gcra.py decides, with a burst of 1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from throttlekit._core.algorithm import Use
from throttlekit._core.algorithms.gcra import Bucket, GcraAlgorithm, bucket_definition
from throttlekit._core.exact import LARGEST_EXACT
from throttlekit._core.limit.base import Limit
from throttlekit._core.limit.local_share import shared_bucket
from throttlekit._core.limit.options import LimitOptions, Rates
from throttlekit._core.limit.per_tier import PerTier
from throttlekit._core.limit.rate import Rate
from throttlekit._core.limit.shape import Shape
from throttlekit._core.limit.template import safe_repr
from throttlekit.errors import ConfigurationError

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["LeakyBucket"]


class LeakyBucket(Limit):
    """
    A constant output: one unit, one interval, one unit. Never two at once.

    Guarantee: in any window of length w, at most `1 + w / interval` units pass, where
    interval = period / amount: two units are at least one interval apart. The bound is reached.

    When to choose it: the service downstream wants its calls spread evenly ("not more than one call every 200 ms"), or
    a job should be refused when too many wait before it (*queue*). A job that comes late leaves its instant
    unused, so the limit is used a little less than a `TokenBucket`'s. Costs one integer per key in the store.

    Args:
        name, rate, key, scope, tier, default_tier, on_store_failure, processes: As for every limit; see `Limit`.
        cost: 0 or 1: two units never pass at once. For larger costs, take a `TokenBucket` whose burst is the largest.
        queue: How many jobs may wait. A job that finds as many waiting is refused, not delayed: its decision's
            reason is "queue full", and its adapter treats it as a job that has waited too long.
            0: no job waits. Default: any number may. With tiers, one for all, or one for each.

    Raises:
        ConfigurationError: A value that can never work, as soon as the limit is made.
        CostExceedsLimit: The cost is more than 1.

    The generic cell rate algorithm (ITU-T I.371) with a burst of 1, in integer microseconds; as a meter that
    delays and refuses, the leaky bucket of Turner, "New directions in communications" (1986).
    """

    __slots__ = ("_bucket", "_queue")

    algorithm = "leaky-bucket"
    options = ("queue",)

    _bucket: Bucket
    _queue: int | None
    bucket = PerTier[Bucket]()
    queue = PerTier["int | None"]()

    def __init__(
        self, name: str, rate: Rates, *, queue: int | Mapping[str, int] | None = None, **options: Unpack[LimitOptions]
    ) -> None:
        super().__init__(name, rate, _own={"queue": queue}, **options)

    def _shape(self, amount: int, period_us: int, *, queue: int | None = None, **options: Any) -> Shape:
        if queue is not None and (isinstance(queue, bool) or not isinstance(queue, int) or queue < 0):
            raise ConfigurationError(f"the queue must be a whole number of at least 0, not {safe_repr(queue)}")
        if queue is not None and queue > LARGEST_EXACT:
            raise ConfigurationError("the queue must be less than 2**53: leave it out, and any number may wait")
        own = {"_bucket": Bucket.of(amount, period_us, 1), "_queue": queue}
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

    @property
    def max_queue(self) -> int | None:
        return self._queue

    def _remedy(self, cost: int) -> str:
        return f"take a TokenBucket with a burst of at least {cost}: a leaky bucket lets one unit out at a time"

    def _identity(self) -> tuple[object, ...]:
        own: Mapping[str, Any] = {"": self} if self.tiers is None else self.tiers
        return *super()._identity(), tuple(sorted((tier, repr(limit.queue)) for tier, limit in own.items()))
