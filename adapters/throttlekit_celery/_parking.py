"""
Tasks that are due much later, on Redis: they wait in the broker's own Redis, in no worker.

A message is parked as kombu itself would put it into its queue, with its ticket. It leaves kombu's record of what is
unacknowledged by the same script, so no visibility time-out gives it to another worker, and none has it twice.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from throttlekit.adapter import Delivery, Every, Park, Promoter, Throttling, is_counted_here, is_far
from throttlekit_celery._host import (
    is_of_one_message,
    is_unacknowledged,
    keeps_redis_layout,
    kombu_json,
    let_go,
    redis_client,
)
from throttlekit_celery._options import TaskLimits
from throttlekit_celery._requeue import TICKET, queue_of
from throttlekit_celery._waiting import HeldTask

__all__ = ["Parking"]

_log = logging.getLogger("throttlekit.celery")

_TIMEOUT = 1.0
_ON_TIME = 0.03
_QUIET = 1.0
"""Seconds. A broker that did not answer is left alone for so long: each attempt holds up the worker's loop."""


@dataclass(slots=True)
class _Broker:
    """One connection of a worker to Redis. *client* is beside it: with full names of keys, and time-outs."""

    consumer: Any
    tasks: Any
    channel: Any
    client: Any
    parks: dict[str, Park] = field(default_factory=dict[str, Park])

    def lists(self, queue: str) -> list[str]:
        """The lists of *queue*, one for each priority that kombu tells apart."""
        channel = self.channel
        return [f"{channel.global_keyprefix}{channel._q_for_pri(queue, step)}" for step in channel.priority_steps]

    def is_fanout(self, queue: str) -> bool:
        """Whether *queue* belongs to a fanout exchange. No worker reads its list, so no woken task would reach one."""
        return queue in self.channel._fanout_queues

    def park(self, queue: str) -> Park:
        park = self.parks.get(queue)
        if park is None:
            prefix = f"{self.channel.global_keyprefix}throttlekit:{queue}"
            messages, lists = f"{prefix}:messages", self.lists(queue)
            park = Park(self.client, "celery", queue, prefix, messages=messages, lists=lists, moves=True)
            self.parks[queue] = park
        return park


