"""
The actors of the worker processes of a flood, which record when they start, with one of several limiters.

They are configured by $TK_FLOOD, the JSON of `support.flood.run.Flood.environment`. In addition to the starts, by the
clock of the recording Redis, each grant is recorded with the store's time and state, so that a bound can be checked
without a tolerance for the time between a grant and a body.
"""

from __future__ import annotations

import json
import logging
import os
import random
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import dramatiq
from dramatiq.middleware import SkipMessage
from dramatiq.rate_limits import WindowRateLimiter
from dramatiq.rate_limits.backends import RedisBackend

from support.dramatiq.workers import Counts, make_broker
from support.flood.limits import FloodLimit
from support.flood.record import Record, RecordingStore
from throttlekit import Limit, Limiter
from throttlekit_dramatiq import Throttle

_flood = json.loads(os.environ["TK_FLOOD"])
_record = Record(_flood["record_url"], _flood["slow_s"])


counts = Counts(_record.count)


class Naive(dramatiq.Middleware):
    """
    A simple limiter: denied messages are requeued with the time to one token plus up to a second.

    Otherwise it is like throttlekit: it loses no message, uses no retry, logs as little, and polls as often.
    """

    def __init__(self, limiter: Limiter, limit: Limit) -> None:
        self._limiter, self._limit = limiter, limit

    def after_consumer_thread_boot(self, broker: Any, thread: Any) -> None:
        thread.worker_timeout = 50
        if thread.queue_name.endswith(".DQ"):
            thread.prefetch = 65_535

    def before_process_message(self, broker: Any, message: Any) -> None:
        decision = self._limiter.acquire(self._limit)
        if not decision.allowed:
            message._again = message.copy(), round(1000 * (decision.retry_after + random.random())) + 1
            raise SkipMessage("denied")

    def before_ack(self, broker: Any, message: Any) -> None:
        if again := getattr(message, "_again", None):
            broker.enqueue(again[0], delay=again[1])


def _declare(name: str, limits: list[Limit], window: Any) -> None:
    options: dict[str, Any] = dict(_flood["actor_options"])
    if _flood["mode"] == "throttlekit":
        options["throttle"] = limits

    @dramatiq.actor(actor_name=name, queue_name=_flood["queue"], **options)
    def job(index: str, account: str) -> None:
        permit: AbstractContextManager[Any] = window.acquire() if window else nullcontext()
        with permit:
            _record.run(index, _flood["body"])


def _install() -> None:
    mode, actors = (
        _flood["mode"],
        {name: [FloodLimit(**limit).made() for limit in of] for name, of in _flood["actors"].items()},
    )
    broker.add_middleware(counts, before=type(broker.middleware[0]))
    window: Any = None
    window_limiter: Any = WindowRateLimiter
    if mode in ("throttlekit", "naive"):
        limiter = Limiter(RecordingStore(_flood["store_url"], _record, counts.add))
        ours = mode == "throttlekit"
        broker.add_middleware(Throttle(limiter) if ours else Naive(limiter, actors["job"][0]))
    elif mode == "native":
        rate = actors["job"][0].amount
        window = window_limiter(RedisBackend(url=_flood["store_url"]), "flood", limit=rate, window=1)
    if mode != "throttlekit":
        logging.getLogger("dramatiq.worker.WorkerThread").setLevel(logging.ERROR)
        logging.getLogger("dramatiq.middleware.retries.Retries").setLevel(logging.ERROR)
    for name, limits in actors.items():
        _declare(name, limits, window)


broker = make_broker(_flood["broker_url"], **_flood["broker_options"])
dramatiq.set_broker(broker)
_install()
