"""The answer of a limiter, as a value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from throttlekit._core.limits import Limit

__all__ = ["Decision", "DecisionReason"]

DecisionReason: TypeAlias = Literal["allowed", "exhausted", "in line", "early", "store unavailable", "waited too long"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """
    Allowed or denied. A denial is never an exception, and never charges anything.

    Durations are in seconds.

    Attributes:
        allowed: Whether the job may run now. True means that every limit has been charged.
        limit: The binding limit: the one that denied, or the one with the least left.
        key: The key of the binding limit under which the job was counted; "" if it counts all together.
        cost: The units asked of the binding limit.
        remaining: Whole units of the binding limit that are left now.
        retry_after: Until this request would pass if nobody else asks; 0 when allowed.
        delay: How long to wait before asking again: distinct for each waiter; 0 when allowed.
        reset_after: Until the binding limit is full again.
        reason: "allowed"; "exhausted" (no unit left); "in line" (others have waited longer); "early"
            (back before its slot, which it keeps); "store unavailable"; "waited too long" (past
            the job's max_wait or max_deferrals: it ends now, by whatever its adapter was told).
        waited: What a denied job carries until it asks again, as plain JSON data; opaque. Give it
            back as `Job.waited`. None when allowed, or when there was no job.
    """

    allowed: bool
    limit: Limit
    key: str
    cost: int
    remaining: int
    retry_after: float
    delay: float
    reset_after: float
    reason: DecisionReason
    waited: Mapping[str, Any] | None = None

    def __bool__(self) -> bool:
        return self.allowed

    def headers(self) -> dict[str, str]:
        """
        The decision as the HTTP headers that web clients know, in whole seconds, rounded up.

        While the store is unavailable nothing is known of the limit: only Retry-After is told.
        """
        headers: dict[str, str] = {}
        if self.reason != "store unavailable":
            headers["X-RateLimit-Limit"] = str(self.limit.burst)
            headers["X-RateLimit-Remaining"] = str(self.remaining)
            headers["X-RateLimit-Reset"] = str(math.ceil(self.reset_after))
        if not self.allowed:
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after)))
        return headers
