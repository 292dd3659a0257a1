"""Implement `throttlekit.adapter.Host` for a Celery worker: the jobs of its tasks, and the limits of their waits."""

from __future__ import annotations

from typing import Any

from throttlekit import Delivery, Job
from throttlekit.adapter import JobOptions, WaitRules
from throttlekit_celery._held_task import HeldTask
from throttlekit_celery._host import expires_in, job_of
from throttlekit_celery._options import TaskLimits

__all__ = ["WorkerHost", "longest_hold"]

_LONGEST_HOLD = 600.0  # RabbitMQ closes a channel that holds a message for 30 minutes, and the body needs time
_SHARE = 1 / 3
"""The fraction of the broker's time-out for unacknowledged messages that a task may spend on waiting."""


class WorkerHost:
    """Implements `throttlekit.adapter.Host` for the tasks in a worker's main process."""

    def __init__(self, limits: TaskLimits, rules: WaitRules) -> None:
        self._limits = limits
        self._rules = rules

    def options(self, message: HeldTask) -> JobOptions:
        return self._limits.of(message.request.task)

    def job(self, message: HeldTask) -> Job:
        return job_of(message.request.task, message.request, queue=message.queue or "")

    def delivery(self, message: HeldTask, max_wait: float | None) -> Delivery:
        """Return the `Delivery` of *message*: its longest wait, and the time at which it expires."""
        return self._rules.delivery(Delivery(), max_wait, expires_in=expires_in(message.request))


def longest_hold(consumer: Any, wanted: float | None) -> float:
    """Return the seconds for which a task may be held: a third of the broker's time-out for unacknowledged messages."""
    if wanted is not None:
        return wanted
    allowed = [_LONGEST_HOLD / _SHARE]
    if visibility := consumer.app.conf.broker_transport_options.get("visibility_timeout"):
        allowed.append(visibility)
    for queue in consumer.task_consumer.queues:
        arguments: dict[str, Any] = queue.queue_arguments or {}
        if timeout_ms := arguments.get("x-consumer-timeout"):
            allowed.append(timeout_ms / 1000)
    return float(min(allowed)) * _SHARE
