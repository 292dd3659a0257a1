"""
Counts for OpenTelemetry what limits decide: `Limiter("redis://…", plugins=[OpenTelemetryMetrics()])`.

docs/metrics.md names every instrument.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from throttlekit._core.algorithms.concurrency import Concurrency
from throttlekit.errors import ConfigurationError
from throttlekit.hookspecs import Decided, Deferred, StoreFailed, hookimpl
from throttlekit.metrics._tally import DEFERRALS, MOST_LIMITS, STORE_SECONDS, TIMED, WAITS, Counting, Tally, needs

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation

__all__ = ["OpenTelemetryMetrics"]

_Numbers = Iterator[tuple[float, dict[str, str]]]


class OpenTelemetryMetrics(Counting):
    """
    A plugin that keeps the metrics of docs/metrics.md in instruments of OpenTelemetry, and tells the span that is
    current, if it is recorded, of each deferral. It needs the API alone: where numbers go is up to your SDK.

    Keys never become attributes.

    Args:
        meter_provider: Where the instruments are made. Default: the global one, which may be set later.
        max_limits: How many limits (of one with tiers: tiers) are told apart. All beyond them count as "other".

    Raises:
        ConfigurationError: An argument can never work.
        ImportError: opentelemetry-api is missing; the message names the extra.
    """

    def __init__(self, *, meter_provider: MeterProvider | None = None, max_limits: int = MOST_LIMITS) -> None:
        needs("opentelemetry.metrics", "opentelemetry")
        from opentelemetry import metrics, trace

        if meter_provider is not None and not isinstance(meter_provider, metrics.MeterProvider):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"meter_provider= takes a MeterProvider, not {type(meter_provider).__name__}")
        super().__init__(max_limits)
        meter = metrics.get_meter("throttlekit", meter_provider=meter_provider)
        self._span = trace.get_current_span
        self._observe(meter)
        histogram, counter = meter.create_histogram, meter.create_counter
        self._wait = histogram(
            "throttlekit.wait", "s", "From first denial to start.", explicit_bucket_boundaries_advisory=WAITS
        )
        self._deferrals = histogram(
            "throttlekit.deferrals", "{deferral}", "Until the start.", explicit_bucket_boundaries_advisory=DEFERRALS
        )
        told = f"What the store took, of one call in {TIMED}."
        self._store = histogram("throttlekit.store", "s", told, explicit_bucket_boundaries_advisory=STORE_SECONDS)
        self._store_errors = counter("throttlekit.store.errors", "{call}", "Calls decided without the store.")

    @hookimpl
    def throttlekit_deferred(self, event: Deferred) -> None:
        span = self._span()
        if span.is_recording():
            decision = event.decision
            attributes: dict[str, str | float] = {
                **_labels(decision.limit.name, decision.limit.of_tier),
                "reason": decision.reason,
                "delay": decision.delay,
                "deferrals": event.deferrals,
                "waited": event.waited,
            }
            span.add_event("throttlekit.deferred", {f"throttlekit.{name}": told for name, told in attributes.items()})

    @hookimpl
    def throttlekit_store_failed(self, event: StoreFailed) -> None:
        self._store_errors.add(1, {"error": event.error, "outcome": event.outcome})

    def started(self, tally: Tally, event: Decided) -> None:
        labels = _labels(tally.name, tally.tier)
        self._wait.record(event.waited, labels)
        if event.deferrals:
            self._deferrals.record(event.deferrals, labels)

    def took(self, seconds: float) -> None:
        self._store.record(seconds)

    def _observe(self, meter: Meter) -> None:
        """What is counted in plain numbers is read when it is collected."""
        counter, gauge = meter.create_observable_counter, meter.create_observable_gauge
        counter("throttlekit.decisions", [self._each(_decisions)], "{decision}", "Decisions, by limit and outcome.")
        counter("throttlekit.units", [self._each(_units)], "{unit}", "Units charged.")
        counter("throttlekit.leases.lost", [self._each(_lost)], "{slot}", "Slots that a job lost while it ran.")
        gauge("throttlekit.line", [self._each(_line)], "s", "Until the slot that was given last.")
        gauge("throttlekit.paused", [self._each(_paused)], "s", "For how long nobody will pass.")
        gauge("throttlekit.holders", [self._each(_holders)], "{slot}", "Slots that are held, fleet-wide.")
        gauge("throttlekit.limit.rate", [self._each(_rate)], "{unit}/s", "What the limit allows.")
        gauge("throttlekit.limit.slots", [self._each(_slots)], "{slot}", "What the concurrency limit allows.")

    def _each(self, numbers: Callable[[Tally], _Numbers]) -> Callable[[CallbackOptions], list[Observation]]:
        from opentelemetry.metrics import Observation

        def observe(options: CallbackOptions) -> list[Observation]:
            seen: list[Observation] = []
            self.each(None, lambda tally: seen.extend(Observation(*each) for each in numbers(tally)))
            return seen

        return observe


def _labels(limit: str, tier: str | None) -> dict[str, str]:
    return {"limit": limit, "tier": tier} if tier else {"limit": limit}


def _decisions(tally: Tally) -> _Numbers:
    for outcome, counts in tally.outcomes():
        for reason, count in counts.items():
            yield count, {**_labels(tally.name, tally.tier), "outcome": outcome, "reason": reason}


def _units(tally: Tally) -> _Numbers:
    yield tally.units, _labels(tally.name, tally.tier)


def _line(tally: Tally) -> _Numbers:
    yield max(0.0, tally.line_end - time.time()), _labels(tally.name, tally.tier)


def _paused(tally: Tally) -> _Numbers:
    yield max(0.0, tally.paused_until - time.time()), _labels(tally.name, tally.tier)


def _rate(tally: Tally) -> _Numbers:
    if tally.limit is not None and not isinstance(tally.limit, Concurrency):
        yield tally.limit.amount * 1_000_000 / tally.limit.period_us, _labels(tally.name, tally.tier)


def _lost(tally: Tally) -> _Numbers:
    if isinstance(tally.limit, Concurrency):
        yield tally.lost, _labels(tally.name, tally.tier)


def _holders(tally: Tally) -> _Numbers:
    if isinstance(tally.limit, Concurrency):
        yield tally.holders, _labels(tally.name, tally.tier)


def _slots(tally: Tally) -> _Numbers:
    if isinstance(tally.limit, Concurrency):
        yield tally.limit.amount, _labels(tally.name, tally.tier)
