"""Empty stores for the tests of this folder, what uses a store, and a client that reads what a store has written."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from support.servers.processes import Cluster, patient
from throttlekit import Control, Limiter
from throttlekit.stores import MemoryStore, Store
from throttlekit.stores.cluster import RedisClusterStore
from throttlekit.stores.redis import RedisStore


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    with contextlib.closing(redis.Redis.from_url(redis_url)) as client:
        yield client


@pytest.fixture
def store(redis_url: str) -> Iterator[RedisStore]:
    with contextlib.closing(RedisStore(redis_url, timeout=5)) as store:
        yield store


@pytest.fixture
def limiter(redis_url: str) -> Iterator[Limiter]:
    with contextlib.closing(Limiter(patient(redis_url))) as limiter:
        yield limiter


@pytest.fixture
def control(redis_url: str) -> Iterator[Control]:
    with Control(patient(redis_url), by="ann@ops") as control:
        yield control


@pytest.fixture(scope="session")
def _cluster_store(shared_cluster: Cluster) -> Iterator[RedisClusterStore]:
    """One store for the whole run: reading a cluster's layout takes longer than most tests."""
    with contextlib.closing(RedisClusterStore(shared_cluster.url, timeout=5)) as store:
        yield store


@pytest.fixture
def cluster_store(cluster: Cluster, _cluster_store: RedisClusterStore) -> RedisClusterStore:
    """The shared store of an empty cluster."""
    return _cluster_store


def store_named(name: str, request: pytest.FixtureRequest) -> Store:
    if name == "memory":
        return MemoryStore()
    if name == "cluster":
        return request.getfixturevalue("cluster_store")  # type: ignore[no-any-return]
    return RedisStore(request.getfixturevalue("redis_url"), timeout=5)
