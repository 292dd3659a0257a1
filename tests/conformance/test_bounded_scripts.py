"""No script works through everything at once: what is many is removed or dated anew in pieces of 1 000."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
import redis

import throttlekit_lua
from throttlekit import Concurrency, Limiter, SlidingLog
from throttlekit._core.storage_keys import bucket_name
from throttlekit.fleet.activity import _REPORT, KEYS  # pyright: ignore[reportPrivateUsage]
from throttlekit.fleet.browse import tenants_of
from throttlekit.fleet.tenants import TENANTS, report_tenants
from throttlekit.stores.redis import RedisStore

PIECE, MANY = 1_000, 2_500
SLOTS = Concurrency("slots", 1_000_000, lease=60)


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    with contextlib.closing(redis.Redis.from_url(redis_url)) as client:
        yield client


@pytest.fixture
def store(redis_url: str) -> Iterator[RedisStore]:
    with contextlib.closing(RedisStore(redis_url, timeout=5)) as store:
        yield store


def _fill(client: Any, ends_us: int) -> str:
    """Store so many holders whose leases end at *ends_us*; return the key."""
    key = bucket_name(SLOTS.name, "", SLOTS.fingerprint)
    client.zadd(key, {f"job{number}#{number:012x}": ends_us for number in range(MANY)})
    return key


def _now_us(client: Any) -> int:
    seconds, micros = client.time()
    return int(seconds) * 1_000_000 + int(micros)


def test_leases_that_ended_are_removed_in_pieces(store: RedisStore, client: Any) -> None:
    """Each acquire removes a thousand ended leases at most, and counts none of the others."""
    limiter = Limiter(store)
    key = _fill(client, _now_us(client) - 1)
    for rest in (MANY - PIECE, MANY - 2 * PIECE, 0):
        decision = limiter.acquire(SLOTS)
        assert decision.allowed
        assert client.zcount(key, 1, _now_us(client)) == rest
        limiter.release(decision)


def test_holders_of_a_clock_that_was_ahead_are_dated_anew_in_pieces(store: RedisStore, client: Any) -> None:
    """Each acquire brings a thousand leases back into what a lease can be, and all of them count meanwhile."""
    limiter = Limiter(store)
    far_us = _now_us(client) + 3_600_000_000
    key = _fill(client, far_us)
    for rest in (MANY - PIECE, MANY - 2 * PIECE, 0):
        assert limiter.acquire(SLOTS).allowed
        assert client.zcount(key, far_us, "+inf") == rest
        assert client.zcount(key, _now_us(client), "+inf") >= MANY


def test_the_report_trims_in_pieces(client: Any) -> None:
    """A report that finds thousands of keys out of date removes a thousand of them."""
    client.zadd(KEYS[0], {f"key{number}": int(client.time()[0]) - 7_200 for number in range(MANY)})
    report = {"process": ["", ""], "limits": [], "jobs": [], "keys": [], "counts": [], "waits": []}
    for rest in (MANY - PIECE, MANY - 2 * PIECE, 0):
        client.eval(_REPORT, len(KEYS), *KEYS, json.dumps(report))
        assert client.zcard(KEYS[0]) == rest


@pytest.mark.parametrize("by", [1, 50_000, 99_999])
def test_a_long_log_gives_back_what_it_took(store: RedisStore, client: Any, by: int) -> None:
    """The longest log settles half of itself, and as much passes again."""
    limiter, log = Limiter(store), SlidingLog("log", "100000/hour")
    decision = limiter.acquire(log, cost=100_000)
    limiter.settle(decision, actual=100_000 - by)
    assert limiter.peek(log, cost=by).allowed
    assert not limiter.peek(log, cost=by + 1).allowed


def test_of_tenants_so_many_are_kept(store: RedisStore, client: Any) -> None:
    """Of all limits 2 000 in 20 seconds; what is known goes on counting."""
    rows = [[f"api:1 t{number}", 1, 5_000_000, 2_500] for number in range(MANY)]
    for first in range(0, MANY, 100):
        store.commands([report_tenants(rows[first : first + 100])])
    store.commands([report_tenants([["api:1 t7", 4, 1, 2_500], ["api:1 late", 9, 1, 1_000]])])
    assert all(client.hlen(key) <= 2_000 for key in TENANTS)
    tenants = {each.name: each for each in tenants_of(store)["api:1"]}
    assert (tenants["t7"].units, tenants["t7"].longest_wait, tenants["t7"].weight) == (5, 5.0, 2.5)
    assert all(0 < client.ttl(key) <= 100 for key in TENANTS if client.exists(key))


def test_no_decision_reads_all_jobs_of_one_start() -> None:
    """Tenants that begin to wait at once share one start, and may be any number: what is read of a line is limited."""
    read = [line for line in throttlekit_lua.read("acquire", frozenset()).splitlines() if "ZRANGEBYSCORE'" in line]
    read = [line for line in read if "jobs_key" in line]
    assert read
    assert all("'LIMIT'" in line for line in read)
