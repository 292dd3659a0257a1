"""The resources that processes and servers use, read from /proc."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import redis

from support.servers.flood import Servers

__all__ = ["cpu_of_redis", "pids_of_broker", "pids_of_redis", "pss_mb", "scripts_run"]


def pids_of_redis(client: Any) -> list[int]:
    return [int(client.info("server")["process_id"])]


def cpu_of_redis(client: Any) -> float:
    """Return the CPU time of the server until now, in seconds."""
    used = client.info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"])


def pids_of_broker(where: Servers) -> list[int]:
    """Return the processes of the broker. For RabbitMQ, those with its node in their environment."""
    if where.kind == "redis":
        with redis.Redis.from_url(where.broker_url) as broker:
            return pids_of_redis(broker)
    node, found = f"RABBITMQ_NODENAME=tk{where.broker_url.rpartition(':')[2]}@", list[int]()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if node in (folder / "environ").read_text(errors="replace"):
                found.append(int(folder.name))
    return found


def scripts_run(client: Any, commands: Iterable[str] = ("evalsha", "eval")) -> int:
    """Return how many scripts that Redis has run by these commands, without those that it did not know."""
    stats = client.info("commandstats")
    found = [stats[f"cmdstat_{name}"] for name in commands if f"cmdstat_{name}" in stats]
    return int(sum(each["calls"] - each["failed_calls"] for each in found))


def pss_mb(pids: Iterable[int]) -> float:
    """Return the memory of these processes in MB, with shared memory divided among its users."""
    kb = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            kb += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return kb / 1024
