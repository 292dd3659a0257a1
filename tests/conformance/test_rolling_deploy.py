"""
Two releases on one Redis, while a fleet is deployed: what the release before this one stored, as its scripts wrote it.

Both count in the same places. What was released before kept the waiting line in other shapes, under other names.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from conformance.bench import NOW_US, SECOND_US, Bench
from throttlekit import Concurrency, FixedWindow, LeakyBucket, Limit, SlidingLog, SlidingWindow, TokenBucket
from throttlekit._core.answer import Caller, Reason
from throttlekit._core.storage_keys import bucket_name
from throttlekit.stores import Lease
from throttlekit.stores.redis import RedisStore

SLOTS = Concurrency("slots", 2, lease=30)
UNIT = b"\x06\x65\x17\x28\x98\x80\x00"
"""An instant in a sliding log: `NOW_US`."""

USED_UP: list[tuple[Limit, bytes, bytes]] = [
    (TokenBucket("token", "10/s", burst=5), b"1800000000500000", b"1800000000400000 0 0"),
    (LeakyBucket("leaky", "1/m"), b"1800000060000000", b"1800000240000000 0 0"),
    (FixedWindow("fixed", "5/h", tz="Europe/Berlin"), b"500000 5", b"1800005760000000 0 0"),
    (SlidingWindow("sliding", "5/h"), b"500000 0 5", b"1800005760000001 0 0"),
    (SlidingLog("log", "5/h"), b"\x00" * 14 + UNIT * 5, b"1800005760000000 0 0"),
    (SlidingLog("ring", "300/h"), b"\x00" * 14 + UNIT * 300, b"1800003636000000 0 0"),
]
"""Limits, what was stored once all of each was taken at `NOW_US`, and their lines with three jobs."""
ORDER = (
    b"5 18691697672192 0 3 0 1024 1 0 0 0 1800000000000000 0 60000 1800007200000000 1800000000000000 0 "
    b"1800007200000000 9 3 a1"
)
"""The numbers of a line with three jobs, paused for two hours, as they were before a 429 had a number of its own."""
HELD = {b":granted": -NOW_US, b":lease": -30e6, b":mean": 0.0, b"job-1": NOW_US + 30e6, b"job-2": NOW_US + 30e6}
each_limit = pytest.mark.parametrize(("limit", "taken", "line"), USED_UP, ids=lambda value: getattr(value, "name", ""))


@pytest.fixture
def bench(redis_url: str) -> Iterator[Bench]:
    with contextlib.closing(RedisStore(redis_url, timeout=5)) as store:
        yield Bench(store)


def name_of(limit: Limit) -> str:
    return bucket_name(limit.name, "", limit.fingerprint)


@each_limit
def test_what_is_taken_is_written_as_before(bench: Bench, client: Any, limit: Limit, taken: bytes, line: bytes) -> None:
    """To the byte, under the same name: so the release before reads what this one has taken."""
    bench.drain(limit)
    found = client.get(name_of(limit))
    if isinstance(limit, SlidingLog):  # the release before reads the first number modulo the amount
        found = (int.from_bytes(found[:7], "big") % limit.amount).to_bytes(7, "big") + found[7:]
    assert found == taken


def test_slots_are_written_as_before(bench: Bench, client: Any) -> None:
    """But for ":freed", which the release before reads as never if it is not there."""
    assert all(bench.decide(SLOTS, holder=holder).allowed for holder in ("job-1", "job-2"))
    assert dict(client.zrange(name_of(SLOTS), 0, -1, withscores=True)) == HELD


def test_a_sum_of_slots_that_another_release_left_wrong_heals(bench: Bench, client: Any) -> None:
    """One that knows of no costs removed a holder of several: the limit is less used until no job holds a slot."""
    lease = Lease(name_of(SLOTS), bench.claim(SLOTS, cost=2, holder="dead").algorithm, NOW_US)
    assert bench.decide(SLOTS, cost=2, holder="dead").allowed
    client.zrem(name_of(SLOTS), lease.algorithm.holder)
    assert bench.decide(SLOTS, cost=2, holder="next").allowed
    assert client.zscore(name_of(SLOTS), ":extra") == -1
    bench.store.release([replace(lease, algorithm=bench.claim(SLOTS, cost=2, holder="next").algorithm)], now_us=NOW_US)
    assert client.zscore(name_of(SLOTS), ":extra") is None


@each_limit
def test_what_was_taken_before_counts(bench: Bench, client: Any, limit: Limit, taken: bytes, line: bytes) -> None:
    """No unit passes before its time. The jobs of this release pass in order, whoever waits in the other one."""
    client.set(name_of(limit), taken, px=8_000_000)
    lines = {f"{name_of(limit)}:line": line, f"{name_of(limit)}:order": ORDER}
    for name, text in lines.items():
        client.set(name, text, px=8_000_000)
    client.zadd(f"{name_of(limit)}:jobs", {"0000000000000001 1": 18691697672192})
    client.pexpire(f"{name_of(limit)}:jobs", 8_000_000)
    assert bench.passing(limit) == 0
    waiting = ["one", "two", "three"]
    first, *_ = [bench.decide(limit, job=id) for id in waiting]
    bench.now_us = first.retry_us - 1
    assert not bench.look(limit).allowed
    passed: list[str] = []
    for number in range(3):
        bench.now_us = max(bench.now_us, NOW_US + limit.period_us * (number + 1))
        passed += bench.pass_woken(limit)
    assert passed == waiting
    assert client.mget(lines) == [*lines.values()]
    assert client.zcard(f"{name_of(limit)}:jobs") == 1


def test_slots_that_were_taken_before_count(bench: Bench, client: Any) -> None:
    """They are renewed and given back by name, whichever release took them; one that is free goes to one job."""
    client.zadd(name_of(SLOTS), {**HELD, b":freed": 0})
    client.set(f"{name_of(SLOTS)}:line", b"1800000006120000 0 0", px=60_000)
    assert bench.decide(SLOTS, holder="next", caller=Caller.WITHOUT_JOB).reason is Reason.EXHAUSTED
    leases = [
        Lease(name_of(SLOTS), bench.claim(SLOTS, holder=holder).algorithm, NOW_US) for holder in ("job-1", "job-2")
    ]
    bench.now_us += SECOND_US
    assert list(bench.store.renew(leases, now_us=bench.now_us)) == [True, True]
    bench.store.release(leases[:1], now_us=bench.now_us)
    assert [bench.decide(SLOTS, holder=f"new-{n}", caller=Caller.WITHOUT_JOB).allowed for n in range(2)] == [
        True,
        False,
    ]
    assert bench.use(SLOTS).units == 2
