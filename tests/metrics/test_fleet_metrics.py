"""The gauges of the whole fleet, as Prometheus scrapes them."""

from __future__ import annotations

import contextlib

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from support.prometheus import samples
from support.servers.processes import patient
from throttlekit import Adapt, ByLatency, Concurrency, ConfigurationError, Job, Limiter, TokenBucket
from throttlekit.metrics.fleet import FleetMetrics
from throttlekit.metrics.prometheus import PrometheusMetrics

API = TokenBucket("api", "2/minute", burst=2)
TENANTS = TokenBucket("tenants", "6/minute", burst=2, key="{tenant}")
SLOTS = Concurrency("slots", 4)
OF_THE_FLEET = ("waiting_jobs", "used_ratio", "rate_used_ratio", "slowed_to_ratio")


def scraped(registry: CollectorRegistry) -> dict[str, float]:
    return samples(generate_latest(registry).decode())


def test_waiting_jobs_and_use_are_those_of_the_fleet(redis_url: str) -> None:
    """The gauges cover all processes, even if the process that serves them has made no decision."""
    with contextlib.closing(Limiter(patient(redis_url))) as limiter:
        for number in range(5):
            limiter.acquire(API, job=Job(id=str(number)))
        limiter.acquire(SLOTS)
    registry = CollectorRegistry()
    with contextlib.closing(Limiter(patient(redis_url))) as limiter:
        registry.register(FleetMetrics(limiter))
        found = scraped(registry)
    assert (found["waiting_jobs{limit=api}"], found["waiting_jobs{limit=slots}"]) == (3, 0)
    assert (found["used_ratio{limit=api}"], found["used_ratio{limit=slots}"]) == (1.0, 0.25)
    assert found["rate_used_ratio{limit=api}"] == 1.0
    assert "rate_used_ratio{limit=slots}" not in found
    assert (found["slowed_to_ratio{limit=api}"], found["slowed_to_ratio{limit=slots}"]) == (1.0, 1.0)


def test_the_remaining_part_of_a_slowed_limit_is_that_of_its_slowest_key(redis_url: str) -> None:
    """The metric is the part that the slowest key has left of its rate, or of its slots."""
    adapts = TokenBucket("adapts", "100/s", burst=1, key="{tenant}", adapt=Adapt("10/s"))
    slots = Concurrency("adaptive", 8, adapt=ByLatency(2))
    registry = CollectorRegistry()
    with contextlib.closing(Limiter(patient(redis_url))) as limiter:
        registry.register(FleetMetrics(limiter))
        for tenant in "ab":
            limiter.acquire(adapts, job=Job(id=tenant, kwargs={"tenant": tenant}))
        limiter.acquire(slots, job=Job(id="s"))
        limiter.report_overload(adapts, key="b")
        limiter.fleet.activity.report()  # type: ignore[union-attr]
        found = scraped(registry)
    assert 0.7 < found["slowed_to_ratio{limit=adapts}"] < 1
    assert found["slowed_to_ratio{limit=adaptive}"] == 0.25


def test_a_thousand_tenants_are_one_series_with_the_highest_value(redis_url: str) -> None:
    """No metric has a series for each key. The use is that of the key with the highest use, not a sum."""
    registry = CollectorRegistry()
    with contextlib.closing(Limiter(patient(redis_url), plugins=[PrometheusMetrics(registry=registry)])) as limiter:
        registry.register(FleetMetrics(limiter))

        def acquire_for(tenants: range) -> None:
            for tenant in tenants:
                limiter.acquire(TENANTS, job=Job(id=str(tenant), kwargs={"tenant": tenant}))

        acquire_for(range(1))
        few = set(scraped(registry))
        acquire_for(range(1, 1_000))
        for _ in range(2):
            acquire_for(range(1))
        limiter.fleet.activity.report()  # type: ignore[union-attr]
        found = scraped(registry)
    of_denials = {"decisions_total{limit=tenants,outcome=denied,reason=exhausted}"}
    assert {name for name in found if "tenants" in name and "bucket" not in name and "_created" not in name} <= {
        *few,
        *of_denials,
        *(f"{name}{{limit=tenants}}" for name in OF_THE_FLEET),
    }
    assert found["used_ratio{limit=tenants}"] == 1.0
    assert found["rate_used_ratio{limit=tenants}"] == pytest.approx(2 / 6)
    assert found["waiting_jobs{limit=tenants}"] == 1


def test_the_longest_waitlist_of_a_limit_with_keys_is_shown() -> None:
    """A later denial of a key with a short waitlist does not replace the value, unless that key is the one shown."""
    registry = CollectorRegistry()
    limiter = Limiter("memory://", plugins=[PrometheusMetrics(registry=registry)])
    for number, tenant in enumerate(("busy", *["busy"] * 30, "calm", "calm", "calm")):
        limiter.acquire(TENANTS, job=Job(id=str(number), kwargs={"tenant": tenant}))
    long = scraped(registry)["waitlist_end_timestamp_seconds{limit=tenants}"]
    limiter.clear_waitlist(TENANTS, key="busy")
    limiter.acquire(TENANTS, job=Job(id="calm", kwargs={"tenant": "calm"}))
    assert scraped(registry)["waitlist_end_timestamp_seconds{limit=tenants}"] == long
    limiter.acquire(TENANTS, job=Job(id="busy", kwargs={"tenant": "busy"}))
    assert scraped(registry)["waitlist_end_timestamp_seconds{limit=tenants}"] < long - 60


def test_a_scrape_without_the_store_has_no_value() -> None:
    """Without the store, a scrape succeeds but has no value of the fleet. A store in memory is refused at once."""
    registry = CollectorRegistry()
    registry.register(FleetMetrics("redis://127.0.0.1:1/0"))
    assert scraped(registry) == {}
    with pytest.raises(ConfigurationError, match="has no fleet"):
        FleetMetrics("memory://")
