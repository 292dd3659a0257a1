"""The store conformance suite for every store: in memory, on each supported server, on a cluster."""

from __future__ import annotations

from typing import ClassVar

import pytest

from support.servers.processes import Cluster
from throttlekit.stores import MemoryStore, Store
from throttlekit.stores.cluster import RedisClusterStore
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


class TestRedisStoreOnRedis6(TestRedisStore):
    @pytest.fixture(autouse=True)
    def _server(self, redis_6_url: str) -> None:
        self.url = redis_6_url


class TestRedisStoreOnValkey(TestRedisStore):
    @pytest.fixture(autouse=True)
    def _server(self, valkey_url: str) -> None:
        self.url = valkey_url


class TestRedisClusterStore(StoreConformance):
    store: ClassVar[RedisClusterStore | None] = None

    @pytest.fixture(autouse=True)
    def _server(self, cluster: Cluster) -> None:
        self.url = cluster.url

    def make_store(self) -> Store:
        # One for all tests: to learn a cluster's layout takes longer than most of them. What it knows is emptied.
        if TestRedisClusterStore.store is None:
            TestRedisClusterStore.store = RedisClusterStore(self.url, timeout=5)
        return TestRedisClusterStore.store
