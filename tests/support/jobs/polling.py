"""What the workers of the polling benchmark run: one actor, and a middleware that sets the poll and takes the times."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import dramatiq
import redis

from support.dramatiq.workers import make_broker

_poll_ms = int(os.environ["TK_POLL_MS"])
_record = redis.Redis.from_url(os.environ["TK_RECORD_URL"])


class Poll(dramatiq.Middleware):
    """Sets the consumers' poll; notes when each delayed message is due, released and started."""

    def __init__(self) -> None:
        self._due: dict[str, float] = {}
        self._released: dict[str, float] = {}

    def after_consumer_thread_boot(self, broker: Any, thread: Any) -> None:
        thread.worker_timeout = _poll_ms

    def before_delay_message(self, broker: Any, message: Any) -> None:
        self._due[message.message_id] = message.options["eta"] / 1000

    def before_enqueue(self, broker: Any, message: Any, delay: int | None) -> None:
        self._released[message.message_id] = time.time()

    def before_process_message(self, broker: Any, message: Any) -> None:
        now, due = time.time(), self._due.pop(message.message_id, None)
        if due is not None:
            _record.rpush("late", json.dumps([self._released[message.message_id] - due, now - due]))


broker = make_broker(os.environ["TK_BROKER_URL"])
broker.add_middleware(Poll())
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name=os.environ["TK_QUEUE"])
def nothing() -> None:
    pass
