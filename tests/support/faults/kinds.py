"""The faults: what fails, how it recovers, and which effects are allowed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import redis
from redis.crc import key_slot

from support.flood.run import Flooding
from support.servers.flood import Kind, Servers
from support.servers.processes import Cluster, RabbitMQ, RedisProcess, redis_cluster, redis_server
from support.servers.proxy import Proxy
from support.servers.sentinel import Watched, watched

__all__ = ["FAULTS", "PASSWORD", "Fault", "Scene", "Shape", "scene"]

PASSWORD = "swordfish-of-the-store"  # of every limiter store here: no log may have it
KEPT = ("--appendonly", "yes", "--appendfsync", "always")
Shape = Literal["one", "kept", "sentinel", "cluster"]


@dataclass
class Scene:
    """
    The processes that a fault can affect.

    Attributes:
        store: The limiter's Redis, if it is a single server. The workers reach it through `proxy`.
        lag: How many seconds the replica that became the master was behind.
    """

    servers: Servers
    broker: RedisProcess | RabbitMQ
    store: RedisProcess
    proxy: Proxy
    watched: Watched | None = None
    cluster: Cluster | None = None
    flooding: Flooding | None = None
    lag: float = 0.0

    @property
    def workers(self) -> Flooding:
        assert self.flooding is not None
        return self.flooding


@dataclass(frozen=True)
class Fault:
    """
    Attributes:
        strike: Causes the fault, and ends it. Returns when it has ended.
        over: How many extra grants are allowed, as a function of the rate per second, the burst, and the lag.
        doubling: The frameworks whose running bodies may run again.
        of_broker: Whether the broker fails, and the workers continue.
    """

    strike: Callable[[Scene, random.Random], None]
    shape: Shape = "one"
    over: Callable[[int, int, float], int] = lambda rate, burst, lag: 0
    doubling: tuple[str, ...] = ()
    of_broker: bool = False


@contextmanager
def scene(fault: Fault, broker: Kind, alone: bool = False) -> Iterator[Scene]:
    """Separate servers for one flood: the broker, the limiter's store, and the recording Redis."""
    with ExitStack() as stack:
        base = stack.enter_context(redis_server())
        serving: RedisProcess | RabbitMQ
        serving = RabbitMQ() if broker == "rabbitmq" else RedisProcess(*KEPT)
        stack.enter_context(closing(serving)).start()
        store = RedisProcess(*(KEPT if fault.shape == "kept" else ()), password=PASSWORD)
        stack.enter_context(closing(store)).start()
        proxy = stack.enter_context(Proxy(store.port))
        pair = stack.enter_context(watched()) if fault.shape == "sentinel" else None
        cluster = stack.enter_context(redis_cluster()) if fault.shape == "cluster" else None
        url = f"redis://:{PASSWORD}@127.0.0.1:{proxy.port}/1"
        url = pair.url if pair else cluster.url if cluster else url
        where = Servers(broker, serving.url, base, limits_url=url)
        yield Scene(where, serving, store, proxy, pair, cluster)


# Workers and brokers


def _workers_killed(scene: Scene, rnd: random.Random) -> None:
    scene.workers.kill()
    _start_again(scene)


def _workers_stopped(scene: Scene, rnd: random.Random) -> None:
    scene.workers.stop()
    scene.workers.kill()
    _start_again(scene)


def _start_again(scene: Scene) -> None:
    if unlock := getattr(scene.workers, "unlock", None):
        unlock()
    scene.workers.start()


def _broker_restarted(scene: Scene, rnd: random.Random) -> None:
    scene.broker.stop()
    scene.broker.start()


def _broker_killed(scene: Scene, rnd: random.Random) -> None:
    scene.broker.kill()
    scene.broker.start()


# The store


def _store_killed(scene: Scene, rnd: random.Random) -> None:
    scene.store.kill()
    _last(rnd.uniform(0.3, 0.7))
    scene.store.start()


def _store_hung(scene: Scene, rnd: random.Random) -> None:
    scene.store.hang()
    _last(5.0)
    scene.store.go_on()


def _cut(scene: Scene, rnd: random.Random) -> None:
    for _ in range(10):
        scene.proxy.cut()
        _last(rnd.uniform(0.02, 0.1))
        scene.store.client.client_kill_filter(_type="normal", skipme=True)
        _last(rnd.uniform(0.02, 0.1))


def _slow(scene: Scene, rnd: random.Random) -> None:
    scene.proxy.delay = 0.4
    _last(2.0)
    scene.proxy.delay = 0.0


def _scripts_forgotten(scene: Scene, rnd: random.Random) -> None:
    for _ in range(20):
        scene.store.client.script_flush()
        _last(0.1)


# The store as Sentinel or Cluster


def _failed_over(scene: Scene, rnd: random.Random) -> None:
    assert scene.watched is not None
    scene.lag = scene.watched.fail_over()


def _slot_moved(scene: Scene, rnd: random.Random) -> None:
    """Move the limit's hash slot from node to node, in the steps of a real move, with some time between them."""
    assert scene.cluster is not None
    with ExitStack() as stack:
        nodes: list[Any] = [
            stack.enter_context(closing(redis.Redis.from_url(url, decode_responses=True)))
            for url in scene.cluster.node_urls
        ]
        slot = key_slot(b"partner:")
        ids = [node.execute_command("CLUSTER", "MYID") for node in nodes]
        at = next(i for i in range(3) if scene.cluster.first_slot(i) <= slot < scene.cluster.first_slot(i + 1))
        for _ in range(4):
            to = rnd.choice([i for i in range(3) if i != at])
            source, target = nodes[at], nodes[to]
            target.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[at])
            source.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[to])
            _last(rnd.uniform(0.05, 0.15))
            while keys := source.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 10):
                for key in keys:  # one by one: for a short time a bucket and its waitlist are on different nodes
                    source.execute_command("MIGRATE", "127.0.0.1", scene.cluster.ports[to], key, 0, 1000)
                    _last(0.02)
            for node in (target, source, *(node for node in nodes if node not in (source, target))):
                node.execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[to])
                _last(rnd.uniform(0.0, 0.1))
            at = to


def _last(seconds: float) -> None:
    """Sleep for the duration of the fault, which is a part of the fault and not a wait for a condition."""
    time.sleep(seconds)


_BROKER = ("dramatiq", "rq", "celery")

FAULTS: dict[str, Fault] = {
    "workers SIGKILL": Fault(_workers_killed, doubling=_BROKER),
    "workers SIGTERM": Fault(_workers_stopped, doubling=("celery",)),
    "broker restart": Fault(_broker_restarted, doubling=_BROKER, of_broker=True),
    "broker SIGKILL": Fault(_broker_killed, doubling=_BROKER, of_broker=True),
    "store SIGKILL, empty": Fault(_store_killed, over=lambda rate, burst, lag: burst),
    "store SIGKILL, persisted": Fault(_store_killed, "kept"),
    "store SIGSTOP 5 s": Fault(_store_hung),
    "connections cut": Fault(_cut),
    "latency 400 ms": Fault(_slow),
    "SCRIPT FLUSH": Fault(_scripts_forgotten),
    "Sentinel fail-over": Fault(_failed_over, "sentinel", over=lambda rate, burst, lag: burst + -int(-rate * lag // 1)),
    "slot migration": Fault(_slot_moved, "cluster"),
}
