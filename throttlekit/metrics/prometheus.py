"""
Metrics for Prometheus: `Limiter("redis://…", plugins=[PrometheusMetrics()])`.

docs/metrics.md lists every metric, and describes how the workers of each framework serve them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from throttlekit._core.limit.base import Limit
from throttlekit._util.fork_safety import renew_lock_after_fork
from throttlekit.hookspecs import StoreFailed, hookimpl
from throttlekit.metrics._tally import (
    DECISIONS_PER_SAMPLE,
    DEFERRAL_BUCKETS,
    MAX_LIMITS,
    STORE_BUCKETS,
    WAIT_BUCKETS,
    CountingPlugin,
    Tally,
    bucket_bounds,
    require_module,
)

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric

__all__ = ["PrometheusMetrics"]


class PrometheusMetrics(CountingPlugin):
    """
    A plugin that records the metrics of docs/metrics.md in a registry of prometheus-client.

    It imports prometheus-client at the first decision, because `PROMETHEUS_MULTIPROC_DIR` must be set before the
    import, and Dramatiq's own middleware sets it when a worker process boots. Keys never become labels.

    Args:
        registry: The registry for the metrics. Default: `prometheus_client.REGISTRY`. Several plugins with one
            registry count into the same metrics, with the buckets of the first.
        buckets: The bounds of the histogram of waits, in seconds.
        max_limits: The number of limits (or tiers, of a limit with tiers) counted by name. All others count as "other".

    Raises:
        ConfigurationError: An argument can never work.
        ImportError: prometheus-client is not installed; the message names the extra.
    """

    def __init__(
        self,
        *,
        registry: CollectorRegistry | None = None,
        buckets: Sequence[float] = WAIT_BUCKETS,
        max_limits: int = MAX_LIMITS,
    ) -> None:
        require_module("prometheus_client", "prometheus")
        super().__init__(max_limits)
        self._registry = registry
        self._buckets = bucket_bounds(buckets)
        self._loaded: _Families | None = None
        self.export_at_once = True  # until the first decision shows whether another process collects

    @hookimpl
    def throttlekit_store_failed(self, event: StoreFailed) -> None:
        self._families.store_errors.labels(event.error, event.outcome).inc()

    def record_wait(self, tally: Tally, waited: float, deferrals: int, context: Any) -> None:
        families = self._families
        if tally.export is None:  # created under the lock: a second one would export all counts again
            self.for_each_tally(None, families.write)
        export = families.export_of(tally)
        export.child("wait").observe(waited)
        if deferrals:
            export.child("deferrals").observe(deferrals)

    def record_store(self, seconds: float, context: Any) -> None:
        self._families.store_seconds.observe(seconds)

    def export(self, limits: Iterable[Limit]) -> None:
        families = self._families
        if families.multiprocess:
            self.for_each_tally(limits, families.write)
            self.record_observed()
        else:
            self.export_at_once = False

    @property
    def _families(self) -> _Families:
        if self._loaded is None:
            import prometheus_client

            registry = prometheus_client.REGISTRY if self._registry is None else self._registry
            self._loaded = _cache.get(registry, self._buckets)
            self._loaded.plugins.add(self)
        return self._loaded


class _Families:
    """
    All metrics of one registry. A gauge has the value that any process set last.

    Usually the counts are written when this process's metrics are collected. In the multi-process mode of
    prometheus-client another process collects, so counts are written after each decision.
    """

    def __init__(self, registry: CollectorRegistry, waits: Sequence[float]) -> None:
        from prometheus_client import Counter, Gauge, Histogram

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"throttlekit_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
            return Histogram(f"throttlekit_{name}", text, labels, registry=registry, buckets=buckets)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"throttlekit_{name}", text, limit, registry=registry, multiprocess_mode="mostrecent")

        self.plugins: set[PrometheusMetrics] = set()
        self.multiprocess = "PROMETHEUS_MULTIPROC_DIR" in os.environ or "prometheus_multiproc_dir" in os.environ
        registry.register(_UpdateCollector(self))
        limit = ("limit", "tier")
        self.decisions = counter(
            "decisions",
            "Decisions: an allowed job counts for all its limits, a denied one for the limit that denied it.",
            *limit,
            "outcome",
            "reason",
        )
        self.units = counter("units", "Units charged.", *limit)
        self.settled = counter(
            "settled_units", "Units that settle() refunded (returned) or charged in addition (extra).", *limit, "kind"
        )
        self.downstream_429 = counter("downstream_429", "Jobs that received a 429, and paused the limit.", *limit)
        self.wait = histogram(
            "wait_seconds", "Time from the first denial to the start, of jobs that were denied.", waits, *limit
        )
        self.deferrals = histogram(
            "job_deferrals", "Deferrals before the start, of jobs that were denied.", DEFERRAL_BUCKETS, *limit
        )
        self.waitlist_end = gauge(
            "waitlist_end_timestamp_seconds",
            "When the last waiting job should be admitted; with keys, of the longest waitlist.",
        )
        self.paused_until = gauge(
            "paused_until_timestamp_seconds", "When the pause ends. Past: the limit is not paused."
        )
        self.holders = gauge("holders", "Slots of a concurrency limit that are held, in the whole fleet.")
        self.rate = gauge("limit_units_per_second", "The rate of the limit; with keys, of each key.")
        self.slots = gauge("limit_slots", "The slots of the concurrency limit.")
        self.leases_lost = counter("leases_lost", "Slots that a job lost while it ran.", *limit)
        self.store_errors = counter("store_errors", "Calls that were decided without the store.", "error", "outcome")
        self.store_seconds = histogram(
            "store_seconds", f"Response time of the store, for one decision in {DECISIONS_PER_SAMPLE}.", STORE_BUCKETS
        )

    def write(self, tally: Tally) -> None:
        self.export_of(tally).write(tally)

    def export_of(self, tally: Tally) -> _Export:
        if tally.export is None:
            tally.export = _Export(self, tally)
        export: _Export = tally.export
        return export


class _UpdateCollector:
    """A collector without metrics. It is called before the others, and writes the counts into them."""

    def __init__(self, families: _Families) -> None:
        self._families = families

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        for plugin in list(self._families.plugins):
            plugin.for_each_tally(None, self._families.write)
            plugin.record_observed()
        return []


class _FamiliesCache:
    """The families of each registry, because a registry accepts each name only once."""

    def __init__(self) -> None:
        self._families: WeakKeyDictionary[CollectorRegistry, _Families] = WeakKeyDictionary()
        self._lock = threading.Lock()
        renew_lock_after_fork(self, "_lock")

    def get(self, registry: CollectorRegistry, waits: Sequence[float]) -> _Families:
        with self._lock:
            if registry not in self._families:
                self._families[registry] = _Families(registry, waits)
            return self._families[registry]


_cache = _FamiliesCache()


class _Export:
    """The exported values of one tally. Labels are looked up only once: a lookup costs as much as a count."""

    def __init__(self, families: _Families, tally: Tally) -> None:
        self._families = families
        self._labels = (tally.name, tally.tier)
        self._values: dict[tuple[str, ...], float] = {}
        self._children: dict[tuple[str, ...], Any] = {}

    def write(self, tally: Tally) -> None:
        for name, labels, count in tally.counters():
            increase = self._take_change(count, name, *labels.values())
            if increase is not None:
                self.child(name, *labels.values()).inc(increase)
        for name, value in tally.gauges():
            # An unchanged number of holders is written too: another process may have set the gauge since.
            changes = tally.holder_updates if name == "holders" else value
            if self._take_change(changes, name) is not None:
                self.child(name).set(value)

    def _take_change(self, value: float, *name: str) -> float | None:
        """Return the change since the last call, or None if there is none."""
        before = self._values.get(name)
        if before == value:
            return None
        self._values[name] = value
        return value - (before or 0)

    def child(self, family: str, *labels: str) -> Any:
        """Return the metric of *family* with the labels of the tally, and its own *labels*."""
        name = (family, *labels)
        if name not in self._children:
            self._children[name] = getattr(self._families, family).labels(*self._labels, *labels)
        return self._children[name]
