"""Create a store from a client of redis-py."""

from __future__ import annotations

import copy
from typing import Any

import redis
from redis.cluster import ClusterNode

from throttlekit.errors import ConfigurationError
from throttlekit.stores.cluster import RedisClusterStore
from throttlekit.stores.redis import RedisStore
from throttlekit.stores.redis_server import connection_options
from throttlekit.stores.sentinel import master_client

__all__ = ["store_of_client"]

_TIMEOUT = 0.25
# Options that belong to the client's own pool, or that make redis-py send a command again.
_NOT_COPIED = frozenset(
    {
        "connection_pool",
        "event_dispatcher",
        "himport_registry",
        "maint_notifications_config",
        "maint_notifications_pool_handler",
        "oss_cluster_maint_notifications_handler",
        "orig_host_address",
        "orig_socket_connect_timeout",
        "orig_socket_timeout",
        "retry_on_error",
        "retry_on_timeout",
    }
)


class _ServerOfClient(RedisStore):
    """A store on the server of *client*, or on the master that its Sentinels name."""

    def __init__(self, client: Any) -> None:
        pool = client.connection_pool
        if not hasattr(pool, "sentinel_manager"):
            self._connect_with(_client_like(pool))
            return
        if not pool.is_master:
            raise ConfigurationError(
                "client= reads from replicas, which reject writes: create it with Sentinel.master_for"
            )
        manager = copy.copy(pool.sentinel_manager)
        manager.sentinels = [_client_like(each.connection_pool) for each in manager.sentinels]
        manager.connection_kwargs = {**_settings(pool.connection_kwargs), "connection_class": pool.connection_class}
        self._connect_with(master_client(manager, pool.service_name))


class _ClusterOfClient(RedisClusterStore):
    """A store on the cluster of *client*."""

    def __init__(self, client: Any) -> None:
        nodes = client.nodes_manager
        self._settings = _settings(nodes.connection_kwargs)
        kind = self._settings.pop(
            "connection_class", None
        )  # from_url adds this option, and RedisCluster does not accept it
        if isinstance(kind, type) and issubclass(kind, redis.SSLConnection):
            self._settings["ssl"] = True
        self._nodes = [(node.host, node.port) for node in (*nodes.startup_nodes.values(), *client.get_nodes())]
        self._address_remap = nodes.address_remap
        host, port = self._nodes[0]
        super().__init__(f"redis+cluster://{host}:{port}")

    def _connect(self) -> Any:
        node: Any = ClusterNode
        return redis.RedisCluster(
            startup_nodes=[node(host, port) for host, port in self._nodes],
            address_remap=self._address_remap,
            **self._settings,
        )


def store_of_client(client: object) -> RedisStore:
    """
    Return a store on the server that *client* uses.

    The store copies the client's address, user, TLS options, Sentinel service or cluster nodes. It does not copy the
    time-outs, retries and decoding, because it creates its own connections. The client is not changed.

    Raises:
        ConfigurationError: *client* is not a `redis.Redis` or `redis.RedisCluster` that writes to a master.
    """
    try:
        if isinstance(client, redis.RedisCluster):
            return _ClusterOfClient(client)
        if isinstance(client, redis.Redis):
            return _ServerOfClient(client)
    except TypeError as error:
        # The error's text may contain a password.
        raise ConfigurationError(
            "client= has a connection class with other arguments than redis-py's, so it cannot be used. "
            "Pass a URL, or your own store"
        ) from error
    module, name = type(client).__module__, type(client).__name__
    kind = "an asyncio client" if "asyncio" in module else f"a {name}"
    raise ConfigurationError(
        f"client= takes a redis.Redis or redis.RedisCluster, not {kind}: the limiter blocks for a round trip. "
        "Pass redis.Redis(…), or a URL"
    )


def _client_like(pool: Any) -> Any:
    own = redis.ConnectionPool(connection_class=pool.connection_class, **_settings(pool.connection_kwargs))
    return redis.Redis(connection_pool=own)


def _settings(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in _NOT_COPIED} | connection_options(_TIMEOUT)
