"""The Prometheus plugin: its counts, what never becomes a label, and the multi-process mode of prometheus-client."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest, multiprocess

from support.prometheus import samples
from support.servers.stores import Passing
from support.waiting import wait_until
from support.waitlists import ask, held
from throttlekit import Concurrency, ConfigurationError, Control, Delivery, Job, Limiter, StoreUnavailable, TokenBucket
from throttlekit._core.answer import Answer
from throttlekit.hookspecs import RateLimitReceived, SlotLost
from throttlekit.metrics._tally import DECISIONS_PER_SAMPLE
from throttlekit.metrics.prometheus import PrometheusMetrics
from throttlekit.stores import MemoryStore, Request, Store
from throttlekit.testing import FakeClock

LIMIT = TokenBucket("partner", "10/s", burst=1)
WIDE = TokenBucket("wide", "100/s")
SLOTS = Concurrency("slots", 2)


class Silent(Passing):
    """A store that does not answer."""

    inner = MemoryStore()

    def decide(self, claims: Any, requester: Any, now_us: int | None = None, *, attempt: str = "") -> Answer:
        Request(claims, requester, attempt)
        raise StoreUnavailable("silent")


class Site:
    """A limiter with the plugin, and the metrics scraped from its registry."""

    def __init__(self, store: Store | None = None, **options: Any) -> None:
        self.registry = CollectorRegistry()
        self.metrics = PrometheusMetrics(registry=self.registry, **options)
        self.clock = FakeClock()
        store = MemoryStore(clock_us=self.clock) if store is None else store
        self.limiter = Limiter(store, plugins=[self.metrics])

    def scraped(self) -> dict[str, float]:
        return samples(generate_latest(self.registry).decode())


@pytest.fixture
def site() -> Site:
    return Site()


def test_decisions_are_counted_by_limit_and_outcome(site: Site) -> None:
    """A grant counts for all limits of the job, a denial for the limit that denied the job, with the reason."""
    site.limiter.acquire(LIMIT, WIDE, job=Job())
    for _ in range(2):
        site.limiter.acquire(LIMIT, WIDE, job=Job())
    found = site.scraped()
    assert found["decisions_total{limit=partner,outcome=allowed,reason=allowed}"] == 1
    assert found["decisions_total{limit=wide,outcome=allowed,reason=allowed}"] == 1
    assert found["decisions_total{limit=partner,outcome=denied,reason=exhausted}"] == 2
    assert not any("limit=wide,outcome=denied" in name for name in found)


def test_units_and_the_rate_are_exported(site: Site) -> None:
    """The charged units are exported beside the limit's rate, so that one can be divided by the other."""
    for _ in range(2):
        site.limiter.acquire(WIDE, cost=7)
    found = site.scraped()
    assert found["units_total{limit=wide}"] == 14
    assert found["limit_units_per_second{limit=wide}"] == 100


def test_the_wait_of_a_denied_job_is_recorded_at_its_start(site: Site) -> None:
    """
    A denied job's wait and deferrals are added to the histograms when the job starts, and not before. Other jobs add
    nothing.
    """
    site.limiter.acquire(LIMIT, job=Job())
    site.limiter.acquire(LIMIT, job=Job(id="1"))
    assert not any(name.startswith("wait_seconds_count") for name in site.scraped())
    site.clock.advance(0.3)
    assert site.limiter.acquire(LIMIT, job=Job(id="1")).allowed
    found = site.scraped()
    assert found["wait_seconds_count{limit=partner}"] == 1
    assert found["wait_seconds_sum{limit=partner}"] == pytest.approx(0.3)
    assert found["job_deferrals_sum{limit=partner}"] == 1


