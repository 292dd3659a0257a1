"""A client of the test's own server, that waits for long pipelines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

pytest.register_assert_rewrite("parity.replay")


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    client = redis.Redis.from_url(redis_url, socket_timeout=60)
    yield client
    client.close()
