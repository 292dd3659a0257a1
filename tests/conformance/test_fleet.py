"""The reports of processes to the fleet, on real servers: they are read from the store, are bounded, and expire."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from support.servers.processes import Cluster
from support.waiting import wait_until
from throttlekit import (
    ByLatency,
    Concurrency,
    Delivery,
    FixedWindow,
    Job,
    Limit,
    Limiter,
    RateLimited,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
)
from throttlekit._core.answer import WITHOUT_JOB
from throttlekit._core.storage_keys import bucket_name, limit_id
from throttlekit._engine.leases import _lease
from throttlekit.adapter import Run
from throttlekit.adapter.rate_limited import deny_after_429
from throttlekit.fleet.activity import _REPORT, JOBS_KNOWN, KEYS
from throttlekit.fleet.downstream import COUNT_429S, DOWNSTREAM_429S
from throttlekit.fleet.snapshot import Key, look
from throttlekit.fleet.waiting_job import look_up
from throttlekit.stores import Lease, StoreClaim
from throttlekit.stores.cluster import RedisClusterStore
from throttlekit.stores.redis import RedisStore

EVERY_KIND: list[Limit] = [
    TokenBucket("bucket", "2/minute", burst=2, key="{tenant}"),
    FixedWindow("fixed", "2/minute", key="{tenant}"),
    SlidingWindow("sliding", "2/minute", key="{tenant}"),
    SlidingLog("log", "2/minute", key="{tenant}"),
    Concurrency("slots", 2, key="{tenant}"),
]


def _job(number: int, tenant: str = "a") -> Job:
    return Job(id=f"job-{number}", kwargs={"tenant": tenant})


def _flood(limiter: Limiter) -> None:
    for limit in EVERY_KIND:
        for number in range(5):
            limiter.acquire(limit, job=_job(number))


def _check(keys: tuple[Key, ...]) -> None:
    assert {each.limit.name for each in keys} == {limit.name for limit in EVERY_KIND}
    for each in keys:
        assert each.key == "a"
        assert (each.minute.units, each.minute.denials) == (2, 3)
        assert (each.used, each.capacity) == (2, 2)
        if not isinstance(each.limit, Concurrency):  # how long its slots are held is not known yet
            assert each.waiting == pytest.approx(3, abs=1)
            assert each.last_starts is not None
            assert each.last_starts > 0


def test_the_capacity_of_adaptive_slots_is_the_current_one(limiter: Limiter, store: RedisStore) -> None:
    """The capacity shown is the current number of slots; the definition has the maximum."""
    llm = Concurrency("llm", 9, adapt=ByLatency(2))
    for capacity in (2, 4):
        held = limiter.acquire(llm)
        limiter.flush()
        (key,) = look(store).keys
        assert (key.used, key.capacity, key.limit.capacity) == (1, capacity, 9)
        limiter.release(held)
        if capacity == 2:
            _double_slots(store, llm, held.leases[0].bucket)


def _double_slots(store: RedisStore, limit: Concurrency, bucket: str) -> None:
    now_us = time.time_ns() // 1000
    for number in range(16):
        leases = [Lease(bucket, limit.bind(1, 0, f"{name}#{number}"), now_us + number) for name in ("a", "b")]
        for each in leases:
            store.decide([StoreClaim(bucket, each.algorithm)], WITHOUT_JOB, now_us + number)
        store.release(leases, now_us + number + 1)


def test_the_oldest_holders_age_is_shown(limiter: Limiter, store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The age of the oldest holder is shown, whatever other holders there are and however often its lease was renewed, so
    that an operator finds bodies that hang.
    """
    slots, now_ns = Concurrency("slots", 3), time.time_ns()
    monkeypatch.setattr("throttlekit._engine.claims.time.time_ns", lambda: now_ns - 3_600 * 10**9)
    oldest = limiter.acquire(slots, job=Job(id="#1.2"))
    monkeypatch.undo()
    assert limiter.acquire(slots).allowed
    store.renew([_lease(each) for each in oldest.leases])
    limiter.flush()
    (key,) = look(store).keys
    assert key.oldest_hold == pytest.approx(3_600, abs=60)
    limiter.release(oldest)
    (key,) = look(store).keys
    assert key.oldest_hold == pytest.approx(0, abs=60)


def test_decisions_are_shown_while_the_process_runs(limiter: Limiter, store: RedisStore) -> None:
    """For every kind of limit, grants, denials, use and waiting jobs are shown within seconds."""
    _flood(limiter)
    decisions = 5 * len(EVERY_KIND)

    def decisions_shown() -> int:
        return sum(key.minute.units + key.minute.denials for key in look(store).keys)

    wait_until(lambda: decisions_shown() == decisions, description="the process has reported all decisions")
    _check(look(store).keys)
    assert {each.limit.name for each in look(store, name="slid").limits} == {"sliding"}
    assert [each.limit.name for each in look(store, name="slid").keys] == ["sliding"]


def test_a_fleet_on_a_cluster_is_shown(cluster: Cluster, cluster_store: RedisClusterStore) -> None:
    """Keys on other nodes than the fleet's data are read from those nodes."""
    limiter = Limiter(RedisClusterStore(cluster.url, timeout=5))
    _flood(limiter)
    limiter.close()
    _check(look(cluster_store).keys)
    assert look_up(cluster_store, "job-4").job is not None


def test_processes_are_listed_while_they_run(limiter: Limiter, store: RedisStore) -> None:
    """A process that has decided is listed within seconds, with the latency of the store."""
    limiter.acquire(TokenBucket("api", "1/s"))
    (process,) = wait_until(lambda: look(store).processes, description="the process has reported")
    assert process.latency_seconds > 0
    assert look(store).latency == process.latency_seconds


