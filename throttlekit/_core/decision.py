"""`Decision`: the result of `acquire`, allowed or denied, as a value."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from throttlekit._core.limit.base import Limit
from throttlekit._core.storage_keys import is_workflow
from throttlekit.errors import ConfigurationError

__all__ = ["Charged", "Decision", "DecisionReason", "decision_of", "settled_of"]

DecisionReason: TypeAlias = Literal[
    "allowed", "exhausted", "in line", "queue full", "paused", "store unavailable", "waited too long"
]


class Charged(NamedTuple):
    """One limit of a decision that was allowed, and what it took."""

    limit: Limit
    bucket: str
    """The name under which the store counts it; "" if nothing was taken: the limit was in shadow mode."""
    cost: int
    at_us: int
    """When it was charged, by the clock of the store that counts it."""
    measured: bool = False
    """Whether the limit's cost is a callable, whose result may turn out wrong."""
    holder: str = ""
    """The holder of the slot of a concurrency limit; "" for a limit that gives no slots."""
    idle_us: int = 0
    """For how long a bucket had been full, and lost what came, before a job that waited took of it; else 0."""

    @property
    def stays(self) -> bool:
        """Whether the slot stays with the job's workflow when the job has ended."""
        return is_workflow(self.holder)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """
    Allowed or denied. A denial is never an exception, and never charges anything.

    Durations are in seconds.

    Attributes:
        allowed: Whether the job may run now. True means that every limit has been charged.
        limit: The binding limit: the one that denied, or the one with the least left. For a limit with tiers,
            the limit of the job's tier.
        key: The key of the binding limit under which the job was counted; "" if it counts all together.
        cost: The units that the job takes of the binding limit.
        remaining: Whole units of the binding limit that are left now.
        retry_after: Until about when this request passes, if those that wait before it pass; 0 when allowed.
        delay: How long to wait before the next try: different for each waiting job; 0 when allowed.
        reset_after: Until the binding limit is full again, or its next window begins.
        reason: "allowed"; "exhausted" (no unit left); "in line" (other jobs have waited longer); "queue full" (as
            many jobs wait as the limit's `queue=` allows); "paused" (no job passes for now); "store unavailable"
            (nothing is known; `on_store_failure` of the limits decides); "waited too long" (past the job's max_wait
            or max_deferrals).
        charged: What `Limiter.settle` and `Limiter.release` need of a decision that was allowed: each limit with
            the units taken. While the store is unavailable: the units taken of this process's shares. Limits that
            fail open charge nothing, and to settle them does nothing.
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
    charged: tuple[Charged, ...] = ()

    @property
    def final(self) -> bool:
        """Whether the job ends here: a job with this decision must not ask again ("queue full", "waited too long")."""
        return self.reason in ("queue full", "waited too long")

    @property
    def leases(self) -> tuple[Charged, ...]:
        """The slots of concurrency limits that the job holds. The caller must release them."""
        return tuple(each for each in self.charged if each.holder)

    def __bool__(self) -> bool:
        return self.allowed

    def headers(self) -> dict[str, str]:
        """
        The decision as HTTP headers, of the binding limit: the fields RateLimit and RateLimit-Policy of the IETF's
        draft (draft-ietf-httpapi-ratelimit-headers), the three that it had up to version 6, the older X-RateLimit
        family, and Retry-After.

        Limit is what can pass at once (a bucket's burst, a window's amount), Reset the seconds until all of it can
        again. In RateLimit, r is as Remaining, and t as Reset; on a denial t is as Retry-After. Seconds are whole,
        rounded up. While the store is unavailable nothing is known, and a concurrency limit has no rate: then there is
        only Retry-After.
        """
        headers: dict[str, str] = {}
        if self.reason != "store unavailable" and self.limit.period_us:
            reset, period = math.ceil(self.reset_after), math.ceil(self.limit.period_us / 1_000_000)
            name = _quoted(self.limit.name)
            headers["RateLimit-Policy"] = f"{name};q={self.limit.amount};w={period}"
            headers["RateLimit"] = f"{name};r={self.remaining};t={reset if self.allowed else self._wait}"
            fields = {"Limit": self.limit.capacity, "Remaining": self.remaining, "Reset": reset}
            for family in ("RateLimit", "X-RateLimit"):
                headers.update({f"{family}-{field}": str(value) for field, value in fields.items()})
        if not self.allowed:
            headers["Retry-After"] = str(self._wait)
        return headers

    @property
    def _wait(self) -> int:
        return max(1, math.ceil(self.retry_after))


class _Draft:
    """
    A `Decision` while it is made. The constructor of a frozen dataclass takes nine times as long as this one, and one
    is made for each job.
    """

    __slots__ = Decision.__slots__

    def __init__(
        self, allowed: bool, limit: Limit, key: str, cost: int, remaining: int, retry_after: float, delay: float,
        reset_after: float, reason: DecisionReason, charged: tuple[Charged, ...],
    ) -> None:  # fmt: skip
        self.allowed, self.limit, self.key, self.cost, self.remaining = allowed, limit, key, cost, remaining
        self.retry_after, self.delay, self.reset_after, self.reason = retry_after, delay, reset_after, reason
        self.charged = charged


def decision_of(
    allowed: bool, limit: Limit, key: str, cost: int, remaining: int, retry_after: float, delay: float,
    reset_after: float, reason: DecisionReason, charged: tuple[Charged, ...],
) -> Decision:  # fmt: skip
    """As the constructor of `Decision`, with all that it has, in order: for each job."""
    made: Any = _Draft(allowed, limit, key, cost, remaining, retry_after, delay, reset_after, reason, charged)
    made.__class__ = Decision
    return made  # type: ignore[no-any-return]


def _quoted(name: str) -> str:
    """*name* as a string of RFC 9651, which is ASCII."""
    shown = "".join(each if " " <= each <= "~" else "?" for each in name)
    return '"' + shown.replace("\\", "\\\\").replace('"', '\\"') + '"'


def settled_of(decision: Decision, limit: Limit | None) -> tuple[Charged, ...]:
    """
    Which of the decision's limits to settle. *limit* names one.

    Raises:
        ConfigurationError: The decision charged nothing, or not *limit*, or it is not clear which limit is meant.
    """
    charged = tuple(each for each in decision.charged if not each.holder)
    if decision.allowed and decision.reason == "store unavailable":
        uncharged = all(each.limit is not decision.limit for each in decision.charged)
        if uncharged and limit is None:
            return tuple(each for each in charged if each.measured)
        if uncharged and all(each.limit.name != limit.name for each in decision.charged if limit is not None):
            return ()
    if decision.charged and not charged:
        raise ConfigurationError(
            "a slot of a concurrency limit is released, not settled: the decision charged no other"
        )
    if not charged:
        raise ConfigurationError(
            "a decision that was denied, or peeked, has charged nothing: there is nothing to settle"
        )
    if limit is not None:
        meant = tuple(each for each in charged if each.limit.name == limit.name)
        missing = f"limit {limit.name!r} is not one that the decision charged"
    elif len(charged) == 1:
        return charged
    else:
        meant = tuple(each for each in charged if each.measured)
        missing = "none of the decision's limits has a callable as its cost: name the one that is meant, as limit="
    if not meant:
        raise ConfigurationError(f"{missing}; it charged {', '.join(repr(each.limit.name) for each in charged)}")
    return meant
