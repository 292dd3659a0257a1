"""A server that stands still for a while, with SIGSTOP, and what requests that met it have taken."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Generator, Sequence

from support.servers.processes import RedisProcess, patient
from support.waiting import wait_until
from throttlekit import Concurrency, Job, Limit, Limiter, TokenBucket

__all__ = [
    "PROCESSES", "STALLS", "ask_together", "free", "lost_prefetch", "lost_release", "lost_slots", "lost_units",
    "stalled", "warm",
]  # fmt: skip

STALLS = (0.3, 0.6, 2.0)
PROCESSES = 10


@contextlib.contextmanager
def warm(server: RedisProcess) -> Generator[list[Limiter], None, None]:
    """Limiters as ten processes have them, on an empty server."""
    server.client.flushall()
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Limiter(f"{server.url}/0")) for _ in range(PROCESSES)]


@contextlib.contextmanager
def stalled(server: RedisProcess, seconds: float) -> Generator[None, None, None]:
    """The server stands still for so long, and goes on; the block runs meanwhile."""
    server.hang()
    going_on = threading.Timer(seconds, server.go_on)
    going_on.start()
    try:
        yield
    finally:
        going_on.join()


def ask_together(limiters: Sequence[Limiter], limit: Limit) -> int:
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


def lost_units(server: RedisProcess, seconds: float, limit: Limit) -> tuple[int, int]:
    """How many of ten processes that ask once in a stall are granted, and how many units are charged besides."""
    with warm(server) as limiters:
        for limiter in limiters:
            limiter.peek(limit)
        with stalled(server, seconds):
            granted = ask_together(limiters, limit)
        with _judge(server) as judge:
            return granted, limit.capacity - free(judge, limit) - granted


def lost_prefetch(server: RedisProcess, seconds: float) -> int:
    """How many units are charged to `prefetch=10` in a stall, beyond those that were in hand before."""
    limit = TokenBucket("ahead", "36000/h", burst=1000, prefetch=10, prefetch_for=30)
    with warm(server) as limiters:
        for limiter in limiters:
            for _ in range(12):
                limiter.acquire(limit)
        with _judge(server) as judge:
            before, began = free(judge, limit), time.monotonic()
            with stalled(server, seconds):
                for _ in range(9):  # eight are in hand; on a busy machine the stall is over before the ninth
                    ask_together(limiters, limit)
            return max(0, int(before + 10 * (time.monotonic() - began) - free(judge, limit)))


def lost_slots(server: RedisProcess, seconds: float, slots: Concurrency) -> tuple[int, float]:
    """How many of ten processes that ask once in a stall are granted; the seconds until no process's slots are free."""
    with warm(server) as limiters:
        for limiter in limiters:
            limiter.peek(slots)
        with stalled(server, seconds):
            granted = ask_together(limiters, slots)
        return granted, _until_free(server, slots, slots.capacity - granted)


def lost_release(server: RedisProcess, seconds: float) -> float:
    """The seconds until a slot is free whose release met a stall."""
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
        wait_until(lambda: free(judge, slots) == count, description="the slots are given back", timeout=30)
        took = time.monotonic() - over
        time.sleep(0.5)
        assert free(judge, slots) == count, "and stay free"
    return took


def _judge(server: RedisProcess) -> Limiter:
    return Limiter(patient(f"{server.url}/0"))