def test_starts_after_a_wait_and_starts_at_once_add_up(site: Site) -> None:
    """Jobs that ran at once and jobs that waited all count, in any order, also after the limit was redefined."""
    again = TokenBucket("partner", "10/s", burst=1)
    for each in range(20):
        limit = LIMIT if each < 10 else again
        limiter = site.limiter if each < 10 else Limiter(MemoryStore(clock_us=site.clock), plugins=[site.metrics])
        site.clock.advance(1)
        limiter.acquire(limit, job=Job())
        limiter.acquire(limit, job=Job(id="1"))
        site.clock.advance(0.2)
        assert limiter.acquire(limit, job=Job(id="1")).allowed
        if each % 7 == 0:
            site.limiter.pause(LIMIT, 0.001)
            site.clock.advance(1)
    found = site.scraped()
    assert found["units_total{limit=partner}"] == 40
    assert found["decisions_total{limit=partner,outcome=allowed,reason=allowed}"] == 40
    assert found["decisions_total{limit=partner,outcome=denied,reason=exhausted}"] == 20
    assert found["wait_seconds_count{limit=partner}"] == 20


def test_a_wait_counts_for_the_limit_that_denied_the_job(site: Site) -> None:
    """If a job has several limits, its wait counts for the one that denied it last."""
    site.limiter.acquire(LIMIT)
    site.limiter.acquire(WIDE, LIMIT, job=Job(id="1"))
    site.clock.advance(0.1)
    assert site.limiter.acquire(WIDE, LIMIT, job=Job(id="1")).allowed
    assert [name for name in site.scraped() if name.startswith("wait_seconds_count")] == [
        "wait_seconds_count{limit=partner}"
    ]


def test_the_waitlist_is_exported_as_the_time_of_its_last_position(site: Site) -> None:
    """The gauge is the estimated time of the last position, so it expires by itself. It can be later than one delay."""
    before = time.time()
    for _ in range(51):
        site.limiter.acquire(LIMIT, job=Job(), delivery=Delivery(longest=1.0))
    ends = site.scraped()["waitlist_end_timestamp_seconds{limit=partner}"]
    assert before + 4.9 < ends < time.time() + 5.5


def test_held_jobs_are_measured_like_redelivered_jobs() -> None:
    """
    The gauge is the estimated time of the last job. The wait and the deferrals of a job are recorded at its start.
    """
    site, before = Site(MemoryStore()), time.time()
    waker = held(site.limiter)
    jobs = [Job(id=str(number)) for number in range(6)]
    for job in jobs:
        ask(site.limiter, waker, LIMIT, job=job)
    found = site.scraped()
    assert found["waitlist_end_timestamp_seconds{limit=partner}"] == pytest.approx(before + 0.5, abs=0.2)
    assert not any(name.startswith("wait_seconds_count") for name in found)
    wait_until(lambda: ask(site.limiter, waker, LIMIT, job=jobs[1]).allowed, description="a unit is available")
    found = site.scraped()
    denied = found["decisions_total{limit=partner,outcome=denied,reason=exhausted}"] - len(jobs[2:])
    assert (found["wait_seconds_count{limit=partner}"], found["job_deferrals_sum{limit=partner}"]) == (1, denied)
    assert 0 < found["wait_seconds_sum{limit=partner}"] < time.time() - before
    waker.close()
    site.limiter.close()


def test_a_pause_and_its_end_are_exported(site: Site) -> None:
    """While a limit is paused, the gauge is the end of the pause. After a job has been admitted, it is 0."""
    site.limiter.pause(WIDE, 60)
    site.limiter.acquire(WIDE)
    assert site.scraped()["paused_until_timestamp_seconds{limit=wide}"] > time.time() + 50
    site.limiter.resume(WIDE)
    site.clock.advance(1)
    assert site.limiter.acquire(WIDE).allowed
    found = site.scraped()
    assert found["paused_until_timestamp_seconds{limit=wide}"] == 0
    assert found["decisions_total{limit=wide,outcome=denied,reason=paused}"] == 1


