"""Plain commands for the data that the whole fleet shares, on a server and on a cluster."""

from __future__ import annotations

import contextlib

import pytest

from throttlekit import StoreUnavailable
from throttlekit._core.storage_keys import fleet_name
from throttlekit.stores.breaker import CircuitBreaker
from throttlekit.stores.cluster import RedisClusterStore
from throttlekit.stores.memory import MemoryStore
from throttlekit.stores.redis import RedisStore

COMMANDS = [
    ("HSET", fleet_name("x"), "field", 1),
    ("HGETALL", fleet_name("x")),
    ("EVAL", "return redis.call('DEL', KEYS[1])", 1, fleet_name("x")),
]


def test_commands_run_in_order(store: RedisStore, cluster_store: RedisClusterStore) -> None:
    """The replies are in the order of the commands. On a cluster, all keys of the fleet share one hash slot."""
    for each in (store, cluster_store):
        assert each.commands(COMMANDS) == [1, {b"field": b"1"}, 1]


def test_a_missing_server_is_an_outage() -> None:
    """If the server cannot be reached, commands raise StoreUnavailable, like any other call."""
    with contextlib.closing(RedisStore("redis://127.0.0.1:1/0")) as store, pytest.raises(StoreUnavailable):
        store.commands(COMMANDS)


def test_memory_has_no_commands() -> None:
    """A store in memory has no commands: its limits are those of one process, so there is no fleet."""
    store = CircuitBreaker(MemoryStore())
    assert not store.shared
    with pytest.raises(TypeError, match="MemoryStore"):
        store.commands(COMMANDS)
