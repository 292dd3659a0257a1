"""The store on a Redis Cluster: one EVALSHA for the claims of each hash slot."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import redis
from redis.crc import key_slot
from redis.exceptions import RedisClusterException

from throttlekit._core.answer import Answer, Requester
from throttlekit._core.claim import StoreClaim
from throttlekit._core.wait_control import Charge, Where
from throttlekit._core.waitlist import Wake
from throttlekit._util.fork_safety import renew_lock_after_fork
from throttlekit.errors import ConfigurationError, StoreUnavailable
from throttlekit.stores.base import Correction, Lease, Request, Slowing, decide_or_error
from throttlekit.stores.bells import NodeListeners
from throttlekit.stores.errors import STORE_ERRORS
from throttlekit.stores.parts import Part, decide_in_parts
from throttlekit.stores.redis import RedisStore
from throttlekit.stores.redis_server import renew_pool_lock_after_fork

__all__ = ["RedisClusterStore"]


_N = TypeVar("_N", StoreClaim, Charge, Correction, Lease, Slowing)


class RedisClusterStore(RedisStore):
    """
    Keeps limits in a Redis or Valkey Cluster.

    All stored keys of one limit under one key share a hash slot. Claims in the same hash slot are decided in one
    call. If a job has claims in several hash slots, each slot is decided in its own round trip. If one slot denies, the
    units that were charged before are returned, with one more round trip for each charged hash slot
    (`decide_in_parts`). The bound of each limit always holds.

    Args:
        url: redis+cluster:// or rediss+cluster://, and any node of the cluster, which reports the other nodes.
        timeout: Seconds to wait for a connection, and for a reply.

    Raises:
        ConfigurationError: The URL is not valid.
    """

    def __init__(self, url: str, *, timeout: float = 0.25) -> None:
        scheme, colon, rest = url.partition("://")
        self._node_url = scheme.replace("valkey", "redis").removesuffix("+cluster") + colon + rest
        super().__init__(self._node_url, timeout=timeout)
        if self._client.connection_pool.connection_kwargs.get("db", 0) != 0:
            raise ConfigurationError("a cluster has only database 0: leave the number out of its URL")
        self.address = f"{self.address.removesuffix('/0')}, cluster"
        self._cluster: Any = None
        self._connect_lock = threading.Lock()
        self._connect_error: tuple[float, Exception] | None = None
        self._listeners = NodeListeners()
        renew_lock_after_fork(self, "_connect_lock")

    def decide(
        self, claims: Sequence[StoreClaim], requester: Requester, now_us: int | None = None, *, attempt: str = ""
    ) -> Answer:
        groups = _by_hash_slot(claims)
        if len(groups) == 1:
            return super().decide(claims, requester, now_us, attempt=attempt)
        return decide_in_parts([Part(self, numbers) for numbers in groups], claims, requester, now_us, attempt=attempt)

    def decide_all(self, requests: Sequence[Request]) -> Sequence[Answer | Exception]:
        return [decide_or_error(self, request) for request in requests]

    def renew(self, leases: Sequence[Lease], now_us: int | None = None) -> Sequence[bool]:
        answers: dict[int, bool] = {}
        for numbers in _by_hash_slot(leases):
            answers.update(zip(numbers, super().renew([leases[i] for i in numbers], now_us), strict=True))
        return [answers[number] for number in range(len(leases))]

    def _for_each_hash_slot(self, items: Sequence[_N], call: Callable[[Sequence[_N]], None]) -> None:
        """Run *call* for the items of each hash slot, even after one has failed. Then raise the first error."""
        errors: dict[str | None, StoreUnavailable] = {}
        for numbers in _by_hash_slot(items):
            if self.part_of(items[numbers[0]].bucket) in errors:
                continue  # its node is down: another call would cost another time-out
            try:
                call([items[i] for i in numbers])
            except StoreUnavailable as error:
                errors[error.part] = error
        if errors:
            raise next(iter(errors.values()))

    def listen(
        self, owner: str, on_wakes: Callable[[str, Sequence[Wake]], None], missed: Callable[[], None]
    ) -> Callable[[], None]:
        end = self._listeners.listen(owner, on_wakes, missed)
        with suppress(*STORE_ERRORS):  # otherwise the first request to each node reaches it
            cluster = self._redis_py()
            for node in cluster.get_primaries():
                self._listeners.reach(cluster, node)
        return end

    def servers(self) -> list[Any]:
        cluster = self._redis_py()
        return [cluster.get_redis_connection(node) for node in cluster.get_primaries()]

    def close(self) -> None:
        super().close()
        if self._cluster is not None:
            for pool in self._pools():
                pool.disconnect()
            self._cluster.close()

    def _decide(self, claims: Sequence[StoreClaim], requester: Requester, now_us: int | None, attempt: str) -> Any:
        return self._run(*self._question(claims, requester, now_us, attempt))

    def _command(self, *arguments: Any) -> Any:
        # With target_nodes, redis-py sends the command once. Otherwise it would send it again after a time-out.
        client = self._redis_py()
        key = arguments[3] if arguments[0] in ("EVALSHA", "EVAL") else arguments[1]
        node = client.get_node_from_key(key)
        self._listeners.reach(client, node)
        renew_pool_lock_after_fork(client.get_redis_connection(node).connection_pool)
        return client.execute_command(*arguments, target_nodes=node)

    def part_of(self, name: str) -> str:
        """Return the node that serves *name*; "" if unknown. Nodes fail independently."""
        try:
            return "" if self._cluster is None else str(self._cluster.get_node_from_key(name).name)
        except (RedisClusterException, AttributeError):
            return ""  # no node serves it

    def _close_idle(self) -> None:
        for pool in self._pools():
            pool.disconnect(inuse_connections=False)

    def _pools(self) -> list[Any]:
        nodes: list[Any] = [] if self._cluster is None else self._cluster.get_nodes()
        return [node.redis_connection.connection_pool for node in nodes if node.redis_connection is not None]

    def _redis_py(self) -> Any:
        """Return the client for the cluster. The first call creates it."""
        called_at = time.monotonic()
        with self._connect_lock:
            if self._cluster is None:
                if self._connect_error is not None and self._connect_error[0] > called_at:
                    # Another thread has failed while this one waited for the lock: do not wait for a time-out as well.
                    raise RedisClusterException("no node answered just now") from self._connect_error[1]
                try:
                    self._cluster = self._connect()
                    _NodeRefresh(self._cluster.nodes_manager, self._options["socket_timeout"])
                except Exception as error:
                    self._connect_error = (time.monotonic(), error)
                    raise
            return self._cluster

    def _connect(self) -> Any:
        return redis.RedisCluster.from_url(self._node_url, **self._options)

    def _run_all(self, commands: Sequence[Sequence[str | int]]) -> list[Any]:
        return [self._command(*command) for command in commands]

    def _clear(self, buckets: Sequence[str]) -> int:
        clear = super()._clear
        return sum(clear([bucket]) for bucket in buckets)

    def _entries_of(self, claims: Sequence[StoreClaim], id: str, now_us: int | None) -> list[Where]:
        found: list[Where] = []
        for numbers in _by_hash_slot(claims):
            entries = super()._entries_of([claims[i] for i in numbers], id, now_us)
            found += [each._replace(claim=numbers[each.claim]) for each in entries]
        return found


class _NodeRefresh:
    """
    Replaces `initialize` of redis-py's nodes manager, which runs under a lock after each failure.

    If all nodes hang, each thread would wait for the time-outs of all threads before it. With this class, a thread
    waits for the lock for at most one time-out.
    """

    def __init__(self, manager: Any, timeout: float) -> None:
        self._initialize, self._timeout = manager.initialize, timeout
        self._lock = threading.RLock()
        renew_lock_after_fork(self, "_lock", threading.RLock)
        manager.initialize = self

    def __call__(self, *arguments: Any, **options: Any) -> None:
        lock = self._lock
        if not lock.acquire(timeout=self._timeout):
            raise RedisClusterException("another thread is refreshing the list of nodes")
        try:
            self._initialize(*arguments, **options)
        finally:
            lock.release()


def _by_hash_slot(items: Sequence[_N]) -> list[list[int]]:
    """Return the numbers of *items*, in groups, one for each hash slot."""
    groups: dict[int, list[int]] = {}
    for number, each in enumerate(items):
        groups.setdefault(_hash_slot(each.bucket), []).append(number)
    return list(groups.values())


def _hash_slot(name: str) -> int:
    return int(key_slot(name.encode("utf-8", "surrogatepass")))  # sending raises the error for an invalid name
