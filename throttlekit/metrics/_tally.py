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
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from throttlekit._core.algorithms.concurrency import Concurrency
from throttlekit._core.limit.base import Limit
from throttlekit._util.fork_safety import renew_lock_after_fork
from throttlekit.errors import ConfigurationError
from throttlekit.hookspecs import Decided, ShadowDenied, SlotLost, hookimpl

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
TIMED = 32
"""Of so many decisions one is timed: a histogram costs more than all else together, and a sample tells as much."""

WAITS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 14400.0)
DEFERRALS = (1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0)
STORE_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)


class Tally:
    """
    What is counted of one limit, or of one of its tiers, in this process.

    Attributes:
        allowed, denied: Decisions by reason. All limits of a job that may run, and the one that denies.
        shadow: By reason, denials that there would have been if the limit were not in shadow mode.
        units: Charged.
        lost: Slots that a job lost while it ran.
        line_end, paused_until: Seconds since the epoch, as far as was seen last; 0 or past: there is none.
        holders: Of a concurrency limit, in the whole fleet, as was seen last.
        seen: How often that was.
        slots: Whether it is a concurrency limit.
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
        "paused_until",
        "seen",
        "shadow",
        "slots",
        "tier",
        "units",
    )

    def __init__(self, name: str, tier: str) -> None:
        self.name, self.tier = name, tier
        self.allowed: defaultdict[str, int] = defaultdict(int)
        self.denied: defaultdict[str, int] = defaultdict(int)
        self.shadow: defaultdict[str, int] = defaultdict(int)
        self.units = 0
        self.lost = 0
        self.line_end = 0.0
        self.paused_until = 0.0
        self.holders = 0
        self.seen = 0
        self.slots = False
        self.limit: Limit | None = None
        self.handed_on: Any = None

    def outcomes(self) -> tuple[tuple[str, dict[str, int]], ...]:
        """Decisions by reason, by outcome."""
        return ("allowed", self.allowed), ("denied", self.denied), ("shadow", self.shadow)

    def define(self, limit: Limit) -> None:
        """*limit* is what is counted here by now."""
        if self.name != OTHER:
            self.limit, self.slots = limit, isinstance(limit, Concurrency)

    def count_denied(self, event: Decided) -> None:
        decision, reason, limit = event.decision, event.decision.reason, event.decision.limit
        self.denied[reason] += 1
        if self.limit is None:
            self.define(limit)
        if reason == "store unavailable":
            return
        if reason == "paused":
            self.paused_until = time.time() + decision.retry_after
        if decision.ticket is not None and reason != "early" and event.due > 0:
            self.line_end = time.time() + event.due
        if self.slots and event.uses:
            self.holders = limit.amount - decision.remaining
            self.seen += 1


class _Often:
    """
    Jobs that ran at once, under one limit that has no slots, and no job waited for: most of all decisions.

    Attributes:
        limit: So that no other object comes to lie where this does.
        times, added: How many there were, and how many of them have been added to the tally.
        units: What the others were charged.
        counts: Whether it is still asked for them.
    """

    __slots__ = ("added", "counts", "limit", "tally", "times", "units")

    def __init__(self, limit: Limit, tally: Tally) -> None:
        self.limit, self.tally, self.counts = limit, tally, True
        self.times = self.added = self.units = 0

    def add(self) -> None:
        self.tally.allowed["allowed"] += self.times - self.added
        self.tally.units += self.units
        self.added, self.units = self.times, 0


class _Tallies:
    """What is known in this process: a forked child begins with nothing, its parent's counts are not its own."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.of: dict[tuple[str, str | None], Tally] = {}
        self.often: dict[int, _Often] = {}
        self.until_timed = 0

    def add(self) -> None:
        """Add what came often to the tallies."""
        for often in self.often.values():
            often.add()

    def forget(self) -> None:
        """What came often may be otherwise from now on."""
        for often in self.often.values():
            often.add()
            often.counts = False
        self.often.clear()


