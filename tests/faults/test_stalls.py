"""A server that stands still: slots, releases and units that met the stall."""

from __future__ import annotations

import contextlib
import itertools
import signal
import threading
import time
from collections.abc import Iterator

import pytest
from redis.crc import key_slot

from support.servers.processes import RedisProcess, redis_cluster
from support.waiting import wait_until
from throttlekit import Concurrency, Job, Limit, Limiter, SlidingLog, TokenBucket
from throttlekit._core.storage_keys import bucket_name

STALLS = (0.3, 0.6, 2.0)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisProcess]:
    server = RedisProcess()
    server.start()
    yield server
    server.close()


@pytest.fixture
def limiters(server: RedisProcess) -> Iterator[list[Limiter]]:
    """Ten, as ten processes have, with a warm connection each."""
    server.client.flushall()
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Limiter(f"{server.url}/0")) for _ in range(10)]


@contextlib.contextmanager
def stalled(server: RedisProcess, seconds: float) -> Iterator[None]:
    """It stands still for so long, and goes on; the block runs meanwhile."""
    server.hang()
    going_on = threading.Timer(seconds, server.go_on)
    going_on.start()
    try:
        yield
    finally:
        going_on.join()


def together(limiters: list[Limiter], limit: Limit) -> int:
    """Each asks once, in a thread of its own. Returns how many were allowed."""
    allowed: list[bool] = []

    def ask(number: int, limiter: Limiter) -> None:
        allowed.append(limiter.acquire(limit, job=Job(id=str(number))).allowed)

    threads = [threading.Thread(target=ask, args=each) for each in enumerate(limiters)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return sum(allowed)


def free(limiter: Limiter, limit: Limit) -> int:
    return limiter.peek(limit, cost=0).remaining


@pytest.mark.parametrize("seconds", STALLS)
@pytest.mark.parametrize("lease", [30, 600])
def test_a_stall_leaves_no_slot_that_no_process_holds(
    server: RedisProcess, limiters: list[Limiter], seconds: float, lease: int
) -> None:
    """Ten processes ask while the server stands still, which grants them eight slots later: all are given back."""
    slots = Concurrency("reports-db", 8, lease=lease)
    for limiter in limiters:
        limiter.peek(slots)
    with stalled(server, seconds):
        granted = together(limiters, slots)
    over = time.monotonic()
    with Limiter(f"{server.url}/0?socket_timeout=5") as judge:
        wait_until(lambda: free(judge, slots) == 8 - granted, description="the slots are given back", timeout=10)
        took = time.monotonic() - over
        print(f"stall {seconds} s, lease {lease} s: {granted} granted, all others free after {took:.2f} s")
        time.sleep(0.5)
        assert free(judge, slots) == 8 - granted, "and stay free"


@pytest.mark.parametrize("seconds", STALLS)
def test_a_release_that_meets_a_stall_is_made_up_for(
    server: RedisProcess, limiters: list[Limiter], seconds: float
) -> None:
    """The slot is free soon after the server goes on, and not when its lease of ten minutes ends."""
    slots = Concurrency("c", 1, lease=600)
    decision = limiters[0].acquire(slots)
    assert decision
    with stalled(server, seconds):
        limiters[0].release(decision)
    over = time.monotonic()
    with Limiter(f"{server.url}/0?socket_timeout=5") as judge:
        wait_until(lambda: free(judge, slots) == 1, description="the slot is given back", timeout=10)
    print(f"stall {seconds} s: free after {time.monotonic() - over:.2f} s")


@pytest.mark.parametrize("seconds", STALLS)
@pytest.mark.parametrize("limit", [TokenBucket("bucket", "100/h", burst=100), SlidingLog("log", "100/h")])
def test_a_stall_costs_a_rate_one_unit_for_each_request_that_met_it(
    server: RedisProcess, limiters: list[Limiter], seconds: float, limit: Limit
) -> None:
    """At most one for each connection that waited, and never a grant without a charge."""
    for limiter in limiters:
        limiter.peek(limit)
    with stalled(server, seconds):
        granted = together(limiters, limit)
    with Limiter(f"{server.url}/0?socket_timeout=5") as judge:
        charged = 100 - free(judge, limit)
    print(f"stall {seconds} s, {limit.name}: {granted} granted, {charged - granted} charged and lost")
    assert granted <= charged <= len(limiters)


@pytest.mark.parametrize("seconds", STALLS)
def test_a_stall_costs_a_process_no_more_than_one_prefetch(
    server: RedisProcess, limiters: list[Limiter], seconds: float
) -> None:
    """Units that were taken ahead by a request without an answer are lost, at most `prefetch` for each process."""
    limit = TokenBucket("ahead", "36000/h", burst=1000, prefetch=10, prefetch_for=30)
    for limiter in limiters:
        for _ in range(12):
            limiter.acquire(limit)
    with Limiter(f"{server.url}/0?socket_timeout=5") as judge:
        before, began = free(judge, limit), time.monotonic()
        with stalled(server, seconds):
            while together(limiters, limit):  # first what is at hand
                pass
        charged = before + 10 * (time.monotonic() - began) + 1 - free(judge, limit)
    print(f"stall {seconds} s: {charged:.0f} units charged and lost")
    assert charged <= 10 * len(limiters) + 2


def _on_node(number: int) -> Concurrency:
    """Slots whose name lies on node *number* of three."""
    for each in itertools.count():
        slots = Concurrency(f"slots-{each}", 2, lease=600)
        found = key_slot(bucket_name(slots.name, "", slots.fingerprint).encode())
        if number * 16384 // 3 <= found < (number + 1) * 16384 // 3:
            return slots
    raise AssertionError("unreachable")


@pytest.mark.parametrize("stalls", [0, 1])
def test_a_node_that_stalls_leaves_no_slot(stalls: int) -> None:
    """A job's slots lie on two nodes of a cluster, one of which stands still: both are free soon after it goes on."""
    with redis_cluster() as cluster, Limiter(cluster.url) as limiter:
        both = _on_node(0), _on_node(1)
        limiter.cancel(limiter.acquire(*both))
        cluster.processes[stalls].send_signal(signal.SIGSTOP)
        try:
            assert limiter.acquire(*both, job=Job(id="1")).reason == "store unavailable"
            time.sleep(0.3)
        finally:
            cluster.processes[stalls].send_signal(signal.SIGCONT)
        with Limiter(f"{cluster.url}?socket_timeout=5") as judge:
            for slots in both:
                wait_until(lambda slots=slots: free(judge, slots) == 2, description="it is given back", timeout=10)  # type: ignore[misc]
