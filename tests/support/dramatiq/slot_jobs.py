"""The jobs of the workers of `support.dramatiq.slots`: some hold a slot, and some call an angry partner."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import dramatiq
from dramatiq.rate_limits import ConcurrentRateLimiter
from dramatiq.rate_limits.backends import RedisBackend

from support.dramatiq.workers import Counts, make_broker
from support.flood.slot_record import SlotRecord, settings
from throttlekit import Limiter
from throttlekit_dramatiq import Throttle

_slots, _config = settings()
_record = SlotRecord(_config["record_url"])


class NoFailures(dramatiq.Middleware):
    """Records every exception that other middleware would treat as a failure."""

    def after_process_message(
        self, broker: Any, message: Any, *, result: Any = None, exception: BaseException | None = None
    ) -> None:
        if exception is not None:
            _record.record.rpush("failures", f"{message.args[0]} {type(exception).__name__}")


_on_redis = _config["broker_url"].startswith("redis")
broker = make_broker(_config["broker_url"], **({"maintenance_chance": 200_000} if _on_redis else {}))
dramatiq.set_broker(broker)
broker.add_middleware(Counts(_record.count), before=type(broker.middleware[0]))
broker.add_middleware(NoFailures())
_throttle: dict[str, dict[str, Any]] = {"work": {}, "call": {}}
_native: Any = None
if _slots.mode == "throttlekit":
    broker.add_middleware(Throttle(Limiter(_config["store_url"])))
    _throttle = {"work": {"throttle": _slots.slots}, "call": {"throttle": _slots.partner}}
elif _slots.mode == "native":
    logging.getLogger("dramatiq.middleware.retries.Retries").setLevel(logging.ERROR)
    _limiter: Any = ConcurrentRateLimiter
    _native = _limiter(RedisBackend(url=_config["store_url"]), "slots", limit=_slots.amount)


@dramatiq.actor(queue_name=_config["queue"], **_slots.options, **_throttle["work"])
def work(index: str, seconds: str) -> None:
    """Hold a slot for *seconds*, and record when."""
    durations = seconds.split()
    seconds = durations[min(int(_record.record.incr(f"begun:{index}")), len(durations)) - 1]
    permit: AbstractContextManager[Any] = nullcontext() if _native is None else _native.acquire()
    with permit:
        _record.hold(index, float(seconds))


@dramatiq.actor(queue_name=_config["queue"], **_slots.options, **_throttle["call"])
def call(index: str, key: str) -> None:
    """Call the partner, once."""
    _record.call(key, index, _slots.body)
