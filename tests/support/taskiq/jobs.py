"""
A broker, configured by $TK_TASKIQ, with a task that is denied for an hour, one that holds a slot, and one without
limits.

A label of a granted task determines what fails: `fails="middleware"` or `fails="ack"`.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator
from typing import Any

from taskiq import AckableMessage, TaskiqMessage, TaskiqMiddleware

from support.taskiq.brokers import make_broker
from throttlekit import Concurrency, Limiter, TokenBucket
from throttlekit_taskiq import Throttle

__all__ = ["limits_of"]


def limits_of(queue: str) -> tuple[TokenBucket, Concurrency]:
    """Return the limits of the two tasks on *queue*."""
    return TokenBucket(f"slow-{queue}", "1/hour", burst=1), Concurrency(f"slot-{queue}", 1, lease=600)


class _Failing(TaskiqMiddleware):
    async def pre_execute(self, message: TaskiqMessage) -> TaskiqMessage:
        if message.labels.get("fails") == "middleware":
            raise ValueError("a middleware behind Throttle fails")
        return message


def _failing_acks(listen: Any) -> Any:
    async def listen_with_failing_acks() -> AsyncGenerator[Any, None]:
        async for message in listen():
            yield AckableMessage(data=message.data, ack=_fails) if b'"ack"' in message.data else message

    return listen_with_failing_acks


async def _fails() -> None:
    raise ConnectionError("an acknowledgement fails")


if "TK_TASKIQ" in os.environ:
    _config = json.loads(os.environ["TK_TASKIQ"])
    _limiter = Limiter(_config["store"])
    _slow, _slot = limits_of(_config["queue"])
    broker = make_broker(_config["kind"], _config["broker"], _config["results"], _config["queue"], **_config["options"])
    if _config["kind"] != "list":
        broker.listen = _failing_acks(broker.listen)  # type: ignore[method-assign]
    broker.add_middlewares(_Failing(), Throttle(_limiter))

    @broker.task("denied", throttle=[_slow])
    def denied() -> None:
        """A task that waits."""

    @broker.task("slotted", throttle=[_slot, TokenBucket(f"rate-{_config['queue']}", "1/hour", burst=2)])
    async def slotted(number: int) -> int:
        return number

    @broker.task("free")
    async def free(number: int) -> Any:
        return number
