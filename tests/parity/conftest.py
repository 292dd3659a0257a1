"""A client of the test's Redis server, and a pair of stores that are compared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

pytest.register_assert_rewrite("parity.waits")

from parity.waits import BothStores  # noqa: E402


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    client = redis.Redis.from_url(redis_url, socket_timeout=60)
    yield client
    client.close()


@pytest.fixture
def both(redis_url: str, client: Any) -> Iterator[BothStores]:
    """A memory store and a Redis store that are compared after each call."""
    stores = BothStores(redis_url, client)
    yield stores
    stores.close()
    client.flushdb()
