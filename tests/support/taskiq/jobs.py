"""A broker with one task that is denied for an hour, and tasks without limits, told by $TK_TASKIQ."""

from __future__ import annotations

import json
import os
from typing import Any

from support.taskiq.brokers import make_broker
from throttlekit import Limiter, TokenBucket
from throttlekit_taskiq import Throttle

_told = json.loads(os.environ["TK_TASKIQ"])
_limiter = Limiter(_told["store"])
_slow = TokenBucket(f"slow-{_told['queue']}", "1/hour", burst=1)
broker = make_broker(_told["kind"], _told["broker"], _told["results"], _told["queue"], **_told["options"])
broker.add_middlewares(Throttle(_limiter))


@broker.task("denied", throttle=[_slow])
def denied() -> None:
    """Waits."""


@broker.task("free")
async def free(number: int) -> Any:
    return number


@broker.task("pid")
def pid() -> int:
    return os.getpid()
