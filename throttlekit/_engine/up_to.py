"""`acquire_many`: take up to n units of one limit. It looks first, and then takes what the look found free."""

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
    The questions of one `acquire_many`: what to look for, and then what to take. Each is put without a job, so that
    only what waiting jobs leave passes, and each is charged whole or not at all.

    Args:
        in_force: See `Limiter.in_force`.

    Attributes:
        limit, key: For each question.
        most: What to look for.
        cost: What to take next; 1 until there was a look.

    Raises:
        ConfigurationError: As `Limiter.acquire_many` does.
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
            raise ConfigurationError(f"limit {limit.name!r} gives slots, each to its own holder: take them one by one")
        if limit.scope in ("queue", "job"):
            raise ConfigurationError(
                f"limit {limit.name!r} counts each {limit.scope} apart: acquire_many needs a limit that counts all "
                "together, or by key="
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
        """Look with *peek*, and take with *acquire*. An `AsyncLimiter` does the same with its own."""
        with suppress(StoreUnavailable):
            self.apply_peek(peek(self.limit, key=self.key, cost=self.most))
        decision = acquire(self.limit, key=self.key, cost=self.cost)
        while self.smaller(decision):
            decision = acquire(self.limit, key=self.key, cost=self.cost)
        return decision

    def apply_peek(self, decision: Decision) -> None:
        """Take the units that the peek for `most` found free; at least 1, whose denial has the retry time."""
        self.cost = _free(decision, self.most)

    def smaller(self, decision: Decision) -> bool:
        """Whether to take fewer after *decision*: other callers took units since the look. At most twice."""
        if decision.allowed or self.cost == 1:
            return False
        self.cost = 1 if self._again else _free(decision, self.cost)
        self._again = True
        return True


def _free(decision: Decision, cost: int) -> int:
    """
    How many units would have passed where *cost* were decided on; 1 if none. A guess that is too high is denied, and
    charges nothing.
    """
    if decision.allowed:
        return cost
    free = 0
    if isinstance(decision.limit, TokenBucket) and decision.reason in ("exhausted", "in line"):
        size_us = decision.limit.bind(cost).size  # what is short of it is a time, of the jobs that wait too
        free = (size_us - round(decision.retry_after * 1_000_000)) * cost // size_us
    elif decision.reason == "exhausted" and decision.remaining >= cost:
        free = cost // 2  # it is slowed down: how many pass is not known
    elif decision.reason == "exhausted":
        free = decision.remaining
    return max(1, min(free, decision.remaining, cost - 1))
