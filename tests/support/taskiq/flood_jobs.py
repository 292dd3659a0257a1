"""
The tasks of the worker processes of a flood on taskiq, configured by $TK_FLOOD.

As in `support.flood.jobs`, each start is recorded, and each grant with the store's time and state.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections import Counter
from typing import Any

from taskiq import TaskiqEvents, TaskiqMessage, TaskiqMiddleware

from support.flood.limits import FloodLimit
from support.flood.record import Record, RecordingStore
from support.taskiq.brokers import make_broker
from throttlekit import Limiter
from throttlekit.aio import AsyncLimiter
from throttlekit_taskiq import Throttle

_flood = json.loads(os.environ["TK_FLOOD"])
_record = Record(_flood["record_url"])
_counts: Counter[str] = Counter()
_limits = [FloodLimit(**limit).made() for limit in _flood["actors"]["job"]]


def _count(name: str) -> None:
    _counts[name] += 1


_limiter = Limiter(RecordingStore(_flood["store_url"], _record, _count))
_in_loop = AsyncLimiter(_limiter)
broker = make_broker(
    _flood["kind"], _flood["broker_url"], _flood["results_url"], _flood["queue"], **_flood["broker_options"]
)


class _Deliveries(TaskiqMiddleware):
    """Counts the messages that the worker reads from the broker. Held messages count again."""

    def startup(self) -> None:
        formatter: Any = self.broker.formatter
        loads = formatter.loads

        def load_and_count(message: bytes) -> TaskiqMessage:
            _count("deliveries")
            read: TaskiqMessage = loads(message=message)
            return read

        formatter.loads = load_and_count


broker.add_middlewares(_Deliveries())
if _flood["mode"] == "throttlekit":
    broker.add_middlewares(Throttle(_limiter))


async def _run(index: str) -> None:
    if _flood["mode"] == "naive":  # a simple wait in the worker
        while not (decision := await _in_loop.acquire(*_limits)).allowed:
            await asyncio.sleep(decision.retry_after + random.random())
    if _flood["body"]:
        await asyncio.to_thread(_record.run, index, _flood["body"])
    else:
        _record.run(index, 0)


async def job(index: str, account: str = "one") -> None:
    await _run(index)


def job_in_thread(index: str, account: str = "one") -> None:
    _record.run(index, _flood["body"])


_options: dict[str, Any] = {"throttle": _limits} if _flood["mode"] == "throttlekit" else {}
broker.task("job", **_options)(job if _flood["form"] == "loop" else job_in_thread)


@broker.task("nudge")
async def nudge() -> None:
    """See `support.taskiq.flood`."""


@broker.on_event(TaskiqEvents.WORKER_SHUTDOWN)
async def _write_counts(state: Any) -> None:
    for name, count in _counts.items():
        _record.count(name, count)
    _record.count("cpu", time.process_time())
