"""`Decision`: the result of `acquire`, allowed or denied, as a value."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from throttlekit._core.limit.base import Limit
from throttlekit._core.storage_keys import is_workflow
from throttlekit.errors import ConfigurationError

__all__ = ["Charged", "Decision", "DecisionReason", "charges_to_settle", "decision_of"]

DecisionReason: TypeAlias = Literal[
    "allowed", "exhausted", "in line", "queue full", "paused", "store unavailable", "waited too long"
]


class Charged(NamedTuple):
    """One limit of an allowed decision, with its charge."""

    limit: Limit
    bucket: str
    """The bucket that was charged; "" if none was, because the limit was in shadow mode."""
    cost: int
    at_us: int
    """The time of the charge, by the clock of the store that counts it."""
    measured: bool = False
    """Whether the limit's cost is a callable, whose result may be wrong."""
    holder: str = ""
    """The holder of the slot of a concurrency limit; "" for a limit without slots."""

    @property
    def stays(self) -> bool:
        """Whether the job's workflow keeps the slot when the job has ended."""
        return is_workflow(self.holder)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """
    The result of a request: allowed or denied. A denial is not an exception, and charges nothing.

    Durations are in seconds.

    Attributes:
        allowed: Whether the job may run now. True means that every limit has been charged.
        limit: The binding limit: the one that denied, or the one with the fewest units left. For a limit with tiers,
            the limit of the job's tier.
        key: The key under which the binding limit counted the job; "" if the limit has no keys.
        cost: The units that the job takes of the binding limit.
        remaining: The whole units of the binding limit that are left now; 0 in a decision that no store made.
        retry_after: The estimated time until this request passes, after all jobs ahead of it; 0 when allowed.
        delay: The time to wait before the next request; 0 when allowed. It differs between waiting jobs.
        reset_after: The time until the binding limit is full again, or its next window begins.
        reason: "allowed"; "exhausted" (no unit left); "in line" (other jobs have waited longer); "queue full" (as
            many jobs wait as the limit's `queue=` allows); "paused" (no job passes for now); "store unavailable"
            (`on_store_failure` of the limits decides); "waited too long" (the job exceeds its max_wait or
            max_deferrals).
        charged: For an allowed decision, each limit with its charged units, for `Limiter.settle` and `Limiter.release`.
            While the store is unavailable, the units are those of this process's shares. A limit that fails open
            charges nothing, so settling it has no effect.
        position: The number of jobs ahead of this one on its waitlist, or None if the job is on no waitlist. With
            shares or priorities, or after a 429, a new job may be ahead of waiting jobs. Its first denial counts these
            jobs too.
        waited: The time since the job's first denial, by the store's clock; 0 if it was not denied, and while the store
            is unavailable.
        deferrals: The number of denials of the job, including this one. Of the denials by an operator's rule, at most
            the first is counted. Denials while the store is unavailable are not counted.
        waited_for: The name of the limit on whose waitlist the job waits, or waited last; "" if it never waited.
    """

    allowed: bool
    limit: Limit
    key: str
    cost: int
    remaining: int = 0
    retry_after: float = 0.0
    delay: float = 0.0
    reset_after: float = 0.0
    reason: DecisionReason
    charged: tuple[Charged, ...] = ()
    position: int | None = None
    waited: float = 0.0
    deferrals: int = 0
    waited_for: str = ""

    @property
    def final(self) -> bool:
        """Whether the job must not request its units again: the reason is "queue full" or "waited too long"."""
        return self.reason in ("queue full", "waited too long")

    @property
    def leases(self) -> tuple[Charged, ...]:
        """The slots of concurrency limits that the job holds. The caller must release them."""
        return tuple(each for each in self.charged if each.holder)

    def __bool__(self) -> bool:
        return self.allowed

    def headers(self) -> dict[str, str]:
        """
        Return the decision as HTTP headers, for the binding limit: RateLimit and RateLimit-Policy of the IETF draft
        draft-ietf-httpapi-ratelimit-headers, the three headers that the draft had up to version 6, the older
        X-RateLimit headers, and Retry-After.

        Limit is the number of units that can pass at once (a bucket's burst, a window's amount), and Reset is the time
        until all of them can pass again. In RateLimit, r equals Remaining, and t equals Reset, or Retry-After for a
        denial. Seconds are whole numbers, rounded up. For a concurrency limit, which has no rate, and while the store
        is unavailable, the only header is Retry-After.
        """
        headers: dict[str, str] = {}
        if self.reason != "store unavailable" and self.limit.period_us:
            reset, period = math.ceil(self.reset_after), math.ceil(self.limit.period_us / 1_000_000)
            name = _quote(self.limit.name)
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
    """A mutable `Decision`."""

    __slots__ = Decision.__slots__


def decision_of(
    allowed: bool,
    limit: Limit,
    key: str,
    cost: int,
    remaining: int,
    retry_after: float,
    delay: float,
    reset_after: float,
    reason: DecisionReason,
    charged: tuple[Charged, ...],
    position: int | None,
    waited: float,
    deferrals: int,
    waited_for: str,
) -> Decision:
    """
    Return a `Decision` with these attributes. A decision is created for each job, and the constructor of the frozen
    dataclass would take nine times as long.
    """
    made: Any = _Draft()
    made.allowed, made.limit, made.key, made.cost, made.remaining = allowed, limit, key, cost, remaining
    made.retry_after, made.delay, made.reset_after, made.reason = retry_after, delay, reset_after, reason
    made.charged, made.position, made.waited, made.deferrals = charged, position, waited, deferrals
    made.waited_for = waited_for
    made.__class__ = Decision
    return made  # type: ignore[no-any-return]


def _quote(name: str) -> str:
    """Return *name* as a string of RFC 9651, which is ASCII."""
    shown = "".join(each if " " <= each <= "~" else "?" for each in name)
    return '"' + shown.replace("\\", "\\\\").replace('"', '\\"') + '"'


def charges_to_settle(decision: Decision, limit: Limit | None) -> tuple[Charged, ...]:
    """
    Return the charges of *decision* to settle: that of *limit*; without it, the only charge, or those of limits whose
    cost is a callable.

    Raises:
        ConfigurationError: The decision charged nothing or did not charge *limit*, or *limit* must be given.
    """
    if not isinstance(limit, Limit | None):
        raise ConfigurationError(f"limit= must be a limit that the decision charged, not {type(limit).__name__}")
    charged = tuple(each for each in decision.charged if not each.holder)
    without_store = decision.allowed and decision.reason == "store unavailable"
    if without_store and all(each.limit is not decision.limit for each in decision.charged):
        if limit is None:
            return tuple(each for each in charged if each.measured)
        if limit.name not in {each.limit.name for each in decision.charged}:
            return ()
    if decision.charged and not charged:
        raise ConfigurationError(
            "a slot of a concurrency limit is released, not settled, and the decision charged no other limit"
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
