"""One suite, every store."""

from __future__ import annotations

import pytest

from throttlekit.stores import MemoryStore, Store
from throttlekit.stores.redis import RedisStore
from throttlekit.testing import StoreConformance


class TestMemoryStore(StoreConformance):
    def make_store(self) -> Store:
        return MemoryStore()


class TestRedisStore(StoreConformance):
    @pytest.fixture(autouse=True)
    def _server(self, redis_url: str) -> None:
        self.url = redis_url

    def make_store(self) -> Store:
        return RedisStore(self.url, timeout=5)
