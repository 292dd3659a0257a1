"""Coroutines that hold slots and units are cancelled at random times, on a server that may stall meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator

import pytest

from support.faults.stalls import free
from support.servers.processes import RedisProcess, patient
from support.waiting import wait_until
from throttlekit import AsyncLimiter, Concurrency, Limiter, SlidingLog, WaitedTooLong

TASKS, ROUNDS = 60, 8
SLOTS = Concurrency("slots", 10, lease=600)
LOG = SlidingLog("log", "10000/h")


@pytest.fixture(scope="module")
def server() -> Iterator[RedisProcess]:
    server = RedisProcess()
    server.start()
    yield server
    server.close()


async def storm(url: str, seed: int, stalls: RedisProcess | None = None) -> int:
    """
    Start holds, and cancel half of them, some twice. Return how many bodies began.

    Args:
        stalls: A server that stalls for 0.6 s meanwhile.
    """
    chance, began = random.Random(seed), 0

    async def one(limiter: AsyncLimiter, last: float) -> None:
        nonlocal began
        async with limiter.hold(SLOTS, LOG, timeout=10):
            began += 1
            await asyncio.sleep(last)

    async with AsyncLimiter(url) as limiter:
        await limiter.peek(SLOTS, LOG)
        for number in range(ROUNDS):
            if stalls is not None and number == 1:
                stalls.hang()
                asyncio.get_running_loop().call_later(0.6, stalls.go_on)
            tasks = [asyncio.create_task(one(limiter, chance.random() * 0.004)) for _ in range(TASKS)]
            for task in tasks:
                for likely in (0.5, 0.2):
                    if chance.random() < likely:
                        asyncio.get_running_loop().call_later(chance.random() * 0.05, task.cancel)
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                assert outcome is None or isinstance(outcome, (asyncio.CancelledError, WaitedTooLong)), outcome
    return began


@pytest.mark.parametrize(("seed", "stalls"), [(1, False), (2, False), (3, True)])
def test_cancelled_holds_keep_nothing(server: RedisProcess, seed: int, stalls: bool) -> None:
    """
    After cancellations, every slot is free, and exactly as many units are charged as bodies began. Slots that were
    requested or released while the server stalled are free when it replies again; units of such requests are lost.
    """
    server.client.flushall()
    url = f"{server.url}/0"
    try:
        began = asyncio.run(storm(url, seed, server) if stalls else storm(patient(url), seed))
    finally:
        server.go_on()
    with contextlib.closing(Limiter(patient(url))) as judge:
        wait_until(lambda: free(judge, SLOTS) == 10, description="every slot is released", timeout=60)
        charged = 10_000 - free(judge, LOG)
    assert charged >= began if stalls else charged == began > 0
