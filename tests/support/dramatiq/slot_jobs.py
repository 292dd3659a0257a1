"""
What the worker processes of `support.dramatiq.slots` run: jobs that hold a slot, and jobs that call an angry partner.

Everything is told by $TK_SLOTS, the JSON of `support.dramatiq.slots.Slots.environment`.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import dramatiq
import redis
from dramatiq.rate_limits import ConcurrentRateLimiter
from dramatiq.rate_limits.backends import RedisBackend

import throttlekit
from support.dramatiq.workers import make_broker
from support.flood.slot_record import slots_of
from support.partner.angry import AngryPartner
from throttlekit import Concurrency, Limiter, RateLimited, TokenBucket
from throttlekit_dramatiq import Throttle

_told = json.loads(os.environ["TK_SLOTS"])
_ours = _told["mode"] == "throttlekit"
_redis: Any = redis.Redis.from_url(_told["record_url"])
_note: Any = _redis.register_script("""
    local time = redis.call('TIME')
    local now = string.format('%.0f', time[1] * 1000000 + time[2])
    redis.call('RPUSH', 'events', now .. ' ' .. ARGV[1] .. ' ' .. ARGV[2] .. ' ' .. ARGV[3])
    if ARGV[1] == 'end' then redis.call('SADD', 'ended', ARGV[2]) end
""")
_partner = AngryPartner(_told["record_url"])


class Counts(dramatiq.Middleware):
    """Counts what passes between worker and broker, and deliveries; told when the worker is stopped in peace."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def before_process_message(self, broker: Any, message: Any) -> None:
        self._counts["deliveries"] += 1  # to a worker's thread, as the floods count them

    def after_enqueue(self, broker: Any, message: Any, delay: int | None) -> None:
        self._counts["operations"] += 1

    def after_ack(self, broker: Any, message: Any) -> None:
        self._counts["operations"] += 1

    def after_nack(self, broker: Any, message: Any) -> None:
        self._counts["operations"] += 1

    def after_worker_shutdown(self, broker: Any, worker: Any) -> None:
        for name, count in self._counts.items():
            _redis.hincrby("counts", name, count)


class NoFailures(dramatiq.Middleware):
    """Notes whatever other middleware would take for a failure."""

    def after_process_message(
        self, broker: Any, message: Any, *, result: Any = None, exception: BaseException | None = None
    ) -> None:
        if exception is not None:
            _redis.rpush("failures", f"{message.args[0]} {type(exception).__name__}")


def _native() -> Any:
    limiter: Any = ConcurrentRateLimiter
    return limiter(RedisBackend(url=_told["store_url"]), "slots", limit=_told["amount"])


broker = make_broker(_told["broker_url"], **_told["broker_options"])
dramatiq.set_broker(broker)
broker.add_middleware(Counts(), before=type(broker.middleware[0]))
broker.add_middleware(NoFailures())
_options: dict[str, Any] = dict(_told["actor_options"])
_throttle: dict[str, Any] = {}
if _ours:
    broker.add_middleware(Throttle(Limiter(_told["store_url"]), max_wait=_told["max_wait"]))
    _slots = Concurrency("slots", _told["amount"], lease=_told["lease"], cost=lambda job: slots_of(job.args[0]))
    _throttle["work"] = {"throttle": _slots}
    _throttle["call"] = {"throttle": TokenBucket("partner", _told["rate"], burst=_told["burst"], key="{key}")}
elif _told["mode"] == "native":
    logging.getLogger("dramatiq.middleware.retries.Retries").setLevel(logging.ERROR)
    _native_slots = _native()


@dramatiq.actor(queue_name=_told["queue"], **_options, **_throttle.get("work", {}))
def work(index: str, seconds: str) -> None:
    """Hold a slot for so long, and say when. "600 2": for 600 s the first time, for 2 afterwards."""
    lasting = seconds.split()
    seconds = lasting[min(int(_redis.incr(f"begun:{index}")), len(lasting)) - 1]
    permit: AbstractContextManager[Any] = _native_slots.acquire() if _told["mode"] == "native" else nullcontext()
    with permit:
        _note(args=["start", index, os.getpid()])
        time.sleep(float(seconds))
        _note(args=["end", index, "lost" if throttlekit.current().lost else "held"])


@dramatiq.actor(queue_name=_told["queue"], **_options, **_throttle.get("call", {}))
def call(index: str, key: str) -> None:
    """Call the partner, once."""
    _partner.begin(key, index)
    time.sleep(_told["body"])
    answer = _partner.call(key, index)
    if answer.status_code == 429:
        raise RateLimited.from_response(answer)
    _redis.sadd("ended", index)
