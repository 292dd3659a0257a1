"""The OpenTelemetry plugin: the values of its instruments, and the event that a deferral adds to the current span."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer

from throttlekit import Concurrency, ConfigurationError, Job, Limiter, TokenBucket
from throttlekit.adapter import decision_from_receipt, receipt, running
from throttlekit.hookspecs import RateLimitReceived, SlotLost, StoreFailed
from throttlekit.metrics._tally import MAX_KEPT
from throttlekit.metrics.opentelemetry import OpenTelemetryMetrics
from throttlekit.stores import MemoryStore
from throttlekit.testing import FakeClock

LIMIT = TokenBucket("partner", "10/s", burst=1, key="{account}")
WIDE = TokenBucket("wide", "100/s")
SLOTS = Concurrency("slots", 2)
JOB = Job(kwargs={"account": "secret"})
WAITING = Job(id="1", kwargs=JOB.kwargs)


class Site:
    """A limiter with the plugin, and the metrics collected from it."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider([self._reader])
        self.metrics = OpenTelemetryMetrics(meter_provider=self.provider)
        self.clock = FakeClock()
        self.limiter = Limiter(MemoryStore(clock_us=self.clock), plugins=[self.metrics])

    def metrics_now(self) -> list[Any]:
        data = self._reader.get_metrics_data()
        scopes = [scope for resource in (data.resource_metrics if data else ()) for scope in resource.scope_metrics]
        return [metric for scope in scopes for metric in scope.metrics]

    def points(self, name: str) -> list[Any]:
        return [point for metric in self.metrics_now() if metric.name == name for point in metric.data.data_points]

    def collected(self) -> dict[str, Any]:
        """Return each number by its instrument and attributes; for a histogram, the count and the sum."""
        found: dict[str, Any] = {}
        for metric in self.metrics_now():
            for point in metric.data.data_points:
                labels = ",".join(f"{name}={value}" for name, value in sorted(dict(point.attributes).items()))
                value = (point.count, point.sum) if hasattr(point, "count") else point.value
                found[f"{metric.name.removeprefix('throttlekit.')}{{{labels}}}"] = value
        return found


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.provider.shutdown()


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracer(spans: InMemorySpanExporter) -> Tracer:
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    return tracers.get_tracer("test")


def test_decisions_and_units_are_counted_by_limit(site: Site) -> None:
    """A grant counts for all limits of the job, a denial for the limit that denied the job."""
    for _ in range(3):
        site.limiter.acquire(LIMIT, WIDE, job=JOB)
    found = site.collected()
    assert found["decisions{limit=partner,outcome=allowed,reason=allowed}"] == 1
    assert found["decisions{limit=partner,outcome=denied,reason=exhausted}"] == 2
    assert found["decisions{limit=wide,outcome=allowed,reason=allowed}"] == 1
    assert found["units{limit=wide}"] == 1
    assert found["limit.rate{limit=wide}"] == 100
    assert found["waitlist{limit=partner}"] > 0
    assert not any("secret" in name for name in found)


def test_waits_are_observed_at_the_start(site: Site) -> None:
    """When a job starts after denials, its wait and its deferrals are recorded."""
    site.limiter.acquire(LIMIT, job=JOB)
    site.limiter.acquire(LIMIT, job=WAITING)
    site.clock.advance(0.5)
    site.limiter.acquire(LIMIT, job=WAITING)
    found = site.collected()
    assert found["wait{limit=partner}"] == (1, pytest.approx(0.5))
    assert found["deferrals{limit=partner}"] == (1, 1)
    assert found["store{}"][0] == 1


def test_a_wait_is_recorded_with_the_span_of_its_job(site: Site) -> None:
    """
    Waits are added to the histogram when metrics are collected. The exemplar still names the span of the job's start.
    """
    site.limiter.acquire(LIMIT, job=JOB)
    site.limiter.acquire(LIMIT, job=WAITING)
    site.clock.advance(0.5)
    with TracerProvider().get_tracer("jobs").start_as_current_span("job") as span:
        site.limiter.acquire(LIMIT, job=WAITING)
    [point] = site.points("throttlekit.wait")
    assert [each.span_id for each in point.exemplars] == [span.get_span_context().span_id]


def test_every_wait_is_recorded_if_metrics_are_not_collected(site: Site) -> None:
    """If there are more waits than the plugin keeps until a collection, each new wait records the oldest one."""
    for _ in range(MAX_KEPT + 10):
        site.clock.advance(1)
        site.limiter.acquire(LIMIT, job=JOB)
        site.limiter.acquire(LIMIT, job=WAITING)
        site.clock.advance(0.5)
        site.limiter.acquire(LIMIT, job=WAITING)
    count, total = site.collected()["wait{limit=partner}"]
    assert (count, total) == (MAX_KEPT + 10, pytest.approx(0.5 * (MAX_KEPT + 10)))
    assert site.collected()["wait{limit=partner}"] == (count, total)


def test_corrections_and_429s_are_counted(site: Site) -> None:
    """The metrics count what `settle` returned, and each 429 that paused a limit."""
    site.limiter.settle(site.limiter.acquire(WIDE, cost=10), actual=4)
    site.limiter.events.rate_limited.emit(RateLimitReceived(JOB, WIDE, 30.0))
    found = site.collected()
    assert (found["settled.units{kind=returned,limit=wide}"], found["downstream.429{limit=wide}"]) == (6, 1)


