"""
No script holds the server for more than 5 ms. Leases and keys are removed or updated in pieces of 1 000, and the
longest log is written in such pieces.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from conformance.bench import EMPTY_REPORT
from support.servers.slowlog import Slowest, slowest_server
from support.waiting import wait_until
from throttlekit import Concurrency, Limiter, SlidingLog
from throttlekit._core.answer import WITHOUT_JOB, Caller, Requester
from throttlekit._core.claim import StoreClaim
from throttlekit._core.storage_keys import bucket_name, with_slots
from throttlekit._engine.call import Call
from throttlekit.fleet.activity import _REPORT, KEYS  # pyright: ignore[reportPrivateUsage]
from throttlekit.fleet.browse import tenants_of
from throttlekit.fleet.tenants import TENANTS, report_tenants
from throttlekit.stores.base import Correction
from throttlekit.stores.redis import RedisStore

PIECE, HOLDERS = 1_000, 2_500
SLOTS = Concurrency("slots", 1_000_000, lease=60)


def _fill(client: Any, ends_us: int, many: int = HOLDERS, slots: int = 1) -> str:
    """Store *many* holders of *slots* slots each, whose leases end at *ends_us*. Return the key."""
    key = bucket_name(SLOTS.name, "", SLOTS.fingerprint)
    client.zadd(key, {with_slots(f"job{number}#{number:012x}", slots): ends_us for number in range(many)})
    if slots > 1:
        client.zadd(key, {":extra": -many * (slots - 1)})
    return key


def _now_us(client: Any) -> int:
    seconds, micros = client.time()
    return int(seconds) * 1_000_000 + int(micros)


def test_expired_leases_are_removed_in_pieces(store: RedisStore, client: Any) -> None:
    """Each acquire removes at most a thousand expired leases, and the others do not count."""
    limiter = Limiter(store)
    key = _fill(client, _now_us(client) - 1)
    for rest in (HOLDERS - PIECE, HOLDERS - 2 * PIECE, 0):
        decision = limiter.acquire(SLOTS)
        assert decision.allowed
        assert client.zcount(key, 1, _now_us(client)) == rest
        limiter.release(decision)


def test_leases_dated_by_a_clock_that_was_ahead_are_shortened_in_pieces(store: RedisStore, client: Any) -> None:
    """Each acquire shortens a thousand leases to the length of a lease, and all of them still count."""
    limiter = Limiter(store)
    far_us = _now_us(client) + 3_600_000_000
    key = _fill(client, far_us)
    for rest in (HOLDERS - PIECE, HOLDERS - 2 * PIECE, 0):
        assert limiter.acquire(SLOTS).allowed
        assert client.zcount(key, far_us, "+inf") == rest
        assert client.zcount(key, _now_us(client), "+inf") >= HOLDERS


def test_a_report_removes_outdated_keys_in_pieces(client: Any) -> None:
    """A report removes at most a thousand outdated keys."""
    client.zadd(KEYS[0], {f"key{number}": int(client.time()[0]) - 7_200 for number in range(HOLDERS)})
    for rest in (HOLDERS - PIECE, HOLDERS - 2 * PIECE, 0):
        client.eval(_REPORT, len(KEYS), *KEYS, json.dumps(EMPTY_REPORT))
        assert client.zcard(KEYS[0]) == rest


def test_expired_leases_of_several_slots_are_removed_in_pieces(store: RedisStore, client: Any) -> None:
    """Each acquire removes at most a thousand expired leases of several slots, and none of them counts."""
    limiter, costly = Limiter(store), Concurrency("slots", 1_000, lease=60, cost=2)
    alive = limiter.acquire(costly)
    key = _fill(client, _now_us(client) - 1, slots=401)
    client.zincrby(key, -1, ":extra")
    for rest in (HOLDERS - PIECE, HOLDERS - 2 * PIECE, HOLDERS - 2 * PIECE):
        assert not limiter.acquire(costly, cost=1_000)
        assert client.zcount(key, 1, _now_us(client)) == rest
    assert limiter.peek(costly).remaining == 998
    limiter.release(limiter.acquire(costly))
    assert client.zcount(key, 1, _now_us(client)) == 0
    limiter.release(alive)
    assert client.zscore(key, ":extra") is None


@pytest.mark.parametrize("by", [1, 50_000, 99_999])
def test_a_long_log_returns_settled_units(store: RedisStore, client: Any, by: int) -> None:
    """The longest log settles up to all but one of its units, and as many are admitted again."""
    limiter, log = Limiter(store), SlidingLog("log", "100000/hour")
    decision = limiter.acquire(log, cost=100_000)
    limiter.settle(decision, actual=100_000 - by)
    assert limiter.peek(log, cost=by).allowed
    assert not limiter.peek(log, cost=by + 1).allowed


def test_moved_units_keep_their_times(store: RedisStore, client: Any) -> None:
    """When the last 500 of 2 500 units are returned, the others keep their two times and move in two pieces."""
    log, now_us = SlidingLog("log", "2500/hour"), _now_us(client)
    for cost, second in ((1_400, 0), (600, 1), (500, 2)):
        claim = StoreClaim(bucket_name(log.name, "", log.fingerprint), log.bind(cost), cost)
        assert store.decide([claim], WITHOUT_JOB, now_us + second * 1_000_000).allowed
    store.settle([Correction(claim.bucket, claim.algorithm, now_us + 2_000_000, -500)], now_us + 3_000_000)
    for second, units in ((3, 2_000), (3_600, 600), (3_601, 0)):
        seen = store.decide([claim], Requester(Caller.PEEK), now_us + second * 1_000_000)
        assert seen.uses[0].units == units


def test_at_most_2_000_tenants_are_kept(store: RedisStore, client: Any) -> None:
    """At most 2 000 tenants of all limits are kept in 20 seconds, and known tenants continue to count."""
    rows = [[f"api:1 t{number}", 1, 5_000_000, 2_500] for number in range(HOLDERS)]
    wait_until(lambda: client.time()[0] % 20 < 15, description="the next step is seconds away")
    for first in range(0, HOLDERS, 100):
        store.commands([report_tenants(rows[first : first + 100])])
    store.commands([report_tenants([["api:1 t7", 4, 1, 2_500], ["api:1 late", 9, 1, 1_000]])])
    assert all(client.hlen(key) <= 2_000 for key in TENANTS)
    tenants = {each.name: each for each in tenants_of(store)["api:1"]}
    assert (tenants["t7"].units, tenants["t7"].longest_wait, tenants["t7"].weight) == (5, 5.0, 2.5)
    assert all(0 < client.ttl(key) <= 100 for key in TENANTS if client.exists(key))


@pytest.fixture(scope="module")
def slowest() -> Iterator[Slowest]:
    with slowest_server() as slowest:
        yield slowest


def _cases(server: Slowest, size: int) -> dict[str, tuple[Callable[[], Any], Callable[[Any], object]]]:
    """Return the slowest calls for *size* units, holders or keys, by name: what prepares them, and the call."""
    client, limiter, log = server.client, server.limiter, SlidingLog(f"log{size}", (size, 6.4))
    (claim,) = limiter.claims(Call([log], None, None, None))

    def acquire_each(*costs: int) -> Callable[[], Any]:
        return lambda: [limiter.acquire(log, cost=cost) for cost in costs][-1]

    def settle_by(given_back: int) -> Callable[[Any], object]:
        return lambda decision: limiter.settle(decision, decision.cost - given_back)

    def pause_in_the_past() -> None:
        server.store.pause([claim.claim], 1_000, _now_us(client) - 6_600_000)

    def write_by_a_later_clock() -> None:
        acquire_each(1)()
        ahead = (_now_us(client) + 120_000_000).to_bytes(7, "big")
        for index in (2, 1 + size):
            client.setrange(claim.claim.bucket, 7 * index, ahead)

    def acquire_one(limit: Any, cost: int = 1) -> Callable[[Any], object]:
        return lambda _: limiter.acquire(limit, cost=cost)

    def add_old_keys() -> None:
        client.zadd(KEYS[0], {f"key{number}": int(client.time()[0]) - 7_200 for number in range(size)})

    return {
        "a log: all of it at once": (acquire_each(1), acquire_one(log, size - 1)),
        "a log: half of it returned": (acquire_each(1, size // 2), settle_by(size // 2 - 1)),
        "a log: half of a full one returned": (acquire_each(size // 2 - 1, size // 2), settle_by(size // 2 - 1)),
        "a log: one unit returned, in front of all": (acquire_each(size - 1), settle_by(1)),
        "a log: half of it charged in addition": (acquire_each(size // 2), settle_by(1 - size // 2)),
        "a log: after a pause": (pause_in_the_past, acquire_one(log)),
        "a log: after a step of the clock": (write_by_a_later_clock, acquire_one(log)),
        "slots: expired leases": (lambda: _fill(client, _now_us(client) - 1, size), acquire_one(SLOTS)),
        "slots: expired leases of several": (
            lambda: (_fill(client, _now_us(client) - 1, size, 3), limiter.acquire(SLOTS)),
            acquire_one(SLOTS),
        ),
        "slots: leases of a clock ahead": (
            lambda: _fill(client, _now_us(client) + 3_600_000_000, size),
            acquire_one(SLOTS),
        ),
        "the report: outdated keys": (
            add_old_keys,
            lambda _: client.eval(_REPORT, len(KEYS), *KEYS, json.dumps(EMPTY_REPORT)),
        ),
    }


def test_no_script_holds_the_server_for_more_than_5_ms(slowest: Slowest) -> None:
    """
    The server's SLOWLOG measures each script. The best of several tries counts, because on a busy machine one try may
    include the time of another process.
    """
    for name, (prepare, act) in _cases(slowest, 100_000).items():
        wait_until(lambda: slowest.of(prepare, act) <= 5_000, description=name, timeout=60)  # noqa: B023
