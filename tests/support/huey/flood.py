"""Floods on huey: `support.flood.run` with `huey_consumer` commands of any kind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis
from huey import PriorityRedisHuey, RedisHuey

from support.faults.processes import Command
from support.flood import run as floods
from support.flood.run import Flood, Flooding, Told
from support.huey.workers import huey_consumer
from support.servers.flood import Servers

__all__ = ["HueyFlood", "HueyFlooding", "run_huey"]

_MODULE = "support.huey.flood_jobs"


@dataclass(frozen=True, kw_only=True)
class HueyFlood(Flood):
    """
    A flood on huey.

    Attributes:
        worker_type: Of each consumer: "thread", "process" or "greenlet".
        queue_sorted: Whether it is a `PriorityRedisHuey`.
        skews: How far the clock of each consumer is off, in seconds.
    """

    worker_type: str = "thread"
    queue_sorted: bool = False
    skews: Sequence[float] = ()

    def environment(self, where: Servers, queue: str) -> dict[str, str]:
        told = json.loads(super().environment(where, queue)["TK_FLOOD"])
        return {"TK_FLOOD": json.dumps({**told, "sorted": self.queue_sorted})}


class _Consumers:
    """Several consumers, each in a session of its own."""

    def __init__(self, flood: HueyFlood, environment: dict[str, str]) -> None:
        command = huey_consumer(f"{_MODULE}.queue", kind=flood.worker_type, workers=flood.threads)
        skews = [*flood.skews, *[0.0] * (flood.processes - len(flood.skews))]
        self._commands = [Command(command, {**environment, "TK_SKEW_S": str(skew)}) for skew in skews]

    @property
    def running(self) -> bool:
        return all(command.running for command in self._commands)

    def log(self) -> str:
        return "".join(command.log() for command in self._commands)

    def cpu_seconds(self) -> float:
        return sum(_cpu(command) for command in self._commands)

    def kill(self) -> None:
        for command in self._commands:
            command.kill()

    def signal(self, number: int) -> None:
        for command in self._commands:
            command.signal(number)

    def ends_within(self, timeout: float) -> bool:
        return all(command.ends_within(timeout) for command in self._commands)

    def stop(self) -> None:
        for command in self._commands:
            command.terminate()
        for command in self._commands:
            command.stop(20)

    def close(self) -> None:
        for command in self._commands:
            command.close()


def _cpu(command: Command) -> float:
    with open(f"/proc/{command.pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / 100 + command.cpu_seconds()


class _Sender:
    """The producer, in a process without throttlekit, and the harness's view of huey."""

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
    """A flood on huey under way."""

    flood: HueyFlood
    ready = "commands are available"

    def sender(self, where: Servers, queue: str) -> _Sender:
        return _Sender(self.flood, where, queue)

    def workers(self) -> _Consumers:
        return _Consumers(self.flood, self._environment)

    def bury(self) -> None:
        """Huey keeps no watch on dead workers; what they had in hand is another's after ten seconds."""

    def stop(self) -> Told:
        if self._workers is not None and self.running:
            self.record.hincrbyfloat("counts", "cpu", self._workers.cpu_seconds())
        return super().stop()


def run_huey(flood: HueyFlood, where: Servers) -> Told:
    """Let *flood* happen, as `support.flood.run.run` does."""
    return floods.run(flood, where, HueyFlooding)
