"""
A partner API that can be made angry: it then answers 429 with Retry-After.

Its state is in a Redis, so that calls of any number of processes have one order and one clock. Each call and each start
of a body is recorded with its time by the clock of that Redis. It shares no code with throttlekit.

    partner = AngryPartner(url)                 # in the test
    partner.be_angry("one", 2.0, from_call=50)

    partner.begin("one", job)                   # in a body, first of all
    answer = partner.call("one", job)
    if answer.status_code == 429:
        raise RateLimited.from_response(answer)

    record = partner.record_of("one")                # in the test, afterwards
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import redis

__all__ = ["AngryPartner", "Answer", "Call", "KeyRecord"]

_TEN_YEARS_S = 10 * 365 * 86_400.0

_BEGIN = """
    local time = redis.call('TIME')
    local now = string.format('%.0f', time[1] * 1000000 + time[2])
    redis.call('RPUSH', KEYS[1], now .. ' 0 ' .. ARGV[1])
"""

_CALL = """
    local calls, anger, job = KEYS[1], KEYS[2], ARGV[1]
    local time = redis.call('TIME')
    local now = time[1] * 1000000 + time[2]
    local number = redis.call('LLEN', calls) + 1
    local set = redis.call('HMGET', anger, 'from', 'for', 'until', 'says')
    local status, says = 200, ''
    if set[1] and number >= tonumber(set[1]) then
        local till = tonumber(set[3] or now + tonumber(set[2]))
        redis.call('HSET', anger, 'until', string.format('%.0f', till))
        if now < till then
            status, says = 429, set[4]
            if says == '' then says = string.format('%.0f', math.ceil((till - now) / 1000000)) end
        end
    end
    redis.call('RPUSH', calls, string.format('%.0f', now) .. ' ' .. status .. ' ' .. job)
    return {status, says}
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a call, with the attribute names of requests and httpx."""

    status_code: int
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class Call:
    """A call that arrived, or (with status 0) a body that began, by the partner's clock."""

    at_us: int
    status: int
    job: str


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """The record of one key: the bodies that began, and the calls that arrived, each in order."""

    begun: list[Call]
    calls: list[Call]

    @property
    def answered(self) -> list[str]:
        """The jobs whose calls were answered with 200."""
        return [call.job for call in self.calls if call.status == 200]

    @property
    def refused(self) -> list[Call]:
        return [call for call in self.calls if call.status == 429]

    def running_at(self, at_us: int) -> int:
        """Return how many bodies had begun by *at_us* and called later: the limiter could not have held them back."""
        return sum(call.at_us <= at_us for call in self.begun) - sum(call.at_us <= at_us for call in self.calls)

    def begun_after(self, at_us: int) -> list[Call]:
        """Return the calls of bodies that began after *at_us*. Each job has one body at a time."""
        begun = {call.job: call.at_us for call in self.begun}  # the last start of each job
        return [call for call in self.calls if call.at_us >= begun[call.job] > at_us]

    def between(self, from_us: int, to_us: int) -> list[Call]:
        """Return the calls after *from_us*, and not after *to_us*."""
        return [call for call in self.calls if from_us < call.at_us <= to_us]


class AngryPartner:
    """
    The partner, for tests and for bodies.

    Args:
        url: The URL of its Redis, which no test may stop or empty meanwhile.
        name: Partners with different names are independent.
    """

    def __init__(self, url: str, name: str = "partner") -> None:
        self._redis: Any = redis.Redis.from_url(url, decode_responses=True)
        self._name = name
        self._begin: Any = self._redis.register_script(_BEGIN)
        self._call: Any = self._redis.register_script(_CALL)

    def be_angry(
        self, key: str, seconds: float = _TEN_YEARS_S, *, from_call: int = 1, retry_after: float | None = None
    ) -> None:
        """
        From call *from_call* on, answer all calls with 429 for *seconds*. Default: without end.

        Args:
            retry_after: The value of Retry-After. Default: the remaining whole seconds.
        """
        anger = {"from": from_call, "for": round(seconds * 1_000_000)}
        with self._redis.pipeline() as pipe:
            pipe.delete(self._key("anger", key))
            pipe.hset(
                self._key("anger", key), mapping={**anger, "says": "" if retry_after is None else f"{retry_after:g}"}
            )
            pipe.execute()

    def calm_down(self, key: str) -> None:
        self._redis.delete(self._key("anger", key))

    def begin(self, key: str, job: str) -> None:
        """Record the start of a body, which will call once."""
        self._begin(keys=[self._key("begun", key)], args=[job])

    def call(self, key: str, job: str) -> Answer:
        """Make the call of a body."""
        status, says = self._call(keys=[self._key("calls", key), self._key("anger", key)], args=[job])
        return Answer(int(status), {"Retry-After": says} if says else {})

    def record_of(self, key: str) -> KeyRecord:
        """Return the record until now."""
        begun, calls = (
            [_call(line) for line in self._redis.lrange(self._key(kind, key), 0, -1)] for kind in ("begun", "calls")
        )
        return KeyRecord(begun, calls)

    def close(self) -> None:
        self._redis.close()

    def _key(self, kind: str, key: str) -> str:
        return f"{self._name}:{kind}:{key}"


def _call(line: str) -> Call:
    at_us, status, job = line.split(" ", 2)
    return Call(int(at_us), int(status), job)
