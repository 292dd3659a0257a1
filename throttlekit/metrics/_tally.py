"""
What both plugins count, and how they call it.

Most of it is kept as plain numbers, and handed on when it is asked for: to count in Prometheus' or OpenTelemetry's
own objects takes several times as long, and every job would wait for it.
"""

from __future__ import annotations

import importlib.util
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from throttlekit._core.concurrency import Concurrency
from throttlekit._core.limits import Limit
from throttlekit._forks import renew_lock_after_fork
from throttlekit._waited import Waited
from throttlekit.errors import ConfigurationError
from throttlekit.hookspecs import Decided, Observed, SlotLost, hookimpl

__all__ = [
    "DEFERRALS",
    "MOST_LIMITS",
    "OTHER",
    "STORE_SECONDS",
    "TIMED",
    "WAITS",
    "Counting",
    "Tally",
    "bounds",
    "needs",
]

OTHER = "other"
"""Stands for all limits beyond those that are counted by their names."""
MOST_LIMITS = 100
TIMED = 8
"""Of so many decisions one is timed: a histogram costs more than all else together, and a sample tells as much."""

WAITS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 14400.0)
DEFERRALS = (1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0)
STORE_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)


class Tally:
    """
    What is counted of one limit, or of one of its tiers, in this process.

    Attributes:
        allowed, denied: Decisions by reason. All limits of a job that may run, and the one that denies.
        observed: By reason, denials that there would have been if the limit were not only observed.
        units: Charged.
        lost: Slots that a job lost while it ran.
        line_end, paused_until: Seconds since the epoch, as far as was seen last; 0 or past: there is none.
        holders: Of a concurrency limit, in the whole fleet, as was seen last.
        seen: How often that was.
        limit: As it was defined last; None for `OTHER`, which is none.
        handed_on: For the plugin: what it knows of it.
    """

    __slots__ = (
        "allowed",
        "denied",
        "handed_on",
        "holders",
        "limit",
        "line_end",
        "lost",
        "name",
        "observed",
        "paused_until",
        "seen",
        "tier",
        "units",
    )

    def __init__(self, name: str, tier: str) -> None:
        self.name, self.tier = name, tier
        self.allowed: dict[str, int] = {}
        self.denied: dict[str, int] = {}
        self.observed: dict[str, int] = {}
        self.units = 0
        self.lost = 0
        self.line_end = 0.0
        self.paused_until = 0.0
        self.holders = 0
        self.seen = 0
        self.limit: Limit | None = None
        self.handed_on: Any = None

    def outcomes(self) -> tuple[tuple[str, dict[str, int]], ...]:
        """Decisions by reason, by outcome."""
        return ("allowed", self.allowed), ("denied", self.denied), ("observed", self.observed)

    def count_allowed(self, limit: Limit, event: Decided, number: int) -> None:
        """A job may run of whose limits *limit* is this *number*."""
        reason = event.decision.reason
        self.allowed[reason] = self.allowed.get(reason, 0) + 1
        if self.limit is not limit:
            self.limit = limit if self.name != OTHER else None
        if self.paused_until:
            self.paused_until = 0.0
        if isinstance(limit, Concurrency) and event.uses and (use := event.uses[number]):
            self.holders = use.units
            self.seen += 1

    def count_denied(self, event: Decided) -> None:
        decision = event.decision
        reason, limit = decision.reason, decision.limit
        self.denied[reason] = self.denied.get(reason, 0) + 1
        if self.limit is None and self.name != OTHER:
            self.limit = limit
        if reason == "paused":
            self.paused_until = time.time() + decision.retry_after
        if event.slot and event.job is not None and reason != "early":
            self.line_end = time.time() + event.slot
        if isinstance(limit, Concurrency) and event.uses:
            self.holders = limit.amount - decision.remaining
            self.seen += 1


_NOBODY = Tally("", "")


