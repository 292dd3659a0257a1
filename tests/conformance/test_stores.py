"""The store conformance suite for every store: in memory, on Redis, on a cluster; on other servers, the shipped one."""

from __future__ import annotations

from typing import ClassVar

import pytest

from conformance.suite.store import StoreSuite
from support.servers.processes import Cluster
from throttlekit.stores import MemoryStore, Store
from throttlekit.stores.cluster import RedisClusterStore
from throttlekit.stores.redis import RedisStore
from throttlekit.testing import StoreConformance


class InMemory:
    def make_store(self) -> Store:
        return MemoryStore()


class OnRedis:
    @pytest.fixture(autouse=True)
    def _server(self, redis_url: str) -> None:
        self.url = redis_url

    def make_store(self) -> Store:
        return RedisStore(self.url, timeout=5)


class TestMemoryStore(InMemory, StoreSuite):
    """By the examples."""


class TestMemoryStoreBySpecification(InMemory, StoreConformance):
    """It is the specification: two of it answer alike."""


class TestRedisStore(OnRedis, StoreSuite):
    """By the examples."""


class TestRedisStoreBySpecification(OnRedis, StoreConformance):
    """Its answers are those of the specification."""


class TestRedisStoreOnRedis6(TestRedisStoreBySpecification):
    @pytest.fixture(autouse=True)
    def _server(self, redis_6_url: str) -> None:
        self.url = redis_6_url


class TestRedisStoreOnValkey(TestRedisStoreBySpecification):
    @pytest.fixture(autouse=True)
    def _server(self, valkey_url: str) -> None:
        self.url = valkey_url


class TestRedisClusterStore(StoreSuite):
    store: ClassVar[RedisClusterStore | None] = None

    @pytest.fixture(autouse=True)
    def _server(self, cluster: Cluster) -> None:
        self.url = cluster.url

    def make_store(self) -> Store:
        # One for all tests: to learn a cluster's layout takes longer than most of them. What it knows is emptied.
        if TestRedisClusterStore.store is None:
            TestRedisClusterStore.store = RedisClusterStore(self.url, timeout=5)
        return TestRedisClusterStore.store
