"""A client of the test's own server, to look at what a store has written."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import redis

pytest.register_assert_rewrite("conformance.suite")


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    with contextlib.closing(redis.Redis.from_url(redis_url)) as client:
        yield client
