"""The actor of `tests/benchmarks/many_keys.py`, which records its key and the time of its charge in Redis."""

from __future__ import annotations

import json
import os

import dramatiq
import redis

from support.dramatiq.workers import make_broker
from throttlekit import Limiter, TokenBucket, current
from throttlekit_dramatiq import Throttle

_plan = json.loads(os.environ["TK_KEYS"])
_record = redis.Redis.from_url(_plan["record"])
broker = make_broker(_plan["broker"])
broker.add_middleware(Throttle(Limiter(_plan["store"])))
dramatiq.set_broker(broker)


@dramatiq.actor(throttle=[TokenBucket("account", (1, _plan["every"]), burst=1, key="{account}")], max_retries=0)
def call(account: int) -> None:
    decision = current().decision
    assert decision is not None
    _record.rpush("ran", f"{account} {decision.charged[0].at_us}")
