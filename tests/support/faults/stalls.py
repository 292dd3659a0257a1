"""A server that stalls for some time, by SIGSTOP, and what the requests during the stall have taken."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Generator, Sequence

from support.servers.processes import RedisProcess, patient
from support.waiting import wait_until
from throttlekit import Concurrency, Job, Limit, Limiter, TokenBucket

__all__ = [
    "PROCESSES",
    "STALLS",
    "free",
    "lost_prefetch",
    "lost_release",
    "lost_slots",
    "lost_units",
    "request_together",
    "stalled",
    "warm",
]

STALLS = (0.3, 0.6, 2.0)
PROCESSES = 10


@contextlib.contextmanager
def warm(server: RedisProcess) -> Generator[list[Limiter], None, None]:
    """Ten limiters, like those of ten processes, on an empty server."""
    server.client.flushall()
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Limiter(f"{server.url}/0")) for _ in range(PROCESSES)]


@contextlib.contextmanager
def stalled(server: RedisProcess, seconds: float) -> Generator[None, None, None]:
    """Run the block while the server stalls for *seconds*."""
    server.hang()
    timer = threading.Timer(seconds, server.go_on)
    timer.start()
    try:
        yield
    finally:
        timer.join()


def request_together(limiters: Sequence[Limiter], limit: Limit) -> int:
    """Let each limiter make one request in a separate thread. Return how many were allowed."""
    allowed: list[bool] = []

    def request_once(number: int, limiter: Limiter) -> None:
        allowed.append(limiter.acquire(limit, job=Job(id=str(number))).allowed)

    threads = [threading.Thread(target=request_once, args=each) for each in enumerate(limiters)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return sum(allowed)


def free(limiter: Limiter, limit: Limit) -> int:
    return limiter.peek(limit, cost=0).remaining


def lost_units(server: RedisProcess, seconds: float, limit: Limit) -> tuple[int, int]:
    """
    Let ten processes make one request in a stall. Return how many are granted, and how many further units are charged.
    """
    with warm(server) as limiters:
        for limiter in limiters:
            limiter.peek(limit)
        with stalled(server, seconds):
            granted = request_together(limiters, limit)
        with _judge(server) as judge:
            return granted, limit.capacity - free(judge, limit) - granted


def lost_prefetch(server: RedisProcess, seconds: float) -> int:
    """Return how many units are charged for `prefetch=10` in a stall, beyond those that were prefetched before."""
    limit = TokenBucket("ahead", "36000/h", burst=1000, prefetch=10, prefetch_for=30)
    with warm(server) as limiters:
        for limiter in limiters:
            for _ in range(12):
                limiter.acquire(limit)
        with _judge(server) as judge:
            before, began = free(judge, limit), time.monotonic()
            with stalled(server, seconds):
                for _ in range(9):  # eight are prefetched; on a busy machine the stall is over before the ninth
                    request_together(limiters, limit)
            return max(0, int(before + 10 * (time.monotonic() - began) - free(judge, limit)))


def lost_slots(server: RedisProcess, seconds: float, slots: Concurrency) -> tuple[int, float]:
    """
    Let ten processes request a slot in a stall. Return how many are granted, and after how many seconds the other slots
    are free.
    """
    with warm(server) as limiters:
        for limiter in limiters:
            limiter.peek(slots)
        with stalled(server, seconds):
            granted = request_together(limiters, slots)
        return granted, _until_free(server, slots, slots.capacity - granted)


def lost_release(server: RedisProcess, seconds: float) -> float:
    """Return after how many seconds a slot is free that was released in a stall."""
    slots = Concurrency("c", 1, lease=600)
    with warm(server) as limiters:
        decision = limiters[0].acquire(slots)
        assert decision
        with stalled(server, seconds):
            limiters[0].release(decision)
        return _until_free(server, slots, 1)


def _until_free(server: RedisProcess, slots: Concurrency, count: int) -> float:
    over = time.monotonic()
    with _judge(server) as judge:
        wait_until(lambda: free(judge, slots) == count, description="the slots are released", timeout=30)
        took = time.monotonic() - over
        time.sleep(0.5)
        assert free(judge, slots) == count, "the slots stay free"
    return took


def _judge(server: RedisProcess) -> Limiter:
    return Limiter(patient(f"{server.url}/0"))
