"""
A partner API with a limit that callers do not know. It refuses calls beyond the limit, with Retry-After-Ms, or becomes
slow. It may return in each answer how many calls are left.

Its state is in a Redis, so that calls of any number of processes have one order and one clock. It shares no code with
throttlekit.

    partner = HiddenPartner(url)                # in the benchmark
    partner.begin(Hidden("bucket", rate=60))
    partner.set_rate(30)

    answer = partner.call()                     # in a body
    if answer.status_code == 429: ...

    calls, rates = partner.log()                # in the benchmark, afterwards
"""

from __future__ import annotations

import json
import random
import time
from dataclasses import asdict, dataclass
from typing import Any, Literal

import redis

from support.partner.angry import Answer

__all__ = ["Call", "Hidden", "HiddenPartner", "Rate"]

_NOW = """
    local time = redis.call('TIME')
    local now = time[1] * 1000000 + time[2]
    local at = string.format('%.0f', now)
"""
_SET = (
    _NOW
    + """
    redis.call('HSET', KEYS[1], 'rate', ARGV[1])
    redis.call('RPUSH', KEYS[2], at .. ' ' .. ARGV[1])
    return at
"""
)
_CALL = (
    _NOW
    + """
    local of = cjson.decode(redis.call('HGET', KEYS[1], 'of'))
    local rate = tonumber(redis.call('HGET', KEYS[1], 'rate'))
    local kept = redis.call('HMGET', KEYS[1], 'units', 'since')
    local units, since = tonumber(kept[1] or of.burst), tonumber(kept[2] or now)
    local status, again_us, late_us, reset_us = 200, 0, 0, 0
    if of.kind == 'bucket' then
        units = math.min(of.burst, units + (now - since) * rate / 1000000)
        since = now
        if units < 1 then status, again_us = 429, (1 - units) / rate * 1000000 end
    elseif of.kind == 'window' then
        local window_us = of.window * 1000000
        local window = math.floor(now / window_us)
        if not kept[1] or window > since then units, since = rate * of.window, window end
        reset_us = (window + 1) * window_us - now
        if units < 1 then status, again_us = 429, reset_us end
    elseif of.kind == 'slow' then
        since = math.max(since, now) + 1000000 / rate
        late_us = since - now
    else
        -- The ends of its calls, relative to its begin, because JSON keeps 14 digits.
        local at_once, began = math.floor(rate * of.takes + 0.5), tonumber(redis.call('HGET', KEYS[1], 'began'))
        local ends = {}
        for _, each in ipairs(cjson.decode(redis.call('HGET', KEYS[1], 'ends') or '[]')) do
            if each > now - began then ends[#ends + 1] = each end
        end
        table.sort(ends)
        if of.kind == 'slots' and #ends >= at_once then status, again_us = 429, ends[1] + began - now
        else
            local starts = ends[#ends - at_once + 1] or now - began
            late_us = starts + began - now
            ends[#ends + 1] = starts + tonumber(ARGV[2]) * 1000000
        end
        redis.call('HSET', KEYS[1], 'ends', cjson.encode(ends))
    end
    if status == 200 and tonumber(ARGV[1]) < of.noise then status, again_us = 429, 1000000 / rate end
    if status == 200 then
        units = units - 1
        redis.call('HINCRBY', KEYS[1], 'served', 1)
    end
    redis.call('HSET', KEYS[1], 'units', string.format('%.6f', units), 'since', string.format('%.0f', since))
    redis.call('RPUSH', KEYS[2], at .. ' ' .. status .. ' ' .. string.format('%.0f', late_us))
    return {status, math.ceil(again_us / 1000), math.ceil(late_us), math.floor(units), math.ceil(reset_us / 1000000)}
"""
)


@dataclass(frozen=True, kw_only=True)
class Hidden:
    """
    The limit.

    Attributes:
        kind: A token bucket; a fixed window; a server that runs one call at a time and refuses none; a pool that runs
            `rate` × `takes` calls at once and queues others; or a pool that refuses others.
        rate: The calls per second at the beginning. Of a pool: its capacity.
        burst: The burst of the bucket.
        window: The seconds of the window.
        says: Whether each answer has the IETF draft's RateLimit and RateLimit-Policy, with whole seconds. Only for a
        window. noise: The share of other calls that it refuses, whatever the rate. takes: The average seconds of an
        answer, which takes from 0.5 to 1.5 times as long.
    """

    kind: Literal["bucket", "window", "slow", "pool", "slots"] = "bucket"
    rate: float = 60
    burst: int = 10
    window: float = 1.0
    says: bool = False
    noise: float = 0.0
    takes: float = 0.05


@dataclass(frozen=True, slots=True)
class Call:
    """A call that arrived, by the partner's clock, and by how much its answer was delayed."""

    at_us: int
    status: int
    late_us: int


@dataclass(frozen=True, slots=True)
class Rate:
    """The true rate from a time on."""

    at_us: int
    rate: float


class HiddenPartner:
    """The partner, for its callers and the benchmark."""

    def __init__(self, url: str) -> None:
        self._redis: Any = redis.Redis.from_url(url, decode_responses=True)
        self._set: Any = self._redis.register_script(_SET)
        self._call: Any = self._redis.register_script(_CALL)
        self._of: Hidden | None = None

    def begin(self, hidden: Hidden) -> int:
        """Begin with this limit and no calls. Return the time."""
        self._redis.delete("hidden", "hidden:calls", "hidden:rates")
        self._redis.hset("hidden", "of", json.dumps(asdict(hidden)))
        began_us = self.set_rate(hidden.rate)
        self._redis.hset("hidden", "began", began_us)
        return began_us

    def set_rate(self, rate: float) -> int:
        """Change the true rate. Return the time."""
        return int(self._set(keys=["hidden", "hidden:rates"], args=[rate]))

    def served(self) -> int:
        """Return how many calls were not refused."""
        return int(self._redis.hget("hidden", "served") or 0)

    def is_open(self) -> bool:
        return bool(self._redis.exists("hidden"))

    def call(self) -> tuple[Answer, float]:
        """Call, and return the answer with the seconds that it took."""
        if self._of is None:
            self._of = Hidden(**json.loads(self._redis.hget("hidden", "of")))
        hidden = self._of
        took = hidden.takes * (0.5 + random.random())
        keys = ["hidden", "hidden:calls"]
        status, again_ms, late_us, left, reset = self._call(keys=keys, args=[random.random(), took])
        took = (took if int(status) == 200 else 0.01) + late_us / 1e6
        time.sleep(took)
        headers = {"Retry-After-Ms": str(again_ms)} if status == 429 else {}
        if hidden.says:
            policy = f'"calls";q={hidden.rate * hidden.window:g};w={hidden.window:g}'
            headers |= {"RateLimit-Policy": policy, "RateLimit": f'"calls";r={left};t={reset}'}
        return Answer(int(status), headers), took

    def log(self) -> tuple[list[Call], list[Rate]]:
        """Return all calls and all rates until now."""
        calls = [Call(*map(int, line.split())) for line in self._redis.lrange("hidden:calls", 0, -1)]
        rates = [line.split() for line in self._redis.lrange("hidden:rates", 0, -1)]
        return calls, [Rate(int(at), float(rate)) for at, rate in rates]

    def close(self) -> None:
        self._redis.close()
