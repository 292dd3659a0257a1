"""Each framework on each of its brokers: the commands of its workers, and a producer that sends without throttlekit."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import dramatiq
import pika
import redis
from celery import Celery
from huey import RedisHuey

from support.celery.site import conf_of
from support.dramatiq.workers import Workers, make_broker
from support.faults.processes import Fleet as Commands
from support.huey.workers import huey_consumer
from support.others.jobs import Fleet, body_of, limits_of
from support.rq.workers import rq_worker
from support.servers.flood import Kind
from support.taskiq.brokers import make_broker as make_taskiq_broker
from support.taskiq.site import Loop, worker_command
from throttlekit_rq import ThrottledQueue

__all__ = ["STACKS", "Producer", "Running", "Stack", "delete_queues"]

_HERE = "support.others"
_THREADS = 4


class Producer(Protocol):
    def send(self, fault: str, kind: str, index: str, account: str) -> None:
        """Send one job KIND_FAULT."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Stack:
    """
    Attributes:
        framework: The worker module is FRAMEWORK_jobs.
        form: As of `Fleet`.
        worker: The class of RQ's workers; "+scheduler" behind it adds RQ's scheduler.
    """

    framework: str
    kind: Kind
    form: str = ""
    worker: str = ""

    def producer(self, fleet: Fleet) -> Producer:
        return _PRODUCERS[self.framework](fleet)

    def start(self, fleet: Fleet, processes: int) -> Running:
        """Start the workers; `Running.ready` says when they work."""
        module = f"{_HERE}.{self.framework}_jobs"
        commands, each = [], 1
        if self.framework == "dramatiq":
            commands, each = [Workers.command(module, processes=processes, threads=_THREADS)], processes
        elif self.framework == "taskiq":
            commands, each = [worker_command(f"{module}:broker", processes=processes)], processes
        elif self.framework == "huey":
            commands = [huey_consumer(f"{module}.queue", workers=_THREADS)] * processes
        elif self.framework == "rq":
            commands = [rq_worker(fleet.broker_url, fleet.queue, kind=self.worker, options=["-c", module])] * processes
        else:
            celery = [sys.executable, "-m", "celery", "-A", module, "worker", "--loglevel", "warning", "-P", "threads"]
            celery += ["-c", str(_THREADS), "--without-gossip", "--without-mingle", "--hostname"]
            commands = [[*celery, f"w{number}@{fleet.queue}"] for number in range(processes)]
        return Running(commands, fleet.environment, _READY[self.framework], each)


STACKS: dict[str, Stack] = {
    "Dramatiq, Redis": Stack("dramatiq", "redis"),
    "Dramatiq, RabbitMQ": Stack("dramatiq", "rabbitmq"),
    "Celery, Redis": Stack("celery", "redis"),
    "Celery, RabbitMQ": Stack("celery", "rabbitmq"),
    "Celery, RabbitMQ, quorum": Stack("celery", "rabbitmq", form="quorum"),
    "RQ, ours": Stack("rq", "redis", worker="throttlekit_rq.ThrottledWorker"),
    "RQ, stock": Stack("rq", "redis", worker="rq.SimpleWorker+scheduler"),
    "huey": Stack("huey", "redis"),
    "taskiq, list": Stack("taskiq", "redis", form="list"),
    "taskiq, stream": Stack("taskiq", "redis", form="stream"),
    "taskiq, RabbitMQ": Stack("taskiq", "rabbitmq", form="rabbitmq"),
}

_READY = {
    "celery": "ready for action",
    "dramatiq": "ready for action",
    "huey": "commands are available",
    "rq": "*** Listening on",
    "taskiq": "Listening started.",
}


class Running(Commands):
    """Worker processes that were started."""

    def __init__(
        self, commands: Sequence[Sequence[str]], environment: Mapping[str, str], ready: str, each: int
    ) -> None:
        super().__init__(commands, environment)
        self._ready, self._each = ready, each

    def ready(self) -> bool:
        """Whether every process works, or one has ended."""
        return not self.running or all(each.log().count(self._ready) >= self._each for each in self.commands)


class _Dramatiq:
    def __init__(self, fleet: Fleet) -> None:
        options = {} if fleet.broker_url.startswith("redis") else {"confirm_delivery": True}
        self._queue = fleet.queue
        self._broker = make_broker(fleet.broker_url, middleware=[], **options)
        self._broker.declare_queue(fleet.queue)

    def send(self, fault: str, kind: str, index: str, account: str) -> None:
        self._broker.enqueue(dramatiq.Message(self._queue, f"{kind}_{fault}", (index, account), {}, {}))

    def close(self) -> None:
        self._broker.close()


class _Celery:
    def __init__(self, fleet: Fleet) -> None:
        self._app = Celery("sender", broker=fleet.broker_url, set_as_current=False)
        told = {"queue": fleet.queue, "quorum": fleet.form == "quorum", "conf": {"accept_content": ["json"]}}
        self._app.conf.update(conf_of(told))

    def send(self, fault: str, kind: str, index: str, account: str) -> None:
        self._app.send_task(f"{kind}_{fault}", (index, account))

    def close(self) -> None:
        self._app.close()


class _Rq:
    def __init__(self, fleet: Fleet) -> None:
        self._redis: Any = redis.Redis.from_url(fleet.broker_url)
        self._queue = ThrottledQueue(fleet.queue, connection=self._redis)

    def send(self, fault: str, kind: str, index: str, account: str) -> None:
        function, arguments = f"{_HERE}.rq_jobs.{kind}_{fault}", {"index": index, "account": account}
        self._queue.enqueue(function, throttle=limits_of(kind, fault), kwargs=arguments)

    def close(self) -> None:
        self._redis.close()


class _Huey:
    def __init__(self, fleet: Fleet) -> None:
        self._huey: Any = RedisHuey(fleet.queue, url=fleet.broker_url)
        self._tasks = {name: self._huey.task(name=name)(body_of(fleet, name)) for name, _ in fleet.jobs()}

    def send(self, fault: str, kind: str, index: str, account: str) -> None:
        self._tasks[f"{kind}_{fault}"](index, account)

    def close(self) -> None:
        self._huey.storage.pool.disconnect()


class _Taskiq:
    def __init__(self, fleet: Fleet) -> None:
        self._loop = Loop()
        self._broker = make_taskiq_broker(fleet.form, fleet.broker_url, None, fleet.queue)  # type: ignore[arg-type]
        self._tasks: dict[str, Any] = {
            name: self._broker.task(name)(body_of(fleet, name)) for name, _ in fleet.jobs()
        }  # fmt: skip
        self._loop.run(self._broker.startup())

    def send(self, fault: str, kind: str, index: str, account: str) -> None:
        self._loop.run(self._tasks[f"{kind}_{fault}"].kiq(index, account))

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._loop.run(self._broker.shutdown())
        self._loop.close()


_PRODUCERS: dict[str, type[Any]] = {
    "celery": _Celery, "dramatiq": _Dramatiq, "huey": _Huey, "rq": _Rq, "taskiq": _Taskiq,
}  # fmt: skip


def delete_queues(url: str, queues: Sequence[str]) -> None:
    """Delete those queues, with what each framework adds to them, from RabbitMQ."""
    with contextlib.closing(pika.BlockingConnection(pika.URLParameters(url))) as connection:
        for queue in queues:
            for suffix in ("", ".DQ", ".XQ", ".dead", ".delay"):
                connection.channel().queue_delete(queue + suffix)