class Parking:
    """
    Parks tasks, and wakes them.

    Args:
        wanted: Whether tasks are to be parked. Those that are parked already are woken in any case.
    """

    def __init__(self, throttling: Throttling[HeldTask], limits: TaskLimits, wanted: bool) -> None:
        self._throttling, self._limits, self._wanted = throttling, limits, wanted
        self._broker: _Broker | None = None
        self._promoter: Promoter[HeldTask] | None = None
        self._failed = Every()
        self._quiet_until = 0.0

    def start(self, consumer: Any) -> bool:
        """A worker has connected; return whether it parks tasks."""
        tasks = consumer.task_consumer
        channel = getattr(tasks, "channel", None)
        if self._throttling.limiter.in_memory or consumer.connection.transport.driver_type != "redis":
            return False
        if not keeps_redis_layout(channel):
            if self._wanted:
                _log.warning("Denied tasks are held, not parked: this broker, or version of kombu, is not known well.")
            return False
        self._broker = _Broker(consumer, tasks, channel, redis_client(channel, _TIMEOUT))
        if self._promoter is None:
            self._promoter = Promoter(self._throttling, self._parks, self._decode, self._tell, _log)
            self._promoter.start()
        return self._wanted

    def disconnected(self) -> None:
        """The connection is lost: another worker may be able to wake tasks."""
        self._broker = None

    def stop(self) -> None:
        """The worker ends."""
        promoter, self._promoter = self._promoter, None
        if promoter is not None:
            promoter.stop()
        self._broker = None

    def knows(self, held: HeldTask) -> bool:
        """Whether *held* is in a queue whose tasks are parked."""
        broker = self._broker
        return self._wanted and broker is not None and held.queue is not None and not broker.is_fanout(held.queue)

    def takes(self, held: HeldTask, delay: float) -> bool:
        """Whether *held*, which is due in *delay* seconds, is to be parked."""
        return (
            is_far(held.ticket, delay)
            and self.knows(held)
            and not held.request.acknowledged
            and is_unacknowledged(held.request.message)
            and not is_counted_here(self._limits.of(held.request.task).limits)
            and time.monotonic() > self._quiet_until
        )

    def put(self, held: HeldTask, delay: float, delivery: Delivery) -> bool:
        """
        Park *held* instead of the message that this worker has, unless another worker has that message by now.

        Returns:
            False if the broker has lost its record of the message. No other worker gets it, so this one keeps it.

        Raises:
            Exception: An error of the broker's client. The message is in one of the two places.
        """
        broker, message = self._broker, held.request.message
        if broker is None or held.queue is None or time.monotonic() < self._quiet_until:
            raise TimeoutError
        channel, raw = broker.channel, message._raw
        # A tag of its own: what this worker still does by the old one must not hit another worker's delivery.
        copy: dict[str, Any] = {
            **raw,
            "headers": {**(raw.get("headers") or {}), TICKET: dict(held.ticket or {})},
            "properties": {**raw["properties"], "delivery_tag": channel._next_delivery_tag()},
        }
        priority = channel._get_message_priority(raw, reverse=False)
        goes_to = f"{channel.global_keyprefix}{channel._q_for_pri(held.queue, priority)}"
        try:
            parked = broker.park(held.queue).put(
                message.delivery_tag,
                f"{broker.lists(held.queue).index(goes_to)}{kombu_json().dumps(copy)}",
                held.ticket,
                unacked=f"{channel.global_keyprefix}{channel.unacked_key}",
                beside=f"{channel.global_keyprefix}{channel.unacked_index_key}",
                delay=delay,
                delivery=delivery,
            )
        except Exception as error:
            if not is_of_one_message(error):
                self._quiet_until = time.monotonic() + _QUIET
            if self._failed.due():
                _log.warning("Denied tasks could not be parked (%s); they are held.", type(error).__name__)
            raise
        if not parked and not held.unsure and time.monotonic() - held.received_at < channel.visibility_timeout:
            return False
        # It is parked now, or was by an earlier call without a reply, or the visibility time-out has restored it.
        let_go(held.request)
        return True

    def freed(self, lane: str) -> None:
        """A slot for which the tasks of *lane* wait has come free, and this worker holds none of them."""
        broker = self._broker
        if broker is None or time.monotonic() < self._quiet_until:
            return
        for park in list(broker.parks.values()):
            try:
                park.freed([lane])
            except Exception as error:
                _log.debug("A parked task waits for its promoter: %r", error)

    def _tell(self, data: bytes, seconds: float) -> bytes | None:
        """The worker that receives the task holds it until then, without a call to the store."""
        held = self._decode(data)
        told = held.request.message._raw
        rest = self._throttling.limiter.until_due(self._limits.of(held.request.task).limits, held.ticket)
        if rest is None or abs(seconds - rest) < _ON_TIME:
            return None
        ticket = told["headers"][TICKET]
        ticket["slot"] += round((seconds - rest) * 1_000_000)
        anew: bytes = kombu_json().dumps(told).encode()
        return anew

    def _parks(self) -> list[Park]:
        broker = self._broker
        if broker is None:
            return []
        return [broker.park(queue.name) for queue in list(broker.tasks.queues) if not broker.is_fanout(queue.name)]

    def _decode(self, data: bytes) -> HeldTask:
        broker = self._broker
        if broker is None:
            raise ConnectionError
        channel = broker.channel
        message = channel.Message(kombu_json().loads(data.decode()), channel=channel)
        message.accept = broker.tasks.accept
        body: Any = message.payload
        told: Any = message.headers
        if hasattr(body, "get"):  # Celery's first protocol
            told, args, kwargs = body, body.get("args"), body.get("kwargs")
        else:
            args, kwargs, _ = body
        request: Any = SimpleNamespace(
            task=broker.consumer.app.tasks[told["task"]], id=told["id"], args=args, kwargs=kwargs, expires=None,
            message=message,
        )  # fmt: skip
        ticket = message.headers.get(TICKET)
        queue = queue_of(SimpleNamespace(task_consumer=broker.tasks), request)
        return HeldTask(broker.consumer, request, None, 0.0, ticket, ticket, queue)
