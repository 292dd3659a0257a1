"""
Celery's native delayed delivery: RabbitMQ keeps a denied task, and returns it to its queue when the delay ends.

RabbitMQ confirms such a message when the first of Celery's delay queues has it. If no queue is bound at the end of the
delay, a classic delay queue drops the message and a quorum delay queue keeps it. Celery binds its queues as a worker
starts, and goes on without native delays if RabbitMQ refuses that. So a worker delays a task only if RabbitMQ has
confirmed to this worker that the task's queue is bound. It repeats the bindings every 30 s, in case an operator removes
one.
"""

from __future__ import annotations

import logging
from typing import Any

from throttlekit_celery._host import has_delayed_delivery
from throttlekit_celery._requeue import Copies

__all__ = ["DelayExchange"]

_log = logging.getLogger("throttlekit.celery")

_BIND_EVERY = 30.0


class DelayExchange:
    """The queues of a worker for which RabbitMQ can delay tasks."""

    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self._queues: list[Any] = []
        self._bound: frozenset[str] = frozenset()
        self._failed: dict[str, str] = {}
        self._turn: object = None  # of the timer in use: a timer from before a new connection may still fire

    def start(self, consumer: Any) -> None:
        """Bind the queues that a worker consumes as it connects. Tasks of a queue that is added later are held."""
        known: Any = consumer.app.amqp.queues
        queues = [known.get(queue.name) for queue in consumer.task_consumer.queues]
        self._queues = [queue for queue in queues if _has_way_back(consumer, queue)]
        self._bound = frozenset()
        self._turn = object()
        if self._queues:
            self._bind(consumer, self._turn)

    def delays(self, consumer: Any, name: str | None) -> bool:
        """Whether a delayed task returns to the queue *name*, and to no other."""
        return name in self._bound and _has_way_back(consumer, consumer.app.amqp.queues.get(name))

    def _bind(self, consumer: Any, turn: object) -> None:
        if turn is not self._turn:
            return
        failed = self._copies.bind_delayed(self._queues)
        for name in failed.keys() - self._failed.keys():
            _log.warning(
                "Denied tasks of the queue %r are held: it could not be bound to Celery's delay exchange (%s).",
                name, failed[name],
            )  # fmt: skip
        self._failed = failed
        self._bound = frozenset(queue.name for queue in self._queues) - failed.keys()
        consumer.timer.call_after(_BIND_EVERY, self._bind, (consumer, turn))


def _has_way_back(consumer: Any, queue: Any) -> bool:
    """
    Whether a message that leaves the delay exchange for *queue* reaches that queue, and no other one.

    It passes through the queue's own exchange, whose routing keys must be different for each queue.
    """
    if consumer.connection.transport.driver_type != "amqp" or not has_delayed_delivery():
        return False
    if queue is None or queue.exchange is None or queue.exchange.type != "topic" or not queue.routing_key:
        return False
    queues: list[Any] = list(consumer.app.amqp.queues.values())
    arguments: list[dict[str, Any]] = [each.queue_arguments or {} for each in queues]
    if not any(each.get("x-queue-type") == "quorum" for each in arguments):
        return False
    keys = [each.routing_key or "" for each in queues if each.exchange and each.exchange.name == queue.exchange.name]
    return keys.count(queue.routing_key) == 1 and not any("*" in key or "#" in key for key in keys)
