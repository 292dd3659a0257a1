"""
The tasks of the consumers of a flood on huey, configured by $TK_FLOOD.

As in `support.flood.jobs`, each start is recorded, and each grant with the store's time and state. The limiter is
throttlekit, huey's `rate_limit` ("native"), or a simple task that requests a unit and is retried after the time to one
token plus up to a second ("naive").
"""

from __future__ import annotations

import json
import os
import random
import time
from functools import partial
from typing import Any

from huey import PriorityRedisHuey, RedisHuey
from huey.exceptions import RetryTask

from support.flood.limits import FloodLimit
from support.flood.record import Record, RecordingStore
from throttlekit import Limiter
from throttlekit_huey import install

__all__ = ["queue"]

_flood = json.loads(os.environ["TK_FLOOD"])
_record = Record(_flood["record_url"], _flood["slow_s"])
_mode = _flood["mode"]

queue: Any = (PriorityRedisHuey if _flood["sorted"] else RedisHuey)(
    _flood["queue"], url=_flood["broker_url"], results=False
)


def _skew_clock() -> None:
    """Change the clock of one worker by $TK_SKEW_S seconds, which huey's counter of whole seconds uses."""
    skew = float(os.environ.get("TK_SKEW_S", 0))
    if skew:
        import huey.api

        clock = time.time
        huey.api.time = _Clock(lambda: clock() + skew)  # type: ignore[assignment]


class _Clock:
    def __init__(self, now: Any) -> None:
        self.time = now

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


_skew_clock()
_limiter = Limiter(RecordingStore(_flood["store_url"], _record, partial(_record.count)))
if _mode == "throttlekit":
    install(queue, _limiter, **_flood["actor_options"])

_execute = queue.execute


def _execute_and_count(task: Any, timestamp: Any = None) -> Any:
    _record.count("deliveries")
    return _execute(task, timestamp)


queue.execute = _execute_and_count


def _declare(name: str, limits: list[Any]) -> None:
    def job(index: str, account: str = "one") -> None:
        if _mode == "naive" and limits:
            decision = _limiter.acquire(limits[0])
            if not decision.allowed:
                raise RetryTask(delay=decision.retry_after + random.random())
        _record.run(index, _flood["body"])

    if _mode == "native" and limits:
        body: Any = queue.rate_limit("flood", limit=limits[0].amount, per=1)(job)
        queue.task(name=name)(body)
    else:
        options = {"throttle": limits} if _mode == "throttlekit" else {}
        queue.task(name=name, **options)(job)


for _name, _limits in _flood["actors"].items():
    _declare(_name, [FloodLimit(**limit).made() for limit in _limits])
