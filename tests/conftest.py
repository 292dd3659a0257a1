"""Fixtures for every room. A missing server skips with its reason; with THROTTLEKIT_REQUIRE_SERVERS it fails."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
import redis

from support.servers import ServerMissing, rabbitmq_server, shared_redis


@contextlib.contextmanager
def _or_skip(server: Callable[[], AbstractContextManager[str]]) -> Iterator[str]:
    try:
        manager = server()
        url = manager.__enter__()
    except ServerMissing as error:
        if os.environ.get("THROTTLEKIT_REQUIRE_SERVERS"):
            raise
        pytest.skip(str(error))
    try:
        yield url
    finally:
        manager.__exit__(None, None, None)


@pytest.fixture(scope="session")
def redis_base() -> Iterator[str]:
    """A Redis for the whole run: its URL without a database number."""
    with _or_skip(shared_redis) as url:
        yield url


@pytest.fixture(scope="session")
def rabbitmq_url() -> Iterator[str]:
    """A RabbitMQ for the whole run."""
    with _or_skip(rabbitmq_server) as url:
        yield url


_DATABASES = itertools.cycle(range(1, 16))


@pytest.fixture
def redis_url(redis_base: str) -> Iterator[str]:
    """An empty Redis database. A test that leaves a limiter's key without a TTL fails."""
    url = f"{redis_base}/{next(_DATABASES)}"
    client = redis.Redis.from_url(url)
    client.flushdb()
    yield url
    eternal = [key for key in client.scan_iter("tk1:*") if client.ttl(key) == -1]
    client.flushdb()
    client.close()
    assert not eternal, f"keys without a TTL: {eternal}"
