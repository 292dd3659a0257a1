"""`acquire_many`: peek at one limit, and then take the units that were free, up to a maximum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from throttlekit._core.algorithms.concurrency import Concurrency
from throttlekit._core.algorithms.token_bucket import TokenBucket
from throttlekit._core.decision import Decision
from throttlekit._core.job import Job
from throttlekit._core.limit.base import Limit
from throttlekit._engine.call import Call
from throttlekit._engine.claims import ClaimResolver
from throttlekit.errors import ConfigurationError, StoreUnavailable

__all__ = ["UpTo"]


class UpTo:
    """
    The requests of one `acquire_many`: first a peek, and then requests to take units. They are made without a job, so
    that waiting jobs get their units first. Each request is charged completely or not at all.

    Args:
        in_force: See `Limiter.in_force`.

    Attributes:
        limit, key: The limit and the key of each request.
        most: The cost of the peek.
        cost: The cost of the next request; 1 until the peek.

    Raises:
        ConfigurationError: As for `Limiter.acquire_many`.
    """

    __slots__ = ("_again", "cost", "key", "limit", "most")

    def __init__(
        self,
        resolver: ClaimResolver,
        in_force: Callable[[Sequence[Limit], Job | None], Sequence[Limit]],
        limit: Limit,
        most: int,
        job: Job | None,
        key: str | int | None,
    ) -> None:
        call = Call([limit], job, key)
        resolver.registry.check(call)
        if isinstance(limit, Concurrency):
            raise ConfigurationError(f"limit {limit.name!r} grants slots, each to one holder: take them one by one")
        if limit.scope in ("queue", "job"):
            raise ConfigurationError(
                f"limit {limit.name!r} counts each {limit.scope} separately: acquire_many needs a limit that counts "
                "all together, or by key="
            )
        if limit.check_units(most) < 1:
            raise ConfigurationError(f"limit {limit.name!r}: acquire_many takes up to a number of at least 1, not 0")
        self.limit = limit.for_job(job)
        self.key = None if limit.key is None else resolver.key(call, self.limit)
        (now,) = in_force([self.limit], None)
        self.most = min(most, now.capacity)
        self.cost = 1
        self._again = False

    def take(self, peek: Callable[..., Decision], acquire: Callable[..., Decision]) -> Decision:
        """Call *peek*, and then *acquire*. An `AsyncLimiter` does the same with its own methods."""
        with suppress(StoreUnavailable):
            self.apply_peek(peek(self.limit, key=self.key, cost=self.most))
        decision = acquire(self.limit, key=self.key, cost=self.cost)
        while self.smaller(decision):
            decision = acquire(self.limit, key=self.key, cost=self.cost)
        return decision

    def apply_peek(self, decision: Decision) -> None:
        """Set the cost to the free units that the peek for `most` found; at least 1, for the retry time of a denial."""
        self.cost = _free(decision, self.most)

    def smaller(self, decision: Decision) -> bool:
        """Whether to request fewer units after *decision*, at most twice, because others took units since the peek."""
        if decision.allowed or self.cost == 1:
            return False
        self.cost = 1 if self._again else _free(decision, self.cost)
        self._again = True
        return True


def _free(decision: Decision, cost: int) -> int:
    """
    Return the number of units that would have been granted in place of *cost*, at least 1. If the estimate is too high,
    the request is denied, and charges nothing.
    """
    if decision.allowed:
        return cost
    free = 0
    if isinstance(decision.limit, TokenBucket) and decision.reason in ("exhausted", "in line"):
        size_us = decision.limit.bind(cost).size  # `retry_after` is the missing part, including that of waiting jobs
        free = (size_us - round(decision.retry_after * 1_000_000)) * cost // size_us
    elif decision.reason == "exhausted" and decision.remaining >= cost:
        free = cost // 2  # the limit is slowed down, so the number of free units is not known
    elif decision.reason == "exhausted":
        free = decision.remaining
    return max(1, min(free, decision.remaining, cost - 1))
