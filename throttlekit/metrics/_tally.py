"""
The counts of both metrics plugins, stored as plain numbers until they are exported.

Counting in the objects of prometheus-client or OpenTelemetry takes several times as long, and would delay every job.
"""

from __future__ import annotations

import importlib.util
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from throttlekit._core.algorithms.concurrency import Concurrency
from throttlekit._core.decision import Decision
from throttlekit._core.limit.base import Limit
from throttlekit._util.fork_safety import renew_lock_after_fork
from throttlekit.errors import ConfigurationError
from throttlekit.hookspecs import Decided, RateLimitReceived, Settled, ShadowDenied, SlotLost, hookimpl

__all__ = [
    "DECISIONS_PER_SAMPLE",
    "DEFERRAL_BUCKETS",
    "MAX_KEPT",
    "MAX_LIMITS",
    "OTHER",
    "STORE_BUCKETS",
    "WAIT_BUCKETS",
    "CountingPlugin",
    "Tally",
    "bucket_bounds",
    "limit_waited_for",
    "require_module",
]

OTHER = "other"
"""The name under which all limits beyond `max_limits` are counted."""
MAX_LIMITS = 100
DECISIONS_PER_SAMPLE = 32
"""One of this many decisions is timed, because a histogram costs more than all counters together."""
MAX_KEPT = 1024
"""The most observations that are stored until collection, in about 200 KB. A further one records the oldest."""

WAIT_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 14400.0)
DEFERRAL_BUCKETS = (1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0)
STORE_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)


@dataclass(slots=True, eq=False)
class Tally:
    """
    The counts of one limit, or of one of its tiers, in this process.

    Attributes:
        allowed, denied: The decisions by reason. An allowed job counts for all its limits, a denied job for the limit
            that denied it.
        shadow: The jobs, by reason, that the limit would have denied if it were not in shadow mode.
        units: The charged units.
        settled: The units that `settle` refunded ("returned") or charged additionally ("extra").
        downstream_429: The bodies that raised `RateLimited`, each of which paused the limit.
        slots_lost: The slots that a job lost while it ran.
        waitlist_end, paused_until: The time when the last waiting job is admitted, and the time when the pause ends, in
            seconds since the epoch, according to the last decision that reported them. For several keys, the latest
            time. 0 or a past time if no job waits, or there is no pause.
        worst_key: The key whose waitlist ends last.
        holders: The slots of a concurrency limit that the fleet holds, according to the last decision that reported
            them.
        holder_updates: The number of updates of `holders`.
        has_slots: Whether the limit is a concurrency limit.
        limit: The limit as last defined; None for `OTHER`, which is not a limit.
        export: The values that the plugin has exported of this tally.
    """

    name: str
    tier: str
    allowed: Counter[str] = field(default_factory=Counter[str])
    denied: Counter[str] = field(default_factory=Counter[str])
    shadow: Counter[str] = field(default_factory=Counter[str])
    units: int = 0
    settled: Counter[str] = field(default_factory=Counter[str])
    downstream_429: int = 0
    slots_lost: int = 0
    waitlist_end: float = 0.0
    worst_key: str | None = None
    paused_until: float = 0.0
    holders: int = 0
    holder_updates: int = 0
    has_slots: bool = False
    limit: Limit | None = None
    export: Any = None

    def counters(self) -> Iterator[tuple[str, dict[str, str], int]]:
        """Yield the name, the own labels and the value of each counter. The reason "in line" becomes in_line."""
        for outcome, counts in (("allowed", self.allowed), ("denied", self.denied), ("shadow", self.shadow)):
            for reason, count in counts.items():
                yield "decisions", {"outcome": outcome, "reason": reason.replace(" ", "_")}, count
        yield "units", {}, self.units
        for kind, units in self.settled.items():
            yield "settled", {"kind": kind}, units
        yield "downstream_429", {}, self.downstream_429  # also 0, so that an alert sees the increase to 1
        if self.has_slots:
            yield "leases_lost", {}, self.slots_lost

    def gauges(self) -> Iterator[tuple[str, float]]:
        """Yield the name and the value of each gauge."""
        yield "waitlist_end", self.waitlist_end
        yield "paused_until", self.paused_until
        if self.limit is None:
            return
        if self.has_slots:
            yield "slots", self.limit.amount
            yield "holders", self.holders
        else:
            yield "rate", self.limit.amount * 1_000_000 / self.limit.period_us

    def define(self, limit: Limit) -> None:
        """Count for *limit* from now on."""
        if self.name != OTHER:
            self.limit, self.has_slots = limit, isinstance(limit, Concurrency)

    def count_denied(self, event: Decided) -> None:
        decision, reason, limit = event.decision, event.decision.reason, event.decision.limit
        self.denied[reason] += 1
        if self.limit is None:
            self.define(limit)
        if reason == "store unavailable":
            return
        if reason == "paused":
            self.paused_until = max(self.paused_until if limit.key else 0.0, time.time() + decision.retry_after)
        if decision.deferrals and not decision.final and event.due > 0:
            end = time.time() + event.due
            if decision.key == self.worst_key or end > self.waitlist_end:
                self.waitlist_end, self.worst_key = end, decision.key
        if self.has_slots and event.uses:
            self.holders = limit.amount - decision.remaining
            self.holder_updates += 1


