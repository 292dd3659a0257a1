"""The workers of each framework on each of its brokers."""

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
        form: See `Plan`.
        worker: The class of RQ's workers; the suffix "+scheduler" adds RQ's scheduler.
    """

    framework: str
    kind: Kind
    form: str = ""
    worker: str = ""

    def start(self, fleet: Fleet, processes: int) -> Running:
        """Start the workers. `Running.ready` returns whether they are ready."""
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
    """Started worker processes."""

    def __init__(
        self, commands: Sequence[Sequence[str]], environment: Mapping[str, str], ready: str, each: int
    ) -> None:
        super().__init__(commands, environment)
        self._ready, self._each = ready, each

    def ready(self) -> bool:
        """Return whether every process is ready, or one has ended."""
        return not self.running or all(each.log().count(self._ready) >= self._each for each in self.commands)


def delete_queues(url: str, queues: Sequence[str]) -> None:
    """Delete *queues* from RabbitMQ, with the queues that each framework adds to them."""
    with contextlib.closing(pika.BlockingConnection(pika.URLParameters(url))) as connection:
        for queue in queues:
            for suffix in ("", ".DQ", ".XQ", ".dead", ".delay"):
                connection.channel().queue_delete(queue + suffix)
