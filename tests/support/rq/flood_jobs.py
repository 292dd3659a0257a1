"""
The jobs of the worker processes of a flood on RQ, and their settings module, configured by $TK_FLOOD.

As in `support.flood.jobs`, each start is recorded, and each grant with the store's time and state.
"""

from __future__ import annotations

import json
import os
import random
from datetime import timedelta
from typing import Any

from rq import get_current_job
from rq.queue import Queue

from support.flood.record import Record, RecordingStore
from support.rq.workers import Deferrals
from throttlekit import Limiter, TokenBucket
from throttlekit_rq import configure

__all__ = ["job", "naive"]

_flood = json.loads(os.environ["TK_FLOOD"])
_record = Record(_flood["record_url"], _flood["slow_s"])


_limiter = Limiter(
    RecordingStore(_flood["store_url"], _record, _record.count),
    plugins=[Deferrals(_record.count)] if _flood["mode"] == "throttlekit" else [],
)
configure(_limiter, on_waited_too_long=_flood["actor_options"].get("on_waited_too_long", "fail"))


def job(index: str, account: str = "one") -> None:
    """A job that carries its limits."""
    _record.count("deliveries")
    _record.run(index, _flood["body"])


def naive(index: str, account: str = "one") -> None:
    """
    A simple limiter: a denied job enqueues a copy of itself, with a delay of the time to one token plus up to a second,
    and ends.
    """
    limit = _flood["actors"]["job"][0]
    _record.count("deliveries")
    decision = _limiter.acquire(TokenBucket(limit["name"], limit["rate"], burst=limit["burst"]))
    if decision.allowed:
        _record.run(index, _flood["body"])
        return
    current: Any = get_current_job()
    queue = Queue(current.origin, connection=current.connection)
    queue.enqueue_in(timedelta(seconds=decision.retry_after + random.random()), naive, index, account)
