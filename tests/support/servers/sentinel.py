"""A Redis, its replica, and a Sentinel that makes the replica the master after a failure."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from support.servers.processes import RedisProcess, free_port, redis_binary
from support.waiting import wait_until

__all__ = ["Watched", "guarded", "watched"]

_SERVICE = "limits"


@dataclass
class Watched:
    """Two servers, and the Sentinel that monitors them."""

    master: RedisProcess
    replica: RedisProcess
    sentinel: Any
    port: int

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.port}/{_SERVICE}/0"

    def fail_over(self) -> float:
        """
        Kill the master, and wait until its replica has taken over. Return how many seconds the replica was behind.
        """
        # Replication on one machine takes less than a millisecond, so the replica is stopped to create a lag.
        began = time.monotonic()
        self.replica.hang()
        wait_until(lambda: time.monotonic() - began > 0.2, description="the replica is behind")
        self.master.kill()
        lag = time.monotonic() - began
        self.replica.go_on()
        wait_until(
            lambda: (
                int(self.sentinel.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", _SERVICE)[1]) == self.replica.port
                and self.replica.client.role()[0] == "master"
            ),
            description="the replica has taken over",
        )
        return lag


@contextlib.contextmanager
def watched() -> Iterator[Watched]:
    """A master, its replica, and a Sentinel that knows both. It takes about two seconds."""
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(contextlib.closing(RedisProcess()))
        master.start()
        replica = stack.enter_context(contextlib.closing(RedisProcess("--replicaof", "127.0.0.1", str(master.port))))
        replica.start()
        port, folder = free_port(), stack.enter_context(tempfile.TemporaryDirectory(prefix="tk-sentinel-"))
        file = Path(folder, "sentinel.conf")
        file.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {folder}\n"
            f"sentinel monitor {_SERVICE} 127.0.0.1 {master.port} 1\n"
            f"sentinel down-after-milliseconds {_SERVICE} 1000\n"
            f"sentinel failover-timeout {_SERVICE} 3000\n"
        )
        process = subprocess.Popen([redis_binary(), str(file), "--sentinel"], stdout=subprocess.DEVNULL)
        stack.callback(process.wait)
        stack.callback(process.kill)
        sentinel = stack.enter_context(contextlib.closing(redis.Redis(port=port, decode_responses=True)))

        def ready() -> bool:
            with contextlib.suppress(redis.RedisError):
                replicas: Any = sentinel.execute_command("SENTINEL REPLICAS", _SERVICE)
                return bool(replicas) and replica.client.info("replication")["master_link_status"] == "up"
            return False

        wait_until(ready, description="the Sentinel knows both")
        yield Watched(master, replica, sentinel, port)


@contextlib.contextmanager
def guarded(certificate: Path, key: Path) -> Iterator[int]:
    """
    A master and its Sentinel that accept only TLS. Yields the Sentinel's port. The master's password is "master", and
    the Sentinel's is "sentinel", or "watcher" for its user watcher.
    """
    port, own = free_port(), free_port()
    tls = {"cert-file": certificate, "key-file": key, "ca-cert-file": certificate, "auth-clients": "no"}
    options = [text for name, value in tls.items() for text in (f"--tls-{name}", str(value))]
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tk-sentinel-"))
        master = RedisProcess("--tls-port", str(port), *options, password="master")
        stack.enter_context(contextlib.closing(master)).start()
        file = Path(folder, "sentinel.conf")
        file.write_text(
            f"port 0\ntls-port {own}\nbind 127.0.0.1\ndir {folder}\ntls-replication yes\n"
            + "".join(f"tls-{name} {value}\n" for name, value in tls.items())
            + f"requirepass sentinel\nuser watcher on >watcher allcommands allchannels\n"
            f"sentinel monitor {_SERVICE} 127.0.0.1 {port} 1\n"
            f"sentinel auth-pass {_SERVICE} master\n"
        )
        process = subprocess.Popen([redis_binary(), str(file), "--sentinel"], stdout=subprocess.DEVNULL)
        stack.callback(process.wait)
        stack.callback(process.kill)
        yield own