def test_holders_pauses_errors_and_lost_leases_are_exported(site: Site) -> None:
    """The metrics show slots and their holders, how long a pause lasts, calls without a store, and lost leases."""
    decision = site.limiter.acquire(SLOTS, job=JOB)
    site.limiter.pause(WIDE, 60)
    site.limiter.acquire(WIDE)
    site.metrics.throttlekit_slot_lost(SlotLost(decision, SLOTS))
    site.metrics.throttlekit_store_failed(StoreFailed("TimeoutError", (WIDE,), "closed", decision, None))
    found = site.collected()
    assert (found["holders{limit=slots}"], found["limit.slots{limit=slots}"]) == (1, 2)
    assert 50 < found["paused{limit=wide}"] < 70
    assert found["leases.lost{limit=slots}"] == 1
    assert found["store.errors{error=TimeoutError,outcome=closed}"] == 1


def test_a_deferral_is_an_event_of_the_current_span(site: Site, spans: InMemorySpanExporter, tracer: Tracer) -> None:
    """A span that is recorded gets an event for the deferral, with the limit and the reason, but never the key."""
    for number in range(4):
        with tracer.start_as_current_span("job"):
            site.limiter.acquire(LIMIT, job=Job(id=str(number), kwargs=JOB.kwargs))
    admitted, *denied = spans.get_finished_spans()
    assert not admitted.events
    events = [event for span in denied for event in span.events]
    assert [event.name for event in events] == ["throttlekit.deferred"] * 3
    for position, event in enumerate(events):
        attributes = {name.removeprefix("throttlekit."): value for name, value in (event.attributes or {}).items()}
        assert position / 10 < attributes.pop("delay") <= (position + 1) / 10
        assert attributes == {
            "limit": "partner",
            "reason": "exhausted",
            "position": position,
            "deferrals": 1,
            "waited": 0.0,
        }


def test_the_span_of_a_job_has_its_waiting_time(site: Site, spans: InMemorySpanExporter, tracer: Tracer) -> None:
    """The span has the limit and the number of deferrals, but never the key. A job that has not waited adds nothing."""
    for job in (JOB, WAITING):
        site.limiter.acquire(LIMIT, job=job)
    site.clock.advance(2.5)
    for name, job in (("waited", WAITING), ("at once", Job(id="2", kwargs={"account": "other"}))):
        with tracer.start_as_current_span(name):
            decision = site.limiter.acquire(LIMIT, job=job)
            assert decision.allowed
            with running(site.limiter, decision, job):
                pass
    waited, at_once = spans.get_finished_spans()
    attributes = dict(waited.attributes or {})
    assert attributes.pop("throttlekit.waited") == pytest.approx(2.5, abs=0.1)
    assert attributes == {"throttlekit.limit": "partner", "throttlekit.deferrals": 1}
    assert not at_once.attributes


def test_the_span_of_a_job_names_the_limit_for_which_it_waited(
    site: Site, spans: InMemorySpanExporter, tracer: Tracer
) -> None:
    """
    The span has the limit for which the job waited, with its tier, also in another process: not the first limit, nor
    the one with the fewest units left.
    """
    tiered = TokenBucket("plan", {"pro": "6/minute", "free": "1/minute"}, tier="{account}", burst={"pro": 4, "free": 1})
    day, job = TokenBucket("day", "2/hour", burst=2), Job(id="2", kwargs={"account": "pro"})
    site.limiter.acquire(tiered, job=Job(kwargs=job.kwargs), cost=4)
    assert site.limiter.acquire(day, tiered, job=job).limit.name == "plan"
    site.clock.advance(41)
    decision = site.limiter.acquire(day, tiered, job=job)
    assert decision.limit.name == "day"
    for each in (decision, decision_from_receipt(receipt(decision))):
        with tracer.start_as_current_span("job"), running(site.limiter, each, job):
            pass
    expected = {"throttlekit.limit": "plan", "throttlekit.tier": "pro", "throttlekit.deferrals": 1}
    for span in spans.get_finished_spans():
        attributes = dict(span.attributes or {})
        assert attributes.pop("throttlekit.waited") == pytest.approx(41, abs=0.1)
        assert attributes == expected


def test_the_span_of_a_job_has_no_wait_that_is_unknown(site: Site, spans: InMemorySpanExporter, tracer: Tracer) -> None:
    """While the store is unavailable, its clock does not tell for how long the job has waited: no attribute is set."""
    decision = replace(site.limiter.acquire(WIDE, job=JOB), reason="store unavailable", deferrals=1)
    with tracer.start_as_current_span("job"), running(site.limiter, decision, JOB):
        pass
    assert [dict(span.attributes or {}) for span in spans.get_finished_spans()] == [{}]


def test_a_wrong_provider_is_a_configuration_error() -> None:
    """A value that is not a provider raises when the plugin is created."""
    wrong: Any = "otlp"
    with pytest.raises(ConfigurationError, match="meter_provider"):
        OpenTelemetryMetrics(meter_provider=wrong)


def test_without_an_sdk_nothing_happens() -> None:
    """With the API alone, the plugin exports nothing and raises no error."""
    limiter = Limiter(plugins=[OpenTelemetryMetrics()])
    limiter.acquire(SLOTS, job=JOB)
    assert limiter.acquire(LIMIT, job=JOB).allowed


def test_a_missing_api_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without opentelemetry-api the plugin raises when it is created, and the message names what to install."""
    monkeypatch.setattr("importlib.util.find_spec", lambda *_: None)
    with pytest.raises(ImportError, match=r"pip install 'throttlekit-jobs\[opentelemetry\]'"):
        OpenTelemetryMetrics()