def test_holders_are_exported_beside_the_slots(site: Site) -> None:
    """A concurrency limit exports the slots that the fleet held at the last decision, and the total number of slots."""
    decisions = [site.limiter.acquire(SLOTS, WIDE, job=Job(id=str(number))) for number in range(3)]
    assert site.scraped()["holders{limit=slots}"] == 2
    for decision in decisions[:2]:
        site.limiter.release(decision)
    assert site.limiter.acquire(SLOTS, WIDE, job=Job(id="2")).allowed
    found = site.scraped()
    assert found["holders{limit=slots}"] == 1
    assert found["limit_slots{limit=slots}"] == 2
    assert "limit_units_per_second{limit=slots}" not in found


def test_tiers_become_labels_and_keys_do_not(site: Site) -> None:
    """A tier is a label. A key is not a label, and is nowhere in the output."""
    tiered = TokenBucket("api", {"free": "1/s", "pro": "10/s"}, tier="{plan}", key="{account}")
    for number in range(20):
        site.limiter.acquire(tiered, job=Job(kwargs={"plan": "pro", "account": f"secret-{number}"}))
    text = generate_latest(site.registry).decode()
    assert samples(text)["decisions_total{limit=api,outcome=allowed,reason=allowed,tier=pro}"] == 20
    assert "secret" not in text


def test_names_are_bounded() -> None:
    """A job can have a limit with any name. Names beyond the bound count as "other"."""
    site = Site(max_limits=3)
    for number in range(10):
        site.limiter.acquire(TokenBucket(f"by-value-{number}", "1/s"))
    found = site.scraped()
    named = {name for name in found if name.startswith("decisions_total")}
    assert len(named) == 4
    assert found["decisions_total{limit=other,outcome=allowed,reason=allowed}"] == 7


def test_store_latency_is_sampled_and_its_errors_are_counted(site: Site) -> None:
    """
    The latency of some store calls is measured. Each decision without the store counts, by the class of the error.
    """
    silent = Site(Silent())
    for _ in range(2 * DECISIONS_PER_SAMPLE + 2):
        site.limiter.acquire(WIDE)
    silent.limiter.acquire(WIDE, job=Job())
    silent.limiter.acquire(TokenBucket("open", "1/s", on_store_failure="open"))
    assert site.scraped()["store_seconds_count{}"] == 3
    found = silent.scraped()
    assert found["store_errors_total{error=StoreUnavailable,outcome=closed}"] == 1
    assert found["store_errors_total{error=StoreUnavailable,outcome=open}"] == 1
    assert found["decisions_total{limit=open,outcome=allowed,reason=store_unavailable}"] == 1
    assert found["units_total{limit=open}"] == 0


def test_corrections_and_429s_are_counted(site: Site) -> None:
    """
    The metrics count what `settle` returned and charged, and each 429 that paused a limit. Before the first 429 the
    value is 0.
    """
    decisions = [site.limiter.acquire(WIDE, cost=10) for _ in range(2)]
    assert site.scraped()["downstream_429_total{limit=wide}"] == 0
    for decision, actual in zip(decisions, (4, 13), strict=True):
        site.limiter.settle(decision, actual=actual)
    site.limiter.events.rate_limited.emit(RateLimitReceived(Job(), WIDE, 30.0))
    found = site.scraped()
    assert found["units_total{limit=wide}"] == 20
    assert found["settled_units_total{kind=returned,limit=wide}"] == 6
    assert found["settled_units_total{kind=extra,limit=wide}"] == 3
    assert found["downstream_429_total{limit=wide}"] == 1


def test_lost_leases_are_counted(site: Site) -> None:
    """A slot that a job lost counts for its limit."""
    site.metrics.throttlekit_slot_lost(SlotLost(site.limiter.acquire(SLOTS, job=Job()), SLOTS))
    assert site.scraped()["leases_lost_total{limit=slots}"] == 1


def test_several_plugins_can_share_a_registry() -> None:
    """Two limiters of one process, each with its own plugin, count into the same metrics."""
    registry = CollectorRegistry()
    for _ in range(2):
        Limiter(plugins=[PrometheusMetrics(registry=registry)]).acquire(WIDE)
    found = samples(generate_latest(registry).decode())
    assert found["decisions_total{limit=wide,outcome=allowed,reason=allowed}"] == 2


