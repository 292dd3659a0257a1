"""Each framework on each of its brokers: its workers, started."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pika

from support.faults.processes import Fleet as Commands
from support.others.jobs import Fleet
from support.plain.plan import READY
from support.servers.flood import Kind

__all__ = ["STACKS", "Running", "Stack", "delete_queues"]


@dataclass(frozen=True)
class Stack:
    """
    Attributes:
        form: As of `Plan`.
        worker: The class of RQ's workers; "+scheduler" behind it adds RQ's scheduler.
    """

    framework: str
    kind: Kind
    form: str = ""
    worker: str = ""

    def start(self, fleet: Fleet, processes: int) -> Running:
        """Start the workers; `Running.ready` says when they work."""
        commands, each = fleet.commands(processes, kind=self.worker)
        return Running(commands, fleet.environment, READY[self.framework], each)


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


def delete_queues(url: str, queues: Sequence[str]) -> None:
    """Delete those queues, with what each framework adds to them, from RabbitMQ."""
    with contextlib.closing(pika.BlockingConnection(pika.URLParameters(url))) as connection:
        for queue in queues:
            for suffix in ("", ".DQ", ".XQ", ".dead", ".delay"):
                connection.channel().queue_delete(queue + suffix)