class _Tallies:
    """What is known in this process: a forked child begins with nothing, its parent's counts are not its own."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.of: dict[tuple[str, str | None], Tally] = {}
        self.timed = 0


class Counting(ABC):
    """
    A plugin that counts decisions. Never by key: there may be a million. A limit by value may bring any name, so
    names are bounded too.

    Args:
        max_limits: How many limits (of one with tiers: tiers) are told apart. All beyond them count as "other".

    Raises:
        ConfigurationError: That is no whole number of at least 1.
    """

    def __init__(self, max_limits: int) -> None:
        if isinstance(max_limits, bool) or not isinstance(max_limits, int) or max_limits < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"max_limits= must be a whole number of at least 1, not {max_limits!r}")
        self._max_limits = max_limits
        self._known = _Tallies()
        renew_lock_after_fork(self, "_known", _Tallies)

    @abstractmethod
    def started(self, tally: Tally, event: Decided) -> None:
        """A job starts that has waited, in the line of *tally*'s limit."""

    @abstractmethod
    def took(self, seconds: float) -> None:
        """The store took so long; told of one decision in `TIMED`."""

    @hookimpl
    def throttlekit_decided(self, event: Decided) -> None:
        decision, known, timed, line, tally = event.decision, self._known, False, None, _NOBODY
        with known.lock:
            if decision.allowed:
                for number, limit in enumerate(event.limits):
                    tally = known.of.get((limit.name, limit.of_tier)) or self._tally(limit)
                    tally.count_allowed(limit, event, number)
                for each in decision.charged:
                    if len(event.limits) > 1 or each.limit.name != tally.name:
                        tally = self._tally(each.limit)
                    tally.units += each.cost
                if event.waited:
                    line = self._tally(_line_of(event))
            else:
                self._tally(decision.limit).count_denied(event)
            if event.took is not None:
                timed = known.timed == 0
                known.timed = (known.timed + 1) % TIMED
        if line is not None:
            self.started(line, event)
        if timed and event.took is not None:
            self.took(event.took)

    @hookimpl
    def throttlekit_observed(self, event: Observed) -> None:
        reason = event.decision.reason
        with self._known.lock:
            observed = self._tally(event.decision.limit).observed
            observed[reason] = observed.get(reason, 0) + 1

    @hookimpl
    def throttlekit_lease_lost(self, event: SlotLost) -> None:
        with self._known.lock:
            self._tally(event.limit).lost += 1

    def each(self, limits: Sequence[Limit] | None, do: Callable[[Tally], None]) -> None:
        """*do* it with the tallies of *limits*, or of all, while nothing is counted."""
        with self._known.lock:
            for tally in list(self._known.of.values()) if limits is None else map(self._tally, limits):
                do(tally)

    def _tally(self, limit: Limit) -> Tally:
        of = self._known.of
        named: tuple[str, str | None] = (limit.name, limit.of_tier)
        if named not in of and len(of) >= self._max_limits:
            named = (OTHER, None)
        if named not in of:
            of[named] = Tally(named[0], named[1] or "")
        return of[named]


def _line_of(event: Decided) -> Limit:
    """Of the limits of a job that starts: the one in whose line it has waited last."""
    ticket = Waited.read(event.job.waited).ticket if event.job else ""
    name = ticket.partition(":")[2]
    return next((limit for limit in event.limits if limit.name == name), event.decision.limit)


def bounds(buckets: Sequence[float]) -> tuple[float, ...]:
    """
    The bounds of a histogram's buckets, in seconds.

    Raises:
        ConfigurationError: They are no ascending numbers above 0.
    """
    told = f"buckets= must be numbers of seconds above 0, each above the one before, not {buckets!r}"
    try:
        numbers = tuple(float(bound) for bound in buckets)
    except (TypeError, ValueError):
        raise ConfigurationError(told) from None
    if not numbers or numbers[0] <= 0 or list(numbers) != sorted({*numbers}):
        raise ConfigurationError(told)
    return numbers


def needs(module: str, extra: str) -> None:
    """
    Make sure that *module* is there, and import it not yet.

    Raises:
        ImportError: It is not; the message names the extra.
    """
    try:
        missing = importlib.util.find_spec(module) is None
    except ModuleNotFoundError:  # of its parent
        missing = True
    if missing:
        raise ImportError(f"{module} is missing: pip install 'throttlekit-jobs[{extra}]'")