def test_reports_of_another_release_are_skipped(store: RedisStore, client: Any) -> None:
    """A report that another release wrote in another format is skipped, and the others are shown."""
    now = int(client.time()[0])
    client.zadd(KEYS[3], {"a newer process says more": now, b"\xff": now})
    client.hset(KEYS[2], mapping={b"\xff": f"{now} {{}}", "a:b": f"{now} []"})
    assert len(look(store).processes) == 2
    client.hset(JOBS_KNOWN, "j", "[null,null,1,2,3,4]")
    assert look_up(store, "j").key is None
    client.delete(KEYS[2], KEYS[3], JOBS_KNOWN)


def test_the_longest_waitlists_are_listed_first(limiter: Limiter, store: RedisStore) -> None:
    """The keys with the longest waitlists are shown, or those with the most use if requested."""
    limit = TokenBucket("api", "10/minute", burst=10, key="{tenant}")
    for number in range(30):
        limiter.acquire(limit, job=_job(number, f"waits-{number % 2}"))
    for number in range(9):
        limiter.acquire(limit, job=_job(number, "admitted"), cost=1)
    limiter.fleet.activity.report()  # type: ignore[union-attr]
    assert {each.key for each in look(store, most=2).keys} == {"waits-0", "waits-1"}
    assert [each.key for each in look(store, order="use", most=3).keys if each.key == "admitted"] == ["admitted"]


def test_429s_from_the_partner_are_counted(limiter: Limiter, store: RedisStore, client: Any) -> None:
    """Each 429 of a body is counted for every limit that it paused; without a 429, nothing is written."""
    bucket, slots = EVERY_KIND[0], EVERY_KIND[-1]
    limiter.acquire(bucket, job=_job(1))
    limiter.fleet.activity.report()  # type: ignore[union-attr]
    assert not client.exists(DOWNSTREAM_429S)
    for number in range(3):
        run = Run(_job(number), (bucket, slots), None, Delivery())
        deny_after_429(limiter, run, RateLimited(0.1), release=lambda: None)
    limiter.fleet.activity.report()  # type: ignore[union-attr]
    limiter.fleet.activity.report()  # type: ignore[union-attr]
    assert look(store).partner_429s == {limit_id("bucket", bucket.fingerprint): 3}
    assert 900 < client.ttl(DOWNSTREAM_429S) <= 940  # until none of its steps is read any more


def test_429s_are_kept_for_15_minutes_and_bounded(store: RedisStore, client: Any) -> None:
    """Older 429s are not shown, and are removed when one is counted; a new limit beyond the bound is dropped."""
    step = int(client.time()[0]) // 20
    client.hset(
        DOWNSTREAM_429S, mapping={f"{step - 46} old:1": 7, f"{step - 2} new:1": 2, "odd": "x", f"{step} x:1": "y"}
    )
    assert look(store).partner_429s == {"new:1": 2}
    client.eval(COUNT_429S, 1, DOWNSTREAM_429S, json.dumps([["new:1", 1]]))
    assert sorted(client.hgetall(DOWNSTREAM_429S).values()) == [b"1", b"2", b"y"]
    small = COUNT_429S.replace("LASTS, MOST = 900, 2000", "LASTS, MOST = 900, 10")
    client.eval(small, 1, DOWNSTREAM_429S, json.dumps([[f"limit-{number}:1", 1] for number in range(30)]))
    assert client.hlen(DOWNSTREAM_429S) == 10


def test_every_key_of_the_fleet_is_bounded(store: RedisStore, client: Any) -> None:
    """The newest keys, longest waitlists and most denied keys are kept. The test uses a hundredth of the bounds."""
    bounds = "MOST_KEYS, MOST_RANKED, MOST_COUNTS, MOST_LIMITS, MOST_JOBS = "
    assert f"{bounds}100000, 10000, 100000, 1000, 10000\n" in _REPORT
    script = _REPORT.replace(f"{bounds}100000, 10000, 100000, 1000, 10000", f"{bounds}1000, 100, 1000, 10, 100")
    for part in range(0, 1200, 200):
        names = [bucket_name("t", str(number), "f00") for number in range(part, part + 200)]
        report = {
            "process": [],
            "limits": [[f"limit-{number}:f00", "{}"] for number in range(part, part + 200)],
            "keys": [[name, 1, 1, 4_000_000_000_000_000 + part] for name in names],
            "counts": [[f"a {name}", 1] for name in names],
            "waits": [[f"w {name}", 5] for name in names],
            "rates": [[f"r {name}", 60_000] for name in names],
            "jobs": [[name, "[]"] for name in names],
        }
        client.eval(script, len(KEYS), *KEYS, json.dumps(report))
    sizes = {key.decode().removeprefix("tk1:{fleet}:"): _size(client, key) for key in client.scan_iter("tk1:*")}
    kept = {"keys": 1000, "lines": 100, "limits": 10, "jobs": 100, "jobs:known": 100}
    assert kept.items() <= sizes.items()
    assert all(size <= 100 for name, size in sizes.items() if name.startswith(("passed", "denied")))
    assert all(size <= 1000 for name, size in sizes.items() if name.startswith("counts"))
    assert all(0 < client.ttl(key) <= 3600 for key in client.scan_iter("tk1:*"))
    assert look(store).keys == ()


def _size(client: Any, key: bytes) -> int:
    return int(client.hlen(key) if client.type(key) == b"hash" else client.zcard(key))
