"""A limit as text, for the workers of a flood to make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from throttlekit import Share, TokenBucket

__all__ = ["FloodLimit"]


@dataclass(frozen=True)
class FloodLimit:
    """
    A token bucket.

    Attributes:
        share: Whose job it is: "{account}" for the second argument of the flood's jobs. None: the limit is not shared.
        weights: Of the share; None: all have the same.
        strict: The weights are priorities.
    """

    name: str
    rate: str
    burst: int
    key: str | None = None
    share: str | None = None
    weights: Mapping[str, float] | None = None
    strict: bool = False

    def made(self) -> TokenBucket:
        share = None if self.share is None else Share(self.share, weight=self.weights or 1, strict=self.strict)
        return TokenBucket(self.name, self.rate, burst=self.burst, key=self.key, share=share)
