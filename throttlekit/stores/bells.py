"""Receive the wake messages of one owner, which the calls of other processes publish on the owner's channel."""

from __future__ import annotations

import logging
import math
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import redis
from redis.exceptions import RedisError

from throttlekit._core.waitlist import Wake
from throttlekit._util.fork_safety import renew_lock_after_fork
from throttlekit.stores.wire import bell_of

__all__ = ["Listener", "NodeListeners", "client_of_its_own"]

_OnWakes: TypeAlias = Callable[[str, Sequence[Wake]], None]

_LOG = logging.getLogger("throttlekit")
_POLL_S, _FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 0.1, 2.0

_PROBES = (("TCP_KEEPIDLE", 30), ("TCP_KEEPALIVE", 30), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
_PROBED: dict[str, Any] = {
    "socket_keepalive": True,
    "socket_keepalive_options": {getattr(socket, name): value for name, value in _PROBES if hasattr(socket, name)},
}
"""The options of a connection that fails 45 s after its server is gone: the defaults of the newest redis-py."""


class Listener:
    """
    Receives wake messages in a thread with its own connection. A script knows that an owner listens if its message has
    a receiver.

    Args:
        client: A client of redis-py for the server of the limits.
        channel: The channel of the owner.
        on_wakes: Called with the bucket and the wakes of each message.
        missed: Called when the listener begins to listen, also again after a lost connection: wake messages may have
            been missed before that.
        demoted_at: Returns when a call last found that the server is a replica, by the monotonic clock. The listener
            subscribes again 2 s later. By then the store has new connections, and these may lead to the new master.
    """

    def __init__(
        self,
        client: Any,
        channel: str,
        on_wakes: _OnWakes,
        missed: Callable[[], None],
        demoted_at: Callable[[], float] = lambda: -math.inf,
    ) -> None:
        self._client, self._channel = client, channel
        self._on_wakes, self._missed, self._demoted_at = on_wakes, missed, demoted_at
        self._pause_s = _FIRST_PAUSE_S
        self._pubsub: Any = None
        self._closed = threading.Event()
        self._listens = False
        self._thread = threading.Thread(target=self._run, name="throttlekit-listener", daemon=True)
        self._thread.start()

    def begin_to_close(self) -> None:
        """Interrupt the thread, which may otherwise wait up to a second for a message."""
        self._closed.set()
        if self._listens:
            with suppress(RedisError, OSError):
                self._pubsub.unsubscribe(self._channel)

    def close(self) -> None:
        self.begin_to_close()
        self._thread.join()
        self._client.close()

    def _run(self) -> None:
        while not self._closed.is_set():
            pubsub = self._pubsub = self._client.pubsub(ignore_subscribe_messages=False)
            began = time.monotonic()
            try:
                pubsub.subscribe(self._channel)
                self._listen(pubsub, began)
            except (RedisError, OSError) as error:
                _LOG.debug("The connection on which this process receives wakes was lost: %s", error)
                self._closed.wait(self._pause_s)
                self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
            finally:
                self._listens = False
                pubsub.close()

    def _listen(self, pubsub: Any, began: float) -> None:
        while not self._closed.is_set() and not began < self._demoted_at() + _LONGEST_PAUSE_S < time.monotonic():
            message = pubsub.get_message(timeout=_POLL_S)
            if message is not None:
                try:
                    self._read(message)
                except Exception:
                    _LOG.exception("A message on %s could not be read.", self._channel)

    def _read(self, message: dict[str, Any]) -> None:
        if message["type"] == "subscribe":
            self._pause_s = _FIRST_PAUSE_S
            self._listens = True
            self._missed()
        elif message["type"] == "message":
            self._on_wakes(*bell_of(message["data"]))


@dataclass(slots=True, eq=False)
class _Owner:
    """An owner that listens on several nodes, which are the keys of *listeners*."""

    channel: str
    on_wakes: _OnWakes
    missed: Callable[[], None]
    listeners: dict[str, Listener] = field(default_factory=dict[str, Listener])


@dataclass(slots=True, eq=False)
class _Here:
    """The owners that listen, and the nodes on which all of them do. A forked child begins with neither."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    nodes: set[str] = field(default_factory=set[str])
    owners: list[_Owner] = field(default_factory=list[_Owner])


class NodeListeners:
    """
    Receives wake messages from each node of a cluster to which this process sends requests, including nodes that join
    later, until they leave. A script knows that an owner listens if its message has a receiver on the script's node.
    """

    def __init__(self) -> None:
        self._here = _Here()
        renew_lock_after_fork(self, "_here", _Here)

    def reach(self, cluster: Any, node: Any) -> None:
        """
        Let all owners listen on *node* of redis-py's client *cluster*, and no longer on nodes that have left the
        cluster: a new node may replace one of them. Called before each request to *node*.
        """
        here = self._here
        if node.name in here.nodes:
            return
        with here.lock, suppress(RuntimeError):  # no thread can start; the next request tries again
            present = {node.name, *(each.name for each in cluster.get_nodes())}
            here.nodes &= present
            for owner in here.owners:
                for name in owner.listeners.keys() - present:
                    owner.listeners.pop(name).begin_to_close()
                if node.name not in owner.listeners:
                    client = client_of_its_own(cluster.get_redis_connection(node).connection_pool)
                    owner.listeners[node.name] = Listener(client, owner.channel, owner.on_wakes, owner.missed)
            here.nodes.add(node.name)

    def listen(self, name: str, on_wakes: _OnWakes, missed: Callable[[], None]) -> Callable[[], None]:
        """Add the owner *name*, which listens on each node from the next `reach` on. Return a function that ends it."""
        here, owner = self._here, _Owner(f"tk1:{name}", on_wakes, missed)
        with here.lock:
            here.owners.append(owner)
            here.nodes.clear()

        def end() -> None:
            with here.lock:
                here.owners.remove(owner)
            for each in owner.listeners.values():
                each.begin_to_close()
            for each in owner.listeners.values():
                each.close()

        return end


def client_of_its_own(pool: Any) -> Any:
    """
    Return a client with the options of *pool*, and its own connections, which `close` of the store keeps open, and
    which are probed while they are idle: a listener only reads, so it would not notice that a connection is lost.
    """
    options: dict[str, Any] = pool.connection_kwargs
    if issubclass(pool.connection_class, redis.Connection):  # not a Unix socket
        options = {**options, **{name: value for name, value in _PROBED.items() if options.get(name) is None}}
    own = redis.ConnectionPool(connection_class=pool.connection_class, **options)
    return redis.Redis(connection_pool=own)
