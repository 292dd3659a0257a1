"""A server that stalls: the slots, releases and units of the requests during the stall."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from conformance.bench import on_node
from support.faults.stalls import PROCESSES, STALLS, free, lost_prefetch, lost_release, lost_slots, lost_units
from support.servers.processes import RedisProcess, redis_cluster
from support.waiting import wait_until
from throttlekit import Concurrency, Job, Limit, Limiter, SlidingLog, TokenBucket


@pytest.fixture(scope="module")
def server() -> Iterator[RedisProcess]:
    server = RedisProcess()
    server.start()
    yield server
    server.close()


@pytest.mark.parametrize("seconds", STALLS)
@pytest.mark.parametrize("lease", [30, 600])
def test_a_stall_leaves_no_slot_that_no_process_holds(server: RedisProcess, seconds: float, lease: int) -> None:
    """Ten processes request while the server stalls, which later grants eight slots: all slots are released."""
    granted, took = lost_slots(server, seconds, Concurrency("reports-db", 8, lease=lease))
    print(f"stall {seconds} s, lease {lease} s: {granted} granted, all others free after {took:.2f} s")
    assert took < 10


@pytest.mark.parametrize("seconds", STALLS)
def test_a_release_during_a_stall_is_repeated(server: RedisProcess, seconds: float) -> None:
    """A slot that is released during a stall is free soon after it, and not only when its lease of ten minutes ends."""
    took = lost_release(server, seconds)
    print(f"stall {seconds} s: free after {took:.2f} s")
    assert took < 10


@pytest.mark.parametrize("seconds", STALLS)
@pytest.mark.parametrize("limit", [TokenBucket("bucket", "100/h", burst=100), SlidingLog("log", "100/h")])
def test_a_stall_costs_a_rate_at_most_one_unit_for_each_request(
    server: RedisProcess, seconds: float, limit: Limit
) -> None:
    """At most one unit is lost for each waiting connection, and no grant is without a charge."""
    granted, lost = lost_units(server, seconds, limit)
    print(f"stall {seconds} s, {limit.name}: {granted} granted, {lost} charged and lost")
    assert 0 <= lost <= PROCESSES - granted


@pytest.mark.parametrize("seconds", STALLS)
def test_a_stall_costs_a_process_no_more_than_one_prefetch(server: RedisProcess, seconds: float) -> None:
    """Units that a request without a reply prefetched are lost, at most `prefetch` for each process."""
    charged = lost_prefetch(server, seconds)
    print(f"stall {seconds} s: {charged} units charged and lost")
    assert charged <= 10 * PROCESSES + 2


@pytest.mark.parametrize("stalls", [0, 1])
def test_a_node_that_stalls_leaves_no_slot(stalls: int) -> None:
    """If one of two nodes with slots of a job stalls, the slots of both are free soon after the stall."""
    with redis_cluster() as cluster, Limiter(cluster.url) as limiter:
        both = [on_node(number, Concurrency, 2, lease=600) for number in range(2)]
        limiter.cancel(limiter.acquire(*both))
        cluster.processes[stalls].send_signal(signal.SIGSTOP)
        try:
            assert limiter.acquire(*both, job=Job(id="1")).reason == "store unavailable"
            time.sleep(0.3)
        finally:
            cluster.processes[stalls].send_signal(signal.SIGCONT)
        with Limiter(f"{cluster.url}?socket_timeout=5") as judge:
            for slots in both:
                wait_until(lambda slots=slots: free(judge, slots) == 2, description="slots released", timeout=10)  # type: ignore[misc]
