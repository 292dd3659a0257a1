"""
Gauges of the whole fleet for Prometheus. One process serves them, and reads them from the store at each scrape.

`PrometheusMetrics` exports the decisions of one worker. Only the store has the number of waiting jobs, and the use of a
limit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from throttlekit._wiring import wiring_of
from throttlekit.errors import ConfigurationError, StoreUnavailable
from throttlekit.fleet.browse import keys_by_limit
from throttlekit.fleet.definitions import by_name, is_steady, per_minute
from throttlekit.fleet.snapshot import Key, Known, look
from throttlekit.limiter import Limiter
from throttlekit.metrics._tally import MAX_LIMITS, require_module

if TYPE_CHECKING:
    from prometheus_client.core import GaugeMetricFamily, Metric

__all__ = ["FleetMetrics"]

_KEYS = 100


class FleetMetrics:
    """
    A collector for a registry of prometheus-client: `REGISTRY.register(FleetMetrics("redis://…/1"))`.

    Register it in one process of the fleet. Each scrape reads the values of `throttlekit top`, by short commands for
    any number of keys. Keys never become labels: a limit with keys has the value of its worst key, and the sum of its
    waiting jobs. If the store is unavailable, a scrape has no values for these metrics.

    Args:
        store: The store's URL, or a limiter.
        max_limits: The number of limits (or tiers, of a limit with tiers) to export: those with the most waiting jobs.

    Raises:
        ConfigurationError: The fleet does not share the store.
        ImportError: prometheus-client is not installed; the message names the extra.
    """

    def __init__(self, store: str | Limiter, *, max_limits: int = MAX_LIMITS) -> None:
        require_module("prometheus_client", "prometheus")
        limiter = store if isinstance(store, Limiter) else Limiter(store)
        if not wiring_of(limiter).stores.shared.shared:
            raise ConfigurationError("a limiter in memory has no fleet: name the Redis that the workers use")
        self._limiter, self._max_limits = limiter, max_limits

    def describe(self) -> Iterable[Metric]:
        return _Families().all

    def collect(self) -> Iterable[Metric]:
        families = _Families()
        try:
            fleet = look(wiring_of(self._limiter).stores.shared, most=_KEYS)
        except StoreUnavailable:
            return families.all
        keys = keys_by_limit(fleet)
        # The last reported definition of each limit and tier: two definitions would export the series twice.
        newest = [max(same, key=lambda each: each.reported) for same in by_name(fleet.limits).values()]
        in_use = sorted(newest, key=lambda each: -sum(key.waiting for key in keys.get(each.id, ())))
        for known in in_use[: self._max_limits]:
            families.add(known, keys.get(known.id, []))
        return families.all


class _Families:
    def __init__(self) -> None:
        from prometheus_client.core import GaugeMetricFamily

        def gauge(name: str, text: str) -> GaugeMetricFamily:
            family = GaugeMetricFamily(f"throttlekit_{name}", text, labels=("limit", "tier"))
            self.all.append(family)
            return family

        self.all: list[Metric] = []
        self._waiting = gauge(
            "waiting_jobs", "Waiting jobs, approximately; with keys, the sum of the most pressing keys."
        )
        self._used = gauge("used_ratio", "Units in use now, as a share of the capacity; with keys, of the fullest key.")
        self._rate = gauge(
            "rate_used_ratio",
            "Units of the last minute, as a share of what the rate allows; with keys, of the key with the most units.",
        )
        self._slowed = gauge(
            "slowed_to_ratio",
            "The share of the rate or the slots that adapt= or the partner's headers leave now; the slowest key.",
        )

    def add(self, known: Known, keys: list[Key]) -> None:
        labels, limit = (known.limit.name, known.limit.of_tier or ""), known.limit
        self._waiting.add_metric(labels, sum(key.waiting for key in keys))
        if keys:
            self._used.add_metric(labels, max(key.used / (key.capacity or 1) for key in keys))
            self._slowed.add_metric(labels, min(map(_slow_ratio, keys)))
        if limit.period_us:
            if not is_steady(limit, known.minute):
                return  # the rate changed within the minute, so any ratio would be wrong
            units = max((key.minute.used for key in keys), default=0) if known.has_keys else known.minute.used
            self._rate.add_metric(labels, units / per_minute(limit))


def _slow_ratio(key: Key) -> float:
    limit = key.limit
    if not limit.period_us:
        return key.capacity / limit.capacity
    return 1.0 if key.slowed is None else min(1.0, key.slowed.rate * limit.period_us / limit.amount / 1_000_000)
