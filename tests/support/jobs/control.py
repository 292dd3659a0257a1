"""Jobs of two frameworks with one limit, which record their starts. $TK_CONTROL is a Redis URL without a database."""

from __future__ import annotations

import json
import os
import time

import dramatiq
import redis

from support.dramatiq.workers import make_broker
from throttlekit import Limiter, TokenBucket
from throttlekit_dramatiq import Throttle
from throttlekit_rq import configure

__all__ = ["BROKER", "LIMIT", "RQ", "STARTS", "STORE", "call", "call_rq"]

_BASE = os.environ["TK_CONTROL"]
STORE, STARTS, BROKER, RQ = (f"{_BASE}/{number}" for number in (1, 2, 3, 4))
LIMIT = TokenBucket("partner", "40/s", burst=8)

_limiter = Limiter(STORE)
_starts = redis.Redis.from_url(STARTS)
_broker = make_broker(BROKER)
_broker.add_middleware(Throttle(_limiter))
dramatiq.set_broker(_broker)
configure(_limiter)


def _record_start(framework: str, index: int) -> None:
    _starts.rpush("starts", json.dumps([time.time(), framework, index]))


@dramatiq.actor(throttle=[LIMIT])
def call(index: int) -> None:
    _record_start("dramatiq", index)


def call_rq(index: int) -> None:
    _record_start("rq", index)
