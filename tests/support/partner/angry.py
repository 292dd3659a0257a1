"""
A partner API that is strict, and now and then angry: it then answers 429 with Retry-After.

It lives in a Redis, so that calls of any number of processes have one order and one clock: each is written down with
its instant, and so is each body that begins, by the clock of that Redis. It shares no code with throttlekit.

    partner = AngryPartner(url)                 # in the test
    partner.be_angry("one", 2.0, from_call=50)

    partner.begin("one", job)                   # in a body, first of all
    answer = partner.call("one", job)
    if answer.status_code == 429:
        raise RateLimited.from_response(answer)

    told = partner.told("one")                  # in the test, afterwards
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import redis

__all__ = ["AngryPartner", "Answer", "Call", "Told"]

_FOR_EVER = 10 * 365 * 86_400.0

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
    """What a call is answered, with the names that requests and httpx have for it."""

    status_code: int
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class Call:
    """A call that arrived, or (with status 0) a body that began. By the partner's clock."""

    at_us: int
    status: int
    job: str


@dataclass(frozen=True, slots=True)
class Told:
    """What happened under one key, each in its order: the bodies that began, and the calls that arrived."""

    begun: list[Call]
    calls: list[Call]

    @property
    def answered(self) -> list[str]:
        """The jobs that got what they wanted."""
        return [call.job for call in self.calls if call.status == 200]

    @property
    def refused(self) -> list[Call]:
        return [call for call in self.calls if call.status == 429]

    def running_at(self, at_us: int) -> int:
        """How many bodies had begun by then whose call came later: nobody could have held those back."""
        return sum(call.at_us <= at_us for call in self.begun) - sum(call.at_us <= at_us for call in self.calls)

    def begun_after(self, at_us: int) -> list[Call]:
        """The calls of bodies that began later than that. Each job has one body at a time."""
        begun = {call.job: call.at_us for call in self.begun}  # the last of each
        return [call for call in self.calls if call.at_us >= begun[call.job] > at_us]

    def between(self, from_us: int, to_us: int) -> list[Call]:
        """The calls later than the one instant and not later than the other."""
        return [call for call in self.calls if from_us < call.at_us <= to_us]


class AngryPartner:
    """
    The partner, as anybody sees it.

    Args:
        url: Of its Redis; one that no test stops or empties meanwhile.
        name: Partners of different names know nothing of each other.
    """

    def __init__(self, url: str, name: str = "partner") -> None:
        self._redis: Any = redis.Redis.from_url(url, decode_responses=True)
        self._name = name
        self._begin: Any = self._redis.register_script(_BEGIN)
        self._call: Any = self._redis.register_script(_CALL)

    def be_angry(
        self, key: str, seconds: float = _FOR_EVER, *, from_call: int = 1, retry_after: float | None = None
    ) -> None:
        """
        From the nth call on, answer all with 429 for so long: for ever, if it is not said.

        Args:
            retry_after: What Retry-After says. Default: the whole seconds that are left.
        """
        told = {"from": from_call, "for": round(seconds * 1_000_000)}
        with self._redis.pipeline() as pipe:
            pipe.delete(self._key("anger", key))
            pipe.hset(
                self._key("anger", key), mapping={**told, "says": "" if retry_after is None else f"{retry_after:g}"}
            )
            pipe.execute()

    def calm_down(self, key: str) -> None:
        self._redis.delete(self._key("anger", key))

    def begin(self, key: str, job: str) -> None:
        """For bodies: I have begun, and will call once."""
        self._begin(keys=[self._key("begun", key)], args=[job])

    def call(self, key: str, job: str) -> Answer:
        """For bodies: the call."""
        status, says = self._call(keys=[self._key("calls", key), self._key("anger", key)], args=[job])
        return Answer(int(status), {"Retry-After": says} if says else {})

    def told(self, key: str) -> Told:
        """What has happened so far."""
        begun, calls = (
            [_call(line) for line in self._redis.lrange(self._key(kind, key), 0, -1)] for kind in ("begun", "calls")
        )
        return Told(begun, calls)

    def close(self) -> None:
        self._redis.close()

    def _key(self, kind: str, key: str) -> str:
        return f"{self._name}:{kind}:{key}"


def _call(line: str) -> Call:
    at_us, status, job = line.split(" ", 2)
    return Call(int(at_us), int(status), job)
