"""Floods on huey: `support.flood.run` with `huey_consumer` commands of any kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis
from huey import PriorityRedisHuey, RedisHuey

from support.faults.processes import Fleet
from support.flood.run import Flood, Flooding
from support.huey.workers import huey_consumer
from support.servers.flood import Servers

__all__ = ["HueyFlood", "HueyFlooding"]

_MODULE = "support.huey.flood_jobs"


@dataclass(frozen=True, kw_only=True)
class HueyFlood(Flood):
    """
    A flood on huey.

    Attributes:
        worker_type: The type of each consumer's workers: "thread", "process" or "greenlet".
        queue_sorted: Whether huey is a `PriorityRedisHuey`.
        skews: The error of the clock of each consumer, in seconds.
    """

    worker_type: str = "thread"
    queue_sorted: bool = False
    skews: Sequence[float] = ()

    def more(self, where: Servers) -> dict[str, Any]:
        return {"sorted": self.queue_sorted}


class _Sender:
    """The producer, which has no throttlekit and reads huey's state."""

    def __init__(self, flood: HueyFlood, where: Servers, queue: str) -> None:
        self._huey: Any = (PriorityRedisHuey if flood.queue_sorted else RedisHuey)(queue, url=where.broker_url)
        self._redis: Any = redis.Redis.from_url(where.broker_url)
        self._redis.flushall()
        self._tasks = {name: self._huey.task(name=name)(_stub) for name in ("job", *flood.others)}
        for task in self._tasks.values():
            task.task_class.__module__ = _MODULE
            self._huey._registry._registry[f"{_MODULE}.{task.task_class.__name__}"] = task.task_class
        self._in_hand = f"throttlekit:huey:{self._huey.storage.name}:in-hand"
        self._before = 0

    def send(self, actor: str, index: str, account: str = "one") -> None:
        """Send one job to *actor*."""
        self._tasks[actor](index, account)
        self._before = self._count()

    def commands(self) -> int:
        return self._count() - self._before

    def left(self) -> int:
        huey = self._huey
        return int(huey.pending_count() + huey.scheduled_count() + self._redis.zcard(self._in_hand))

    def close(self) -> None:
        self._redis.flushall()
        self._redis.close()
        self._huey.storage.pool.disconnect()

    def _count(self) -> int:
        return int(self._redis.info("stats")["total_commands_processed"])


def _stub(index: str, account: str) -> None: ...


class HueyFlooding(Flooding):
    """A running flood on huey."""

    flood: HueyFlood
    ready = "commands are available"
    counts_cpu = False

    def sender(self, where: Servers, queue: str) -> _Sender:
        return _Sender(self.flood, where, queue)

    def workers(self) -> Fleet:
        flood = self.flood
        command = huey_consumer(f"{_MODULE}.queue", kind=flood.worker_type, workers=flood.threads)
        skews = [*flood.skews, *[0.0] * (flood.processes - len(flood.skews))]
        return Fleet([["env", f"TK_SKEW_S={skew}", *command] for skew in skews], self._environment)

    def expire(self) -> None:
        """Do nothing: jobs that dead workers of huey held are taken by others after ten seconds."""


HueyFlood.flooding = HueyFlooding