class Counting(ABC):
    """
    A plugin that counts decisions. Never by key: there may be a million. A limit by value may bring any name, so
    names are bounded too.

    Args:
        max_limits: How many limits (of one with tiers: tiers) are told apart. All beyond them count as "other".

    Attributes:
        at_once: Whether `counted` is to be called. Else it is enough to look when it is collected.

    Raises:
        ConfigurationError: That is no whole number of at least 1.
    """

    def __init__(self, max_limits: int) -> None:
        if isinstance(max_limits, bool) or not isinstance(max_limits, int) or max_limits < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"max_limits= must be a whole number of at least 1, not {max_limits!r}")
        self._max_limits = max_limits
        self.at_once = False
        self._known = _Tallies()
        renew_lock_after_fork(self, "_known", _Tallies)

    @abstractmethod
    def started(self, tally: Tally, event: Decided) -> None:
        """A job starts that has waited, in the line of *tally*'s limit."""

    @abstractmethod
    def took(self, seconds: float) -> None:
        """The store took so long; told of one decision in `TIMED`."""

    def counted(self, limits: Iterable[Limit]) -> None:
        """Something was counted of *limits*, while `at_once`. For this plugin it is enough to look when it collects."""
        self.at_once = False

    @hookimpl
    def throttlekit_decided(self, event: Decided) -> None:
        decision = event.decision
        if decision.reason == "allowed" and not event.waited and len(event.limits) == 1:
            known = self._known
            often = known.often.get(id(decision.limit))
            if often is not None:
                with known.lock:
                    counts = often.counts
                    often.times += counts
                    often.units += decision.cost
                if counts:
                    if not often.times % TIMED and (took := event.took) is not None:
                        self.took(took)
                    return
        self._count(event)

    def _count(self, event: Decided) -> None:
        decision, known, line = event.decision, self._known, None
        with known.lock:
            if decision.allowed:
                self._count_allowed(event)
                if event.waited:
                    line = self._tally(_line_of(event))
            else:
                if decision.reason == "paused":
                    known.forget()
                self._tally(decision.limit).count_denied(event)
            timed = known.until_timed <= 0
            known.until_timed -= 1
        if line is not None:
            self.started(line, event)
        if timed and (took := event.took) is not None:
            known.until_timed = TIMED - 1
            self.took(took)
        if self.at_once:
            self.counted(event.limits)

    def _count_allowed(self, event: Decided) -> None:
        decision, limits, uses, known = event.decision, event.limits, event.uses, self._known
        limit, tally = decision.limit, self._tally(decision.limit)
        for number, limit in enumerate(limits):
            tally = self._tally(limit)
            tally.allowed[decision.reason] += 1
            tally.paused_until = 0.0
            if tally.limit is not limit:
                known.forget()
                tally.define(limit)
            if tally.slots and uses and (use := uses[number]):
                tally.holders = use.units
                tally.seen += 1
        for charged in decision.charged:
            self._tally(charged.limit).units += charged.cost
        alone = len(limits) == len(decision.charged) == 1 and not tally.slots and tally.limit is limit
        if alone and not self.at_once and id(limit) not in known.often:
            if len(known.often) >= self._max_limits:
                known.forget()
            known.often[id(limit)] = _Often(limit, tally)

    @hookimpl
    def throttlekit_shadow_denied(self, event: ShadowDenied) -> None:
        reason = event.decision.reason
        with self._known.lock:
            self._tally(event.decision.limit).shadow[reason] += 1
        if self.at_once:
            self.counted([event.decision.limit])

    @hookimpl
    def throttlekit_slot_lost(self, event: SlotLost) -> None:
        with self._known.lock:
            self._tally(event.limit).lost += 1
        if self.at_once:
            self.counted([event.limit])

    def each(self, limits: Iterable[Limit] | None, do: Callable[[Tally], None]) -> None:
        """*do* it with the tallies of *limits*, or of all, while nothing is counted."""
        with self._known.lock:
            self._known.add()
            for tally in list(self._known.of.values()) if limits is None else map(self._tally, limits):
                do(tally)

    def _tally(self, limit: Limit) -> Tally:
        of = self._known.of
        found = of.get((limit.name, limit.of_tier))
        if found is not None:
            return found
        if len(of) < self._max_limits:
            named, tally = (limit.name, limit.of_tier), Tally(limit.name, limit.of_tier or "")
        else:
            named, tally = (OTHER, None), Tally(OTHER, "")
        return of.setdefault(named, tally)


def _line_of(event: Decided) -> Limit:
    """Of the limits of a job that starts: the one in whose line it has waited last."""
    return next((limit for limit in event.limits if limit.name == event.waited_for), event.decision.limit)


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
