"""Floods on taskiq: `support.flood.run` with `taskiq worker` processes, on a stream or a list of Redis, or RabbitMQ."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from typing import Any

import redis

from support.faults.processes import Fleet
from support.flood.run import Flood, Flooding
from support.servers.flood import Servers
from support.taskiq.brokers import Kind, make_broker
from support.taskiq.site import Loop, worker_command

__all__ = ["TaskiqFlood", "TaskiqFlooding"]

_IDLE_MS = 5_000


@dataclass(frozen=True, kw_only=True)
class TaskiqFlood(Flood):
    """
    A flood on taskiq.

    Attributes:
        threads: `--max-async-tasks` of each process.
        on: The kind of broker on a Redis.
        broker_options: Options of the broker.
    """

    threads: int = 10
    on: Kind = "stream"
    form: str = "loop"
    broker_options: Any = ()

    def more(self, where: Servers) -> dict[str, Any]:
        kind = self.on if where.kind == "redis" else "rabbitmq"
        options = dict(self.broker_options)
        if kind == "stream" and (self.kills or self.faulty):
            options |= {"idle_timeout": _IDLE_MS, "xread_block": 500}
        return {"kind": kind, "results_url": f"{where.redis_base}/3", "form": self.form, "broker_options": options}


class _Sender:
    """The producer: a broker without throttlekit that sends by name."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config, self._loop = config, Loop()
        if config["kind"] != "rabbitmq":
            self._redis: Any = redis.Redis.from_url(config["broker_url"])
            self._redis.flushall()
        self.broker = make_broker(
            config["kind"], config["broker_url"], config["results_url"], config["queue"], **config["broker_options"]
        )
        self._task = self.broker.task("job")(_named("job"))
        self._nudge = self.broker.task("nudge")(_named("nudge"))
        self._loop.run(self.broker.startup())

    def send(self, actor: str, index: str, account: str = "one") -> None:
        self._loop.run(self._task.kiq(index, account))

    def nudge(self) -> None:
        """Send a message, which makes the workers of a stream search for messages of dead workers."""
        self._loop.run(self._nudge.kiq())

    def commands(self) -> int | None:
        return None

    def left(self) -> int:
        kind, queue = self.config["kind"], self.config["queue"]
        if kind == "list":
            return int(self._redis.llen(queue))
        if kind == "stream":
            groups = self._redis.xinfo_groups(queue)
            return sum(int(group["pending"]) + int(group["lag"] or 0) for group in groups)
        return self._loop.run(self._in_rabbitmq(queue)) + self._loop.run(self._in_rabbitmq(f"{queue}.dead"))

    async def _in_rabbitmq(self, queue: str) -> int:
        broker: Any = self.broker
        async with broker.write_conn.channel() as channel:
            found = await channel.declare_queue(queue, passive=True)
            return int(found.declaration_result.message_count or 0)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._loop.run(self.broker.shutdown())
        self._loop.close()


class TaskiqFlooding(Flooding):
    """A running flood on taskiq."""

    ready = "Listening started."

    def sender(self, where: Servers, queue: str) -> _Sender:
        return _Sender(json.loads(self.flood.environment(where, queue)["TK_FLOOD"]))

    def workers(self) -> Fleet:
        options = ["--max-async-tasks", str(self.flood.threads)]
        command = worker_command("support.taskiq.flood_jobs:broker", *options, processes=self.flood.processes)
        return Fleet([command], self._environment)

    def nudge(self) -> None:
        self._sender.nudge()

    def left(self) -> int:
        left = super().left()
        if left and (self.flood.kills or self.flood.faulty) and self._sender.config["kind"] == "stream":
            self._sender.nudge()
        return left

    def expire(self) -> None:
        """Do nothing: taskiq has no state of dead workers."""


TaskiqFlood.flooding = TaskiqFlooding


def _named(name: str) -> Any:
    async def task(*args: Any) -> None:
        """A placeholder that never runs in this process."""

    task.__name__ = name
    return task
