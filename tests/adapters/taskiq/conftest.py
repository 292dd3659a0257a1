"""A broker in memory, which runs each task as it is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from taskiq import InMemoryBroker, SimpleRetryMiddleware

from throttlekit import Limiter
from throttlekit_taskiq import Throttle


@pytest.fixture
def make_memory_broker(limiter: Limiter) -> Callable[..., InMemoryBroker]:
    """Return a function that makes a broker in memory. By default, it has the test's limiter."""

    def make(limiter: Limiter = limiter) -> InMemoryBroker:
        broker = InMemoryBroker(await_inplace=True)
        broker.add_middlewares(SimpleRetryMiddleware(), Throttle(limiter))
        return broker

    return make


@pytest.fixture
def broker(make_memory_broker: Callable[..., InMemoryBroker]) -> InMemoryBroker:
    return make_memory_broker()


@pytest.fixture
def run_task(broker: InMemoryBroker) -> Callable[[Any], Any]:
    """Return a function that starts the broker, sends a task, and returns its result."""

    def run_task(task: Any) -> Any:
        async def main() -> Any:
            await broker.startup()
            return await (await asyncio.wait_for(task.kiq(), 30)).get_result()

        return asyncio.run(main())

    return run_task
