"""
Counts for Prometheus what limits decide: `Limiter("redis://…", plugins=[PrometheusMetrics()])`.

docs/metrics.md names every metric, and says how each framework serves them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from throttlekit._core.algorithms.concurrency import Concurrency
from throttlekit._core.limit.base import Limit
from throttlekit._util.fork_safety import renew_lock_after_fork
from throttlekit.hookspecs import Decided, StoreFailed, hookimpl
from throttlekit.metrics._tally import (
    DEFERRALS,
    MOST_LIMITS,
    STORE_SECONDS,
    TIMED,
    WAITS,
    Counting,
    Tally,
    bounds,
    needs,
)

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric

__all__ = ["PrometheusMetrics"]


class PrometheusMetrics(Counting):
    """
    A plugin that keeps the metrics of docs/metrics.md in a registry of prometheus-client.

    That is imported with the first decision and not before, so that whatever sets `PROMETHEUS_MULTIPROC_DIR` comes
    first: Dramatiq's own middleware does when a worker process boots. Keys never become labels.

    Args:
        registry: Where they are registered. Default: `prometheus_client.REGISTRY`. Several plugins of one registry
            count into the same metrics, with the buckets of the first.
        buckets: The bounds of the histogram of waits, in seconds.
        max_limits: How many limits (of one with tiers: tiers) are told apart. All beyond them count as "other".

    Raises:
        ConfigurationError: An argument can never work.
        ImportError: prometheus-client is missing; the message names the extra.
    """

    def __init__(
        self,
        *,
        registry: CollectorRegistry | None = None,
        buckets: Sequence[float] = WAITS,
        max_limits: int = MOST_LIMITS,
    ) -> None:
        needs("prometheus_client", "prometheus")
        super().__init__(max_limits)
        self._registry = registry
        self._buckets = bounds(buckets)
        self._found: _Families | None = None
        self.at_once = True  # until it is known who collects

    @hookimpl
    def throttlekit_store_failed(self, event: StoreFailed) -> None:
        self._families.store_errors.labels(event.error, event.outcome).inc()

    def started(self, tally: Tally, event: Decided) -> None:
        families = self._families
        if tally.handed_on is None:  # while nobody else makes it: what counts were handed on would be forgotten
            self.each(None, families.write)
        written = families.written(tally)
        written.wait.observe(event.waited)
        if event.deferrals:
            written.deferrals.observe(event.deferrals)

    def took(self, seconds: float) -> None:
        self._families.store_seconds.observe(seconds)

    def counted(self, limits: Iterable[Limit]) -> None:
        families = self._families
        if families.shared:
            self.each(limits, families.write)
        else:
            self.at_once = False

    @property
    def _families(self) -> _Families:
        if self._found is None:
            import prometheus_client

            registry = prometheus_client.REGISTRY if self._registry is None else self._registry
            self._found = _made.of(registry, self._buckets)
            self._found.plugins.add(self)
        return self._found


class _Families:
    """
    Every metric, as it is registered. Gauges tell what was seen last, in whichever process that was.

    In a registry of this process alone, what the plugins counted is written when it is collected. In the
    multi-process mode of prometheus-client another process collects, so each decision is written at once.
    """

    def __init__(self, registry: CollectorRegistry, waits: Sequence[float]) -> None:
        from prometheus_client import Counter, Gauge, Histogram

        def counter(name: str, told: str, *labels: str) -> Counter:
            return Counter(f"throttlekit_{name}", told, labels, registry=registry)

        def histogram(name: str, told: str, buckets: Sequence[float], *labels: str) -> Histogram:
            return Histogram(f"throttlekit_{name}", told, labels, registry=registry, buckets=buckets)

        def gauge(name: str, told: str) -> Gauge:
            return Gauge(f"throttlekit_{name}", told, limit, registry=registry, multiprocess_mode="mostrecent")

        self.plugins: set[PrometheusMetrics] = set()
        self.shared = "PROMETHEUS_MULTIPROC_DIR" in os.environ or "prometheus_multiproc_dir" in os.environ
        registry.register(_First(self))
        limit = ("limit", "tier")
        self.decisions = counter(
            "decisions",
            "Decisions: all limits of a job that may run, the one that denies.",
            *limit,
            "outcome",
            "reason",
        )
        self.units = counter("units", "Units charged.", *limit)
        self.wait = histogram("wait_seconds", "From first denial to start, of jobs that were denied.", waits, *limit)
        self.deferrals = histogram("job_deferrals", "Deferrals until the start, of jobs that were.", DEFERRALS, *limit)
        self.line_end = gauge("line_end_timestamp_seconds", "When the slot that was given last will have come.")
        self.paused_until = gauge("paused_until_timestamp_seconds", "Until when nobody passes. Past: it is not paused.")
        self.holders = gauge("holders", "Slots of a concurrency limit that are held, fleet-wide.")
        self.rate = gauge("limit_rate", "What the limit allows, in units per second.")
        self.slots = gauge("limit_slots", "What the concurrency limit allows.")
        self.leases_lost = counter("leases_lost", "Slots that a job lost while it ran.", *limit)
        self.store_errors = counter("store_errors", "Calls decided without the store.", "error", "outcome")
        self.store_seconds = histogram("store_seconds", f"What the store took, of one call in {TIMED}.", STORE_SECONDS)

    def write(self, tally: Tally) -> None:
        self.written(tally).write(tally)

    def written(self, tally: Tally) -> _Written:
        if tally.handed_on is None:
            tally.handed_on = _Written(self, tally)
        written: _Written = tally.handed_on
        return written


class _First:
    """A collector that comes before the metrics: it brings them up to date, and has none of its own."""

    def __init__(self, families: _Families) -> None:
        self._families = families

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        for plugin in list(self._families.plugins):
            plugin.each(None, self._families.write)
        return []


class _Made:
    """The families of each registry: it takes them once."""

    def __init__(self) -> None:
        self._of: WeakKeyDictionary[CollectorRegistry, _Families] = WeakKeyDictionary()
        self._making = threading.Lock()
        renew_lock_after_fork(self, "_making")

    def of(self, registry: CollectorRegistry, waits: Sequence[float]) -> _Families:
        with self._making:
            if registry not in self._of:
                self._of[registry] = _Families(registry, waits)
            return self._of[registry]


_made = _Made()


class _Written:
    """What the registry holds of one tally by now. Labels are looked up once: that costs as much as to count."""

    def __init__(self, families: _Families, tally: Tally) -> None:
        self._families = families
        self._labels = (tally.name, tally.tier)
        self._values: dict[tuple[str, ...], float] = {}
        self._children: dict[tuple[str, ...], Any] = {}

    def write(self, tally: Tally) -> None:
        for outcome, counts in tally.outcomes():
            for reason, count in counts.items():
                self._count(count, "decisions", outcome, reason)
        self._count(tally.units, "units")
        self._set(tally.line_end, "line_end")
        self._set(tally.paused_until, "paused_until")
        limit = tally.limit
        if isinstance(limit, Concurrency):
            self._set(limit.amount, "slots")
            self._count(tally.lost, "leases_lost")
            # The same number once more is news, where others have written since.
            if self._changed(tally.seen, "seen") is not None:
                self.child("holders").set(tally.holders)
        elif limit is not None:
            self._set(limit.amount * 1_000_000 / limit.period_us, "rate")

    def _count(self, value: int, *of: str) -> None:
        more = self._changed(value, *of)
        if more is not None:
            self.child(*of).inc(more)

    def _set(self, value: float, *of: str) -> None:
        if self._changed(value, *of) is not None:
            self.child(*of).set(value)

    def _changed(self, value: float, *of: str) -> float | None:
        """By how much; None: it has not."""
        known = self._values.get(of)
        if known == value:
            return None
        self._values[of] = value
        return value - (known or 0)

    @cached_property
    def wait(self) -> Histogram:
        return self._families.wait.labels(*self._labels)

    @cached_property
    def deferrals(self) -> Histogram:
        return self._families.deferrals.labels(*self._labels)

    def child(self, family: str, *labels: str) -> Any:
        of = (family, *labels)
        if of not in self._children:
            self._children[of] = getattr(self._families, family).labels(*self._labels, *labels)
        return self._children[of]