@dataclass(slots=True, eq=False)
class _FastCounter:
    """
    Counts the most frequent decision, a grant under one limit without slots, with two additions.

    Attributes:
        limit: The limit, referenced so that its `id()` is not reused.
        decisions, flushed: The number of counted decisions, and of those that are in the tally already.
        units: The units that are not in the tally yet.
        active: Whether the counter is in use.
    """

    limit: Limit
    tally: Tally
    active: bool = True
    decisions: int = 0
    flushed: int = 0
    units: int = 0

    def flush(self) -> None:
        self.tally.allowed["allowed"] += self.decisions - self.flushed
        self.tally.units += self.units
        self.flushed, self.units = self.decisions, 0


class _Tallies:
    """The tallies of this process. A forked child begins with none: its parent exports its own counts."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_name: dict[tuple[str, str | None], Tally] = {}
        self.fast: dict[int, _FastCounter] = {}
        self.observed: deque[tuple[Tally | None, float, int, Any]] = deque()
        self.until_sample = 0

    def flush(self) -> None:
        """Add the fast counters to their tallies."""
        for counter in self.fast.values():
            counter.flush()

    def drop_fast(self) -> None:
        """Stop all fast counters: a limit was paused or redefined."""
        for counter in self.fast.values():
            counter.flush()
            counter.active = False
        self.fast.clear()


class CountingPlugin(ABC):
    """
    A plugin that counts decisions by limit, but not by key, because there may be a million keys. The number of limits
    is bounded too, because a job may have a limit of any name. The plugin also records waits and the store's response
    times. It writes them to the histograms when metrics are collected, so that no job waits for that.

    Args:
        max_limits: The number of limits (or tiers, of a limit with tiers) counted by name. All others count as "other".

    Attributes:
        export_at_once: Whether `export` is called after each decision, and not only when metrics are collected.
        context: A function that returns the context to record with each observation, or None to record no context.

    Raises:
        ConfigurationError: *max_limits* is not a whole number of at least 1.
    """

    def __init__(self, max_limits: int) -> None:
        if isinstance(max_limits, bool) or not isinstance(max_limits, int) or max_limits < 1:
            raise ConfigurationError(f"max_limits= must be a whole number of at least 1, not {max_limits!r}")
        self._max_limits = max_limits
        self.export_at_once = False
        self.context: Callable[[], Any] | None = None
        self._tallies = _Tallies()
        renew_lock_after_fork(self, "_tallies", _Tallies)

    @abstractmethod
    def record_wait(self, tally: Tally, waited: float, deferrals: int, context: Any) -> None:
        """Record the wait of a job that was admitted after it waited for *tally*'s limit."""

    @abstractmethod
    def record_store(self, seconds: float, context: Any) -> None:
        """Record the store's response time. Called for one decision in `DECISIONS_PER_SAMPLE`."""

    def export(self, limits: Iterable[Limit]) -> None:
        """Export the counts of *limits*, if `export_at_once`. By default, counts are exported when collected."""
        self.export_at_once = False

    @hookimpl
    def throttlekit_decided(self, event: Decided) -> None:
        decision = event.decision
        charged = decision.charged
        if decision.reason == "allowed" and len(event.limits) == len(charged) == 1 and charged[0].bucket:
            tallies = self._tallies
            counter = tallies.fast.get(id(decision.limit))
            if counter is not None:
                with tallies.lock:
                    active = counter.active
                    counter.decisions += active
                    counter.units += decision.cost
                if active:
                    if not counter.decisions % DECISIONS_PER_SAMPLE and (took := event.took) is not None:
                        self.observe(None, took, 0)
                    if decision.waited:
                        self.observe(counter.tally, decision.waited, decision.deferrals)
                    return
        self._count(event)

    def _count(self, event: Decided) -> None:
        decision, tallies, line = event.decision, self._tallies, None
        with tallies.lock:
            if decision.allowed:
                self._count_allowed(event)
                if decision.waited:
                    line = self._tally(limit_waited_for(decision))
            else:
                if decision.reason == "paused":
                    tallies.drop_fast()
                self._tally(decision.limit).count_denied(event)
            sampled = tallies.until_sample <= 0
            tallies.until_sample -= 1
        if line is not None:
            self.observe(line, decision.waited, decision.deferrals)
        if sampled and (took := event.took) is not None:
            tallies.until_sample = DECISIONS_PER_SAMPLE - 1
            self.observe(None, took, 0)
        if self.export_at_once:
            self.export(event.limits)

    def _count_allowed(self, event: Decided) -> None:
        decision, limits, uses, tallies = event.decision, event.limits, event.uses, self._tallies
        limit, tally = decision.limit, self._tally(decision.limit)
        for number, limit in enumerate(limits):
            tally = self._tally(limit)
            tally.allowed[decision.reason] += 1
            if limit.key is None:
                tally.paused_until = 0.0
            if tally.limit is not limit:
                tallies.drop_fast()
                tally.define(limit)
            if tally.has_slots and uses and (use := uses[number]):
                tally.holders = use.units
                tally.holder_updates += 1
        for charged in decision.charged:
            if charged.bucket:  # otherwise a limit in shadow mode would have denied, and charged nothing
                self._tally(charged.limit).units += charged.cost
        alone = len(limits) == len(decision.charged) == 1 and not tally.has_slots and tally.limit is limit
        if alone and not self.export_at_once and id(limit) not in tallies.fast:
            if len(tallies.fast) >= self._max_limits:
                tallies.drop_fast()
            tallies.fast[id(limit)] = _FastCounter(limit, tally)

    @hookimpl
    def throttlekit_shadow_denied(self, event: ShadowDenied) -> None:
        with self._counting(event.decision.limit) as tally:
            tally.shadow[event.decision.reason] += 1

    @hookimpl
    def throttlekit_settled(self, event: Settled) -> None:
        extra = event.actual - event.charged
        with self._counting(event.limit) as tally:
            tally.settled["extra" if extra > 0 else "returned"] += abs(extra)

    @hookimpl
    def throttlekit_rate_limited(self, event: RateLimitReceived) -> None:
        with self._counting(event.limit) as tally:
            tally.downstream_429 += 1

    @hookimpl
    def throttlekit_slot_lost(self, event: SlotLost) -> None:
        with self._counting(event.limit) as tally:
            tally.slots_lost += 1

    @contextmanager
    def _counting(self, limit: Limit) -> Generator[Tally, None, None]:
        """Yield the tally of *limit* for one count. Export it afterwards, if `export_at_once`."""
        with self._tallies.lock:
            yield self._tally(limit)
        if self.export_at_once:
            self.export([limit])

    def observe(self, line: Tally | None, seconds: float, deferrals: int) -> None:
        """Store a wait for the limit of *line*. If *line* is None, store a response time of the store."""
        observed, context = self._tallies.observed, self.context
        observed.append((line, seconds, deferrals, None if context is None else context()))
        if len(observed) > MAX_KEPT:
            self._record_oldest(observed)

    def record_observed(self) -> None:
        """Record the observations since the last call in the histograms. The caller must not hold the lock."""
        observed = self._tallies.observed
        for _ in range(len(observed)):
            self._record_oldest(observed)

    def _record_oldest(self, observed: deque[tuple[Tally | None, float, int, Any]]) -> None:
        try:
            line, seconds, deferrals, context = observed.popleft()
        except IndexError:
            return  # another thread was faster
        if line is None:
            self.record_store(seconds, context)
        else:
            self.record_wait(line, seconds, deferrals, context)

    def for_each_tally(self, limits: Iterable[Limit] | None, action: Callable[[Tally], None]) -> None:
        """Run *action* on the tally of each of *limits*, or on all tallies, while counting is locked."""
        with self._tallies.lock:
            self._tallies.flush()
            for tally in list(self._tallies.by_name.values()) if limits is None else map(self._tally, limits):
                action(tally)

    def _tally(self, limit: Limit) -> Tally:
        by_name, name = self._tallies.by_name, (limit.name, limit.of_tier)
        found = by_name.get(name)
        if found is not None:
            return found
        if len(by_name) < self._max_limits:
            return by_name.setdefault(name, Tally(limit.name, limit.of_tier or ""))
        return by_name.setdefault((OTHER, None), Tally(OTHER, ""))


def limit_waited_for(decision: Decision) -> Limit:
    """Return the limit on whose waitlist an admitted job has waited last."""
    return next((each.limit for each in decision.charged if each.limit.name == decision.waited_for), decision.limit)


def bucket_bounds(buckets: Sequence[float]) -> tuple[float, ...]:
    """
    Return the bounds of a histogram's buckets, in seconds.

    Raises:
        ConfigurationError: *buckets* are not ascending numbers above 0.
    """
    message = f"buckets= must be numbers of seconds above 0, each above the one before, not {buckets!r}"
    try:
        numbers = tuple(float(bound) for bound in buckets)
    except (TypeError, ValueError):
        raise ConfigurationError(message) from None
    if not numbers or numbers[0] <= 0 or list(numbers) != sorted({*numbers}):
        raise ConfigurationError(message)
    return numbers


def require_module(module: str, extra: str) -> None:
    """
    Check that *module* is installed, without importing it.

    Raises:
        ImportError: It is not installed; the message names the extra.
    """
    try:
        missing = importlib.util.find_spec(module) is None
    except ModuleNotFoundError:  # its parent is missing
        missing = True
    if missing:
        raise ImportError(f"{module} is not installed: pip install 'throttlekit-jobs[{extra}]'")