def test_a_changed_limit_exports_its_new_rate(site: Site) -> None:
    """A limit that is redefined with another value, as by another release, exports the new rate."""
    site.limiter.acquire(WIDE)
    Limiter(plugins=[site.metrics]).acquire(TokenBucket("wide", "5/s"))
    assert site.scraped()["limit_units_per_second{limit=wide}"] == 5


def test_rules_of_live_control_are_counted(redis_url: str) -> None:
    """
    A pause in force denies, although no request reaches the store. A limit in shadow mode counts what it would have
    denied.
    """
    registry = CollectorRegistry()
    with contextlib.closing(Limiter(redis_url, plugins=[PrometheusMetrics(registry=registry)])) as limiter:
        with Control(redis_url, by="test") as control:
            control.pause(WIDE)
            control.shadow(LIMIT)
        limiter.acquire(WIDE, job=Job())
        limiter.acquire(LIMIT, cost=1)
        limiter.acquire(LIMIT, cost=1)
    found = samples(generate_latest(registry).decode())
    assert found["decisions_total{limit=wide,outcome=denied,reason=paused}"] == 1
    assert found["paused_until_timestamp_seconds{limit=wide}"] > time.time() - 60
    assert found["decisions_total{limit=partner,outcome=allowed,reason=allowed}"] == 2
    assert found["decisions_total{limit=partner,outcome=shadow,reason=exhausted}"] == 1
    assert found["units_total{limit=partner}"] == 1, "the job that the limit would have denied is not charged"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_limits": 0}, "max_limits"),
        ({"max_limits": True}, "max_limits"),
        ({"buckets": ()}, "buckets"),
        ({"buckets": (2, 1)}, "buckets"),
        ({"buckets": "fast"}, "buckets"),
        ({"buckets": None}, "buckets"),
    ],
)
def test_a_wrong_argument_is_a_configuration_error(options: Any, message: str) -> None:
    """An argument that can never work raises when the plugin is created."""
    with pytest.raises(ConfigurationError, match=message):
        PrometheusMetrics(**options)


def test_a_missing_client_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without prometheus-client the plugin raises when it is created, and the message names what to install."""
    monkeypatch.setattr("importlib.util.find_spec", lambda *_: None)
    with pytest.raises(ImportError, match=r"pip install 'throttlekit-jobs\[prometheus\]'"):
        PrometheusMetrics()


_WORKER = """
import os, sys
from throttlekit import Concurrency, Job, Limiter, TokenBucket
from throttlekit.metrics._tally import DECISIONS_PER_SAMPLE
from throttlekit.metrics.prometheus import PrometheusMetrics

metrics = PrometheusMetrics()
limiter = Limiter(plugins=[metrics])
assert "prometheus_client" not in sys.modules, "the folder may be set after the import"
os.environ["PROMETHEUS_MULTIPROC_DIR"] = sys.argv[1]
wide, slots = TokenBucket("wide", "1000/s"), Concurrency("slots", 5)
limiter.acquire(wide, slots, job=Job(id="parent"))
children = []
for number in range(2):
    child = os.fork()
    if not child:
        for _ in range(10):
            limiter.acquire(wide, job=Job())
        os._exit(0)  # as a work-horse ends, with nothing flushed
    children.append(child)
for child in children:
    os.waitpid(child, 0)
limiter.acquire(wide, slots, job=Job(id="again"))
"""


def test_multi_process_mode_adds_up(tmp_path: Path) -> None:
    """The decisions of a process, its forked children and another process add up. A gauge has the latest value."""
    for _ in range(2):
        ran = subprocess.run(
            [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _WORKER, str(tmp_path)],
            env=os.environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry, path=str(tmp_path))
    found = samples(generate_latest(registry).decode())
    assert found["decisions_total{limit=wide,outcome=allowed,reason=allowed}"] == 2 * (1 + 2 * 10 + 1)
    assert found["units_total{limit=wide}"] == 44
    assert found["holders{limit=slots}"] == 2
    assert found["limit_units_per_second{limit=wide}"] == 1000
