"""`support.flood.jobs` in processes whose clocks are alternately two minutes ahead and two minutes behind."""

from __future__ import annotations

import json
import os
import time

import redis

_record = redis.Redis.from_url(json.loads(os.environ["TK_FLOOD"])["record_url"])
_skew = 120.0 if int(_record.incr("skewed")) % 2 else -120.0
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + _skew
time.time_ns = lambda: _time_ns() + round(_skew * 1e9)

from support.flood.jobs import broker  # noqa: E402  after the change of the clock

__all__ = ["broker"]
