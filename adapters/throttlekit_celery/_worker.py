"""A worker of Celery as the floor reads it: its tasks, and how it would deliver them later."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from throttlekit import Delivery, Job
from throttlekit.adapter import JobOptions, WaitRules
from throttlekit_celery._delay_exchange import DelayExchange
from throttlekit_celery._host import expires_in, job_of
from throttlekit_celery._options import TaskLimits
from throttlekit_celery._waiting import HeldTask

__all__ = ["Settings", "WorkerHost", "longest_hold"]

_LONGEST_HOLD = 600.0  # RabbitMQ closes a channel that holds a message for 30 minutes: this leaves time for the body
_SHARE = 1 / 3
"""Of the time that a broker leaves a message unacknowledged, the share that may be spent on waiting."""

_NATIVE_LATENESS = 1.0
_LATENESS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The arguments of `install` that concern waiting tasks."""

    rules: WaitRules
    max_hold: float | None
    max_held: int
    parking: bool = True


class WorkerHost:
    """Tasks in a worker's main process, as `Throttling` reads them, and how the worker would deliver them later."""

    def __init__(self, limits: TaskLimits, settings: Settings, delay_exchange: DelayExchange) -> None:
        self._limits = limits
        self._settings = settings
        self._delay_exchange = delay_exchange
        self._deliveries: dict[tuple[str, str | None, bool], Delivery] = {}
        self._parks = False

    def start(self, consumer: Any, *, parks: bool) -> None:
        """A worker has connected; it *parks* what is due later."""
        self._deliveries.clear()
        self._parks = parks
        self._delay_exchange.start(consumer)

    def options(self, message: HeldTask) -> JobOptions:
        return self._limits.of(message.request.task)

    def job(self, message: HeldTask) -> Job:
        return job_of(message.request.task, message.request, queue=message.queue or "", ticket=message.ticket)

    def delivery(self, message: HeldTask, max_wait: float | None) -> Delivery:
        natively = self.delays_natively(message)
        key = message.request.task.name, message.queue, natively
        delivery = self._deliveries.get(key)
        if delivery is None:
            framework = Delivery(
                longest=_LONGEST_HOLD if self._parks else longest_hold(message.consumer, self._settings.max_hold),
                lateness=_NATIVE_LATENESS if natively else _LATENESS,
            )
            delivery = self._deliveries[key] = self._settings.rules.delivery(framework, max_wait)
        if (expiry := expires_in(message.request)) != math.inf:
            delivery = replace(delivery, expires_in=expiry)
        return delivery

    def delivery_of(self, message: HeldTask) -> Delivery:
        return self.delivery(message, self.options(message).max_wait)

    def delays_natively(self, message: HeldTask) -> bool:
        return self._delay_exchange.delays(message.consumer, message.queue)


def longest_hold(consumer: Any, wanted: float | None) -> float:
    """How long a task may be held: well within the time that the broker leaves a message unacknowledged."""
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
