"""Messages that are due much later, on Redis: they wait where Dramatiq keeps its delayed messages, in no worker."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from dramatiq.common import current_millis, dq_name, q_name
from dramatiq.message import Message

from throttlekit.adapter import Deferred, Delivery, Park, Promoter, Throttling, is_far
from throttlekit_dramatiq._message_state import TICKET, Deferral

__all__ = ["Parking"]

_log = logging.getLogger("throttlekit.dramatiq")
_ON_TIME_MS = 30


class Parking:
    """
    Parks messages, and wakes them.

    A parked message stands in the hash of its delay queue, as Dramatiq itself would put it there, and its id in the
    park in place of the list. So `flush` drops it, `join` waits for it, and to wake it is to push its id.

    Args:
        wanted: Whether messages are to be parked. Those that are parked already are woken in any case.
    """

    def __init__(self, throttling: Throttling[Any], *, wanted: bool) -> None:
        self._throttling, self._wanted = throttling, wanted
        self._broker: Any = None
        self._parks: dict[str, Park] = {}
        self._promoter: Promoter[Any] | None = None

    def boot(self, broker: Any) -> None:
        """A worker is about to start on *broker*."""
        if self._throttling.limiter.in_memory:  # each process counts for itself: a promoter elsewhere knows nothing
            return
        self._broker = broker if _keeps_its_layout(broker) else None
        if self._wanted and self._broker is None and isinstance(getattr(broker, "broker_id", None), str):
            _log.info("%s is not Dramatiq's own RedisBroker: messages are held, not parked.", type(broker).__name__)
        if self._broker is not None:
            parks = self._parks.values()
            self._promoter = Promoter(self._throttling, lambda: list(parks), self._decode, _tell, _log)
            self._promoter.start()

    def adopt(self, queue: str) -> None:
        """The worker consumes *queue*."""
        if self._broker is None:
            return
        client, space, delayed = self._broker.client, self._broker.namespace, dq_name(queue)
        prefix, whole = f"{space}:throttlekit:{queue}", f"{space}:{delayed}"
        self._parks[queue] = Park(
            client, "dramatiq", queue, prefix, messages=f"{whole}.msgs", lists=[whole], moves=False
        )

    def stop(self) -> None:
        """The worker ends."""
        if self._promoter is not None:
            self._promoter.stop()
        self._broker, self._promoter = None, None
        self._parks.clear()

    def takes(self, message: Any, outcome: Deferred) -> bool:
        """Whether *message*, which was denied, is to be parked, if its limits are not counted here alone."""
        return self._wanted and q_name(message.queue_name) in self._parks and is_far(outcome.ticket, outcome.delay)

    def put(self, deferral: Deferral, delivery: Delivery) -> None:
        """
        Park the copy of a denied message in place of the original, which is gone then.

        Raises:
            Exception: An error of the broker's client. The message is in one of the two places.
        """
        broker, came_from = self._broker, deferral.consumer.queue_name
        queue = q_name(came_from)
        new_id, eta = str(uuid4()), current_millis() + deferral.delay_ms
        copy = deferral.copy.copy(queue_name=dq_name(queue), options={"eta": eta, "redis_message_id": new_id})
        broker.emit_before("enqueue", copy, deferral.delay_ms)
        self._parks[queue].put(
            deferral.copy.options["redis_message_id"],
            copy.encode(),
            copy.options[TICKET],
            unacked=f"{broker.namespace}:__acks__.{broker.broker_id}.{came_from}",
            beside=f"{broker.namespace}:{came_from}.msgs",
            delay=deferral.delay_ms / 1000,
            delivery=delivery,
            new_id=new_id,
        )
        broker.emit_after("enqueue", copy, deferral.delay_ms)

    def freed(self, lanes: Sequence[str], returned: Sequence[str] = ()) -> None:
        """
        Wake the first parked messages of *lanes*, which wait for a slot that is free now, and of *returned*, which wait
        for a unit that a body has given back. Call it if this process holds no message of these lanes.
        """
        for park in list(self._parks.values()):
            try:
                park.freed(lanes)
                park.wake_first(returned, _tell)
            except Exception as error:
                _log.debug("A parked message waits for its promoter: %r", error)

    def _decode(self, data: bytes) -> Any:
        broker = self._broker
        if broker is None:  # the worker ends
            raise ConnectionError("the worker has ended")
        decode: Any = Message.decode  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        message = decode(data)
        broker.get_actor(message.actor_name)
        return message


def _tell(data: bytes, seconds: float) -> bytes | None:
    """Its delay queue holds the message until then."""
    decode: Any = Message.decode  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    message, eta = decode(data), current_millis() + math.ceil(seconds * 1000)
    if abs(eta - message.options["eta"]) < _ON_TIME_MS:
        return None
    told: bytes = message.copy(options={"eta": eta}).encode()
    return told


def _keeps_its_layout(broker: Any) -> bool:
    """Whether messages of *broker* are where a park looks for them: Dramatiq's own broker, and nothing made of it."""
    kind: type[Any] = type(broker)  # pyright: ignore[reportUnknownVariableType]
    return f"{kind.__module__}.{kind.__qualname__}" == "dramatiq.brokers.redis.RedisBroker"
