"""
Two releases on one Redis, while a fleet is deployed: the values are those that the scripts of the previous release
wrote.

Both count in the same keys. The previous release kept its waitlists in other formats, under other names.
"""

from __future__ import annotations

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
"""A time in a sliding log: `NOW_US`."""

USED_UP: list[tuple[Limit, bytes, bytes]] = [
    (TokenBucket("token", "10/s", burst=5), b"1800000000500000", b"1800000000400000 0 0"),
    (LeakyBucket("leaky", "1/m"), b"1800000060000000", b"1800000240000000 0 0"),
    (FixedWindow("fixed", "5/h", tz="Europe/Berlin"), b"500000 5", b"1800005760000000 0 0"),
    (SlidingWindow("sliding", "5/h"), b"500000 0 5", b"1800005760000001 0 0"),
    (SlidingLog("log", "5/h"), b"\x00" * 14 + UNIT * 5, b"1800005760000000 0 0"),
    (SlidingLog("ring", "300/h"), b"\x00" * 14 + UNIT * 300, b"1800003636000000 0 0"),
]
"""Limits, the stored value when all of each was taken at `NOW_US`, and their waitlists with three jobs."""
ORDER = (
    b"5 18691697672192 0 3 0 1024 1 0 0 0 1800000000000000 0 60000 1800007200000000 1800000000000000 0 "
    b"1800007200000000 9 3 a1"
)
"""The numbers of a waitlist with three jobs, paused for two hours, before a 429 had a separate number."""
HELD = {b":granted": -NOW_US, b":lease": -30e6, b":mean": 0.0, b"job-1": NOW_US + 30e6, b"job-2": NOW_US + 30e6}
each_limit = pytest.mark.parametrize(("limit", "taken", "line"), USED_UP, ids=lambda value: getattr(value, "name", ""))


@pytest.fixture
def bench(store: RedisStore) -> Bench:
    return Bench(store)


def name_of(limit: Limit) -> str:
    return bucket_name(limit.name, "", limit.fingerprint)


@each_limit
def test_charges_are_stored_as_in_the_previous_release(
    bench: Bench, client: Any, limit: Limit, taken: bytes, line: bytes
) -> None:
    """Charges have the same bytes and keys as in the previous release, which can therefore read them."""
    bench.drain(limit)
    found = client.get(name_of(limit))
    if isinstance(limit, SlidingLog):  # the previous release reads the first number modulo the amount
        found = (int.from_bytes(found[:7], "big") % limit.amount).to_bytes(7, "big") + found[7:]
    assert found == taken


def test_slots_are_stored_as_in_the_previous_release(bench: Bench, client: Any) -> None:
    """Slots are stored in the same way, except ":freed", which the previous release reads as never if it is absent."""
    assert all(bench.decide(SLOTS, holder=holder).allowed for holder in ("job-1", "job-2"))
    assert dict(client.zrange(name_of(SLOTS), 0, -1, withscores=True)) == HELD


def test_a_wrong_sum_of_slots_is_corrected(bench: Bench, client: Any) -> None:
    """
    If a release without slot costs removed a holder of several slots, the sum is too low until no job holds a slot, and
    then it is corrected.
    """
    lease = Lease(name_of(SLOTS), bench.claim(SLOTS, cost=2, holder="dead").algorithm, NOW_US)
    assert bench.decide(SLOTS, cost=2, holder="dead").allowed
    client.zrem(name_of(SLOTS), lease.algorithm.holder)
    assert bench.decide(SLOTS, cost=2, holder="next").allowed
    assert client.zscore(name_of(SLOTS), ":extra") == -1
    bench.store.release([replace(lease, algorithm=bench.claim(SLOTS, cost=2, holder="next").algorithm)], now_us=NOW_US)
    assert client.zscore(name_of(SLOTS), ":extra") is None


@each_limit
def test_charges_of_the_previous_release_count(
    bench: Bench, client: Any, limit: Limit, taken: bytes, line: bytes
) -> None:
    """No unit is admitted early. Jobs of this release are admitted in order, whatever jobs wait in the other."""
    client.set(name_of(limit), taken, px=8_000_000)
    lines = {f"{name_of(limit)}:line": line, f"{name_of(limit)}:order": ORDER}
    for name, text in lines.items():
        client.set(name, text, px=8_000_000)
    client.zadd(f"{name_of(limit)}:jobs", {"0000000000000001 1": 18691697672192})
    client.pexpire(f"{name_of(limit)}:jobs", 8_000_000)
    assert bench.count_admitted(limit) == 0
    waiting = ["one", "two", "three"]
    first, *_ = [bench.decide(limit, job=id) for id in waiting]
    bench.now_us = first.retry_us - 1
    assert not bench.look(limit).allowed
    admitted: list[str] = []
    for number in range(3):
        bench.now_us = max(bench.now_us, NOW_US + limit.period_us * (number + 1))
        admitted += bench.admit_woken(limit)
    assert admitted == waiting
    assert client.mget(lines) == [*lines.values()]
    assert client.zcard(f"{name_of(limit)}:jobs") == 1


def test_slots_of_the_previous_release_count(bench: Bench, client: Any) -> None:
    """Slots are renewed and released by name, whichever release took them; a free slot is granted to one job."""
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
