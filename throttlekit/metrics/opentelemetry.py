"""
Metrics for OpenTelemetry: `Limiter("redis://…", plugins=[OpenTelemetryMetrics()])`.

docs/metrics.md names every instrument.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from throttlekit._core.decision import Decision
from throttlekit._core.limit.base import Limit
from throttlekit.errors import ConfigurationError
from throttlekit.hookspecs import Deferred, Started, StoreFailed, hookimpl
from throttlekit.metrics._tally import (
    DECISIONS_PER_SAMPLE,
    DEFERRAL_BUCKETS,
    MAX_LIMITS,
    STORE_BUCKETS,
    WAIT_BUCKETS,
    CountingPlugin,
    Tally,
    limit_waited_for,
    require_module,
)

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import CallbackOptions, Histogram, Meter, MeterProvider, Observation

__all__ = ["OpenTelemetryMetrics"]


class OpenTelemetryMetrics(CountingPlugin):
    """
    A plugin that records the metrics of docs/metrics.md in instruments of OpenTelemetry. If the current span is
    recorded, the plugin also adds an event for each deferral, and sets attributes when the body of a job that has
    waited begins. It needs only the API: the program's SDK exports the numbers.

    Keys never become attributes.

    Args:
        meter_provider: The provider of the instruments. Default: the global provider, which may be set later.
        max_limits: The number of limits (or tiers, of a limit with tiers) counted by name. All others count as "other".

    Raises:
        ConfigurationError: An argument can never work.
        ImportError: opentelemetry-api is not installed; the message names the extra.
    """

    def __init__(self, *, meter_provider: MeterProvider | None = None, max_limits: int = MAX_LIMITS) -> None:
        require_module("opentelemetry.metrics", "opentelemetry")
        from opentelemetry import context, metrics, trace

        if meter_provider is not None and not isinstance(meter_provider, metrics.MeterProvider):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"meter_provider= takes a MeterProvider, not {type(meter_provider).__name__}")
        super().__init__(max_limits)
        meter = metrics.get_meter("throttlekit", meter_provider=meter_provider)
        self._span = trace.get_current_span
        self.context = context.get_current  # it contains the job's span, for exemplars
        self._add_instruments(meter)

        def histogram(name: str, unit: str, description: str, buckets: Sequence[float]) -> Histogram:
            return meter.create_histogram(name, unit, description, explicit_bucket_boundaries_advisory=buckets)

        store = f"Response time of the store, for one decision in {DECISIONS_PER_SAMPLE}."
        self._wait = histogram("throttlekit.wait", "s", "Time from the first denial to the start.", WAIT_BUCKETS)
        self._deferrals = histogram(
            "throttlekit.deferrals", "{deferral}", "Deferrals before the start.", DEFERRAL_BUCKETS
        )
        self._store = histogram("throttlekit.store", "s", store, STORE_BUCKETS)
        self._store_errors = meter.create_counter(
            "throttlekit.store.errors", "{call}", "Calls that were decided without the store."
        )

    @hookimpl
    def throttlekit_started(self, event: Started) -> None:
        decision = event.decision
        if decision.waited and (span := self._span()).is_recording():
            span.set_attributes(_wait(limit_waited_for(decision), decision))

    @hookimpl
    def throttlekit_deferred(self, event: Deferred) -> None:
        span, decision = self._span(), event.decision
        if span.is_recording():
            attributes = {
                **_wait(decision.limit, decision),
                "throttlekit.reason": decision.reason.replace(" ", "_"),
                "throttlekit.delay": decision.delay,
            }
            if decision.position is not None:
                attributes["throttlekit.position"] = decision.position
            span.add_event("throttlekit.deferred", attributes)

    @hookimpl
    def throttlekit_store_failed(self, event: StoreFailed) -> None:
        self._store_errors.add(1, {"error": event.error, "outcome": event.outcome})

    def record_wait(self, tally: Tally, waited: float, deferrals: int, context: Context) -> None:
        labels = _labels(tally.name, tally.tier)
        self._wait.record(waited, labels, context)
        if deferrals:
            self._deferrals.record(deferrals, labels, context)

    def record_store(self, seconds: float, context: Context) -> None:
        self._store.record(seconds, context=context)

    def _add_instruments(self, meter: Meter) -> None:
        """Create the instruments that read the tallies when metrics are collected."""

        def counter(name: str, count: str, unit: str, text: str) -> None:
            meter.create_observable_counter(f"throttlekit.{name}", [self._reader(count)], unit, text)

        def gauge(name: str, value: str, unit: str, text: str) -> None:
            meter.create_observable_gauge(f"throttlekit.{name}", [self._reader(value)], unit, text)

        counter("decisions", "decisions", "{decision}", "Decisions, by limit and outcome.")
        counter("units", "units", "{unit}", "Units charged.")
        counter("settled.units", "settled", "{unit}", "Units that settle() corrected.")
        counter("downstream.429", "downstream_429", "{job}", "Jobs that received a 429.")
        counter("leases.lost", "leases_lost", "{slot}", "Slots that a job lost while it ran.")
        gauge("waitlist", "waitlist_end", "s", "Time until the last waiting job should be admitted.")
        gauge("paused", "paused_until", "s", "Time until the pause ends.")
        gauge("holders", "holders", "{slot}", "Slots that are held, in the whole fleet.")
        gauge("limit.rate", "rate", "{unit}/s", "The rate of the limit.")
        gauge("limit.slots", "slots", "{slot}", "The slots of the concurrency limit.")

    def _reader(self, name: str) -> Callable[[CallbackOptions], list[Observation]]:
        """Return a function that reads the values *name* of all tallies; see `Tally.counters` and `Tally.gauges`."""
        from opentelemetry.metrics import Observation

        def read(options: CallbackOptions) -> list[Observation]:
            self.record_observed()  # the histograms are collected after these instruments
            found: list[Observation] = []

            def observe(tally: Tally) -> None:
                own = _labels(tally.name, tally.tier)
                values = ((value, labels) for each, labels, value in _values(tally) if each == name)
                found.extend(Observation(value, {**own, **labels}) for value, labels in values)

            self.for_each_tally(None, observe)
            return found

        return read


def _values(tally: Tally) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yield the name, the own labels and the value of each instrument. Points in time become the time until then."""
    yield from tally.counters()
    for name, value in tally.gauges():
        yield name, {}, max(0.0, value - time.time()) if name in ("waitlist_end", "paused_until") else value


def _labels(limit: str, tier: str | None) -> dict[str, str]:
    return {"limit": limit, "tier": tier} if tier else {"limit": limit}


def _wait(limit: Limit, decision: Decision) -> dict[str, str | float]:
    """Return how long a job has waited for *limit*, as attributes of a span or of an event."""
    return {
        **{f"throttlekit.{name}": value for name, value in _labels(limit.name, limit.of_tier).items()},
        "throttlekit.waited": decision.waited,
        "throttlekit.deferrals": decision.deferrals,
    }
