"""A limit as plain data, from which the workers of a flood create it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from throttlekit import Adapt, ByLatency, Concurrency, Limit, Share, TokenBucket

__all__ = ["FloodLimit"]


@dataclass(frozen=True)
class FloodLimit:
    """
    A token bucket, or slots.

    Attributes:
        share: The tenant of a job: "{account}" for the second argument of the flood's jobs. None: the limit is not
        shared. weights: The weights of the tenants. None: all are equal. strict: Whether the weights are priorities.
        adapt: The floor of an adaptive limit. None: the limit does not adapt. slots: How many jobs may run at once,
        instead of the rate.
    """

    name: str
    rate: str = ""
    burst: int = 0
    key: str | None = None
    share: str | None = None
    weights: Mapping[str, float] | None = None
    strict: bool = False
    adapt: str | None = None
    slots: int | None = None

    def made(self) -> Limit:
        if self.slots is not None:
            return Concurrency(self.name, self.slots, adapt=None if self.adapt is None else ByLatency(int(self.adapt)))
        share = None if self.share is None else Share(self.share, weight=self.weights or 1, strict=self.strict)
        adapt = None if self.adapt is None else Adapt(self.adapt)
        return TokenBucket(self.name, self.rate, burst=self.burst, key=self.key, share=share, adapt=adapt)
