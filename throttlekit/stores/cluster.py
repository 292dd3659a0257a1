"""The shared store on a Redis Cluster: one EVALSHA for the claims of each hash slot."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import redis
from redis.crc import key_slot
from redis.exceptions import RedisClusterException

from throttlekit._core.acquire import Verdict
from throttlekit._core.claim import StoreClaim
from throttlekit._util.fork_safety import renew_lock_after_fork
from throttlekit.errors import ConfigurationError, StoreUnavailable
from throttlekit.stores.base import Correction, Lease, Request, answer_of
from throttlekit.stores.composite import Part, acquire_in_parts
from throttlekit.stores.redis import RedisStore, begin_anew_after_fork
from throttlekit.stores.wire import arguments_of, script_of

__all__ = ["RedisClusterStore"]


_N = TypeVar("_N", StoreClaim, Correction, Lease)


class RedisClusterStore(RedisStore):
    """
    Keeps limits in a Redis or Valkey Cluster.

    Everything of one limit and key stands in one hash slot. Claims that share a slot are decided in one
    call; a job whose claims stand in several is decided on slot by slot, and what was charged is given
    back when a later one denies (`acquire_in_parts`): one round trip for each slot, and one more for each on a
    denial. The bound holds as ever.

    Args:
        url: redis+cluster:// or rediss+cluster://, and any one node: the others are asked of it.
        timeout: Seconds to wait for a connection, and for an answer.

    Raises:
        ConfigurationError: The URL cannot be read.
    """

    def __init__(self, url: str, *, timeout: float = 0.25) -> None:
        scheme, colon, rest = url.partition("://")
        self._node_url = scheme.replace("valkey", "redis").removesuffix("+cluster") + colon + rest
        super().__init__(self._node_url, timeout=timeout)
        if self._client.connection_pool.connection_kwargs.get("db", 0) != 0:
            raise ConfigurationError("a cluster has database 0 only: leave the number out of its URL")
        self._cluster: Any = None
        self._connecting = threading.Lock()
        self._failed: tuple[float, Exception] | None = None
        renew_lock_after_fork(self, "_connecting")

    def acquire(self, request: Request, now_us: int | None = None) -> Verdict:
        slots: dict[int, list[int]] = {}
        for number, claim in enumerate(request.claims):
            slots.setdefault(_slot(claim.bucket), []).append(number)
        if len(slots) == 1:
            return super().acquire(request, now_us)
        # The line that the job stands in is asked first: a job that comes back too early charges nothing.
        place = -1 if request.place is None else request.place.claim
        parts = [Part(self, claims) for claims in slots.values()]
        return acquire_in_parts(sorted(parts, key=lambda part: place not in part.claims), request, now_us)

    def acquire_all(self, requests: Sequence[Request]) -> Sequence[Verdict | Exception]:
        return [answer_of(self, request) for request in requests]

    def settle(self, corrections: Sequence[Correction], now_us: int | None = None) -> None:
        settle = super().settle
        self._slot_by_slot(corrections, lambda those: settle(those, now_us))

    def release(self, leases: Sequence[Lease], now_us: int | None = None) -> None:
        release = super().release
        self._slot_by_slot(leases, lambda those: release(those, now_us))

    def renew(self, leases: Sequence[Lease], now_us: int | None = None) -> Sequence[bool]:
        answers: dict[int, bool] = {}
        for those in _by_slot(leases):
            answers.update(zip(map(id, those), super().renew(those, now_us), strict=True))
        return [answers[id(each)] for each in leases]

    def pause(self, claims: Sequence[StoreClaim], for_us: int | None, now_us: int | None = None) -> None:
        pause = super().pause
        self._slot_by_slot(claims, lambda those: pause(those, for_us, now_us))

    def _slot_by_slot(self, what: Sequence[_N], ask: Callable[[Sequence[_N]], None]) -> None:
        """What fails in one slot keeps nothing from the others; then the first failure is raised."""
        failed: dict[str | None, StoreUnavailable] = {}
        for those in _by_slot(what):
            if self.part_of(those[0].bucket) in failed:
                continue  # the node as a whole: each more would be a time-out of its own
            try:
                ask(those)
            except StoreUnavailable as error:
                failed[error.part] = error
        if failed:
            raise next(iter(failed.values()))

    def servers(self) -> list[Any]:
        cluster = self._connected()
        return [cluster.get_redis_connection(node) for node in cluster.get_primaries()]

    def close(self) -> None:
        super().close()
        if self._cluster is not None:
            for pool in self._pools():
                pool.disconnect()
            self._cluster.close()

    def _decide(self, request: Request, now_us: int | None) -> Any:
        return self._run(script_of(request), arguments_of(request, now_us))

    def _command(self, *arguments: Any) -> Any:
        # A node that is named is asked once: else redis-py would send the command again after a time-out.
        client = self._connected()
        key = arguments[3] if arguments[0] in ("EVALSHA", "EVAL") else arguments[1]
        node = client.get_node_from_key(key)
        begin_anew_after_fork(client.get_redis_connection(node).connection_pool)
        return client.execute_command(*arguments, target_nodes=node)

    def part_of(self, name: str) -> str:
        """The node that serves *name*, as far as is known: each fails by itself."""
        try:
            return "" if self._cluster is None else str(self._cluster.get_node_from_key(name).name)
        except (RedisClusterException, AttributeError):
            return ""  # nobody serves it

    def _drop_idle(self) -> None:
        for pool in self._pools():
            pool.disconnect(inuse_connections=False)

    def _pools(self) -> list[Any]:
        nodes: list[Any] = [] if self._cluster is None else self._cluster.get_nodes()
        return [node.redis_connection.connection_pool for node in nodes if node.redis_connection is not None]

    def _connected(self) -> Any:
        asked_at = time.monotonic()
        with self._connecting:
            if self._cluster is None:
                if self._failed is not None and self._failed[0] > asked_at:
                    # Somebody has just learnt it, while this thread waited: it need not be learnt by one after another.
                    raise RedisClusterException("no node answered just now") from self._failed[1]
                try:
                    self._cluster = self._connect()
                    _Refresh(self._cluster.nodes_manager, self._options["socket_timeout"])
                except Exception as error:
                    self._failed = (time.monotonic(), error)
                    raise
            return self._cluster

    def _connect(self) -> Any:
        return redis.RedisCluster.from_url(self._node_url, **self._options)

    def _run_all(self, commands: Sequence[Sequence[str | int]]) -> list[Any]:
        return [self._command(*command) for command in commands]

    def _found(self, pattern: str) -> Iterable[Any]:
        found: Iterable[Any] = self._connected().scan_iter(match=pattern, count=1000)
        return found

    def _delete(self, names: Sequence[str]) -> None:
        for name in names:
            self._command("DEL", name)


class _Refresh:
    """
    After a failure redis-py asks for the cluster's nodes anew, one thread after the other; of nodes that all hang each
    thread would learn that by itself. Here nobody waits for another's turn for longer than for an answer.
    """

    def __init__(self, manager: Any, patience: float) -> None:
        self._initialize, self._patience = manager.initialize, patience
        self._turn = threading.RLock()
        renew_lock_after_fork(self, "_turn", threading.RLock)
        manager.initialize = self

    def __call__(self, *arguments: Any, **options: Any) -> None:
        turn = self._turn
        if not turn.acquire(timeout=self._patience):
            raise RedisClusterException("another thread is asking for the nodes")
        try:
            self._initialize(*arguments, **options)
        finally:
            turn.release()


def _by_slot(what: Sequence[_N]) -> list[list[_N]]:
    slots: dict[int, list[_N]] = {}
    for each in what:
        slots.setdefault(_slot(each.bucket), []).append(each)
    return list(slots.values())


def _slot(name: str) -> int:
    return int(key_slot(name.encode()))
