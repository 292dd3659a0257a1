"""Steps of the reference, done by the scripts: every answer, stored byte and time to live must be the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parity.histories import (
    ANYTHING,
    Leased,
    Left,
    Paused,
    Slowed,
    Step,
    Waiting,
    written_as,
)
from support.servers.stores import Listed
from throttlekit._core.algorithms.concurrency import Holders
from throttlekit._core.algorithms.sliding_log import Log
from throttlekit._core.latency import Gauge
from throttlekit._core.storage_keys import slots_of_holder
from throttlekit.stores import Request

__all__ = ["NARROW", "STRICT", "Shas", "check"]

GAUGE = ("slots", "base", "sum", "spread", "holds", "skip", "peak", "rounds", "fell")

# What a step leaves, and the time to live that it was written with. Then the key lives on: the test's clock is fixed.
LEFT = """
local function read(key)
  if redis.call('TYPE', key).ok == 'zset' then
    return {table.concat(redis.call('ZRANGE', key, 0, -1, 'WITHSCORES'), '\\n')}
  end
  return redis.call('GET', key)
end
local left = {}
for i, key in ipairs(KEYS) do
  local ms = redis.call('PTTL', key)
  left[2 * i - 1] = read(key)
  left[2 * i] = ms < 0 and ms or tonumber(redis.call('HGET', 'expiry', key))
  redis.call('HDEL', 'expiry', key)
  redis.call('PERSIST', key)
end
return left
"""

# Around the scripts: the hash `expiry` keeps each time to live as the script wrote it. PTTL would compare it with the
# server's clock, which may be set back between two scripts. The key itself lives an hour longer: on a busy machine the
# shortest-lived keys would expire before they are read.
LONGER = """
local given = redis
local redis = {sha1hex = redis.sha1hex, call = function(...)
  local words = {...}
  local at = words[1] == 'PEXPIRE' and 3 or words[1] == 'SET' and 5
  if at and words[at] then
    given.call('HSET', 'expiry', words[2], words[at])
    words[at] = string.format('%.0f', words[at] + 3600000)
  end
  return given.call((unpack or table.unpack)(words))
end}
"""
# Around the scripts: every argument of redis.call must be text already, and no number in it in exponent form.
STRICT = """
local server = redis
local redis = {sha1hex = server.sha1hex, call = function(...)
  local command, key = ...
  for i = 1, select('#', ...) do
    local argument = select(i, ...)
    if type(argument) ~= 'string' then error('not text: ' .. tostring(argument)) end
    local ring = string.find(key or '', 'ring', 1, true) and #argument > 0 and #argument % 7 == 0
      and ((command == 'SETRANGE' and i == 4) or (command == 'SET' and i == 3))
    local holders = string.find(key or '', 'concurrency', 1, true) and (string.find(argument, '^%(?%-?%d+$')
      or string.find(argument, '^job%%3A%d+#%d?%*?%d*$') or string.find(argument, '^:%l+$')
      or argument == '-inf' or argument == '+inf' or argument == 'WITHSCORES' or argument == 'LIMIT')
    local line = string.find(key or '', ':order2$')
      and (string.find(argument, '^[%d ]+ %x* ?[%d ]*$') or argument == 'KEEPTTL')
      or string.find(key or '', ':jobs2$') and (string.find(argument, '^%(?%-?%d+$') or argument == '-inf'
      or argument == '+inf' or argument == 'LIMIT' or argument == 'WITHSCORES' or string.find(argument, '^[fr] '))
    if i > 2 and string.find(argument, '[^%d ]') and argument ~= 'PX' and not ring and not holders and not line then
      error('not whole: ' .. argument)
    end
  end
  return server.call(...)
end}
"""
# Around the scripts: a server whose C has longs of 32 bits.
NARROW = """
local given = string
local string = setmetatable({format = function(form, ...)
  local numbers = {...}
  if given.find(form, '%d', 1, true) then
    for i, number in ipairs(numbers) do numbers[i] = (number + 2147483648) % 4294967296 - 2147483648 end
  end
  return given.format(form, (unpack or table.unpack)(numbers))
end}, {__index = string})
"""


class _Recorder(Listed):
    """Tells what a store would send, and sends nothing."""

    def __init__(self) -> None:
        super().__init__("redis://localhost")
        self._sent: tuple[str, list[Any]] = ("", [])

    def sent(self, step: Step) -> tuple[str, list[Any]]:
        """The script's text, and what it is run with."""
        if isinstance(step.question, Request):
            self.acquire(step.question, step.now_us)
        elif isinstance(step.question, Leased):
            (self.release if step.question.verb == "release" else self.renew)(step.question.leases, step.now_us)
        elif isinstance(step.question, Paused):
            of = step.question
            self.pause(of.claims, of.for_us, step.now_us, emptied=of.emptied)
        elif isinstance(step.question, Slowed):
            self.slow(step.question.slowings, step.now_us)
        elif isinstance(step.question, Left):
            self.leave(step.question.waits, step.now_us)
        elif step.question is not None:
            self.settle(step.question, step.now_us)
        return self._sent

    def _run(self, script: Any, arguments: list[Any]) -> Any:
        self._sent = (script.text, arguments)
        return b"0"


RECORDER = _Recorder()


class Shas:
    """Scripts by their text, each loaded once."""

    def __init__(self, client: Any, before: str = "") -> None:
        self._client, self._before, self._known = client, before, dict[str, str]()

    def __getitem__(self, text: str) -> str:
        if text not in self._known:
            self._known[text] = self._client.script_load(LONGER + self._before + text)
        return self._known[text]


def _words(reply: Any) -> Any:
    """A reply as the reference gives it: the numbers, then the places."""
    if not isinstance(reply, bytes):
        return reply
    numbers, _, places = reply.decode().partition("|")
    first, *rest = map(int, numbers.split())
    told = [0, 1, first, first, first] if first >= 0 else [-first]
    return [*told, *rest, *filter(None, places.split(";"))]


def check(client: Any, steps: Sequence[Step], shas: Shas) -> None:
    """Run *steps* in one pipeline and compare."""
    pipeline = client.pipeline(transaction=False)
    left = client.script_load(LEFT)
    for step in steps:
        if step.question is None:
            pipeline.execute_command("DEL", *step.keys)
            continue
        text, arguments = RECORDER.sent(step)
        pipeline.execute_command("EVALSHA", shas[text], *arguments)
        pipeline.execute_command("EVALSHA", left, len(step.keys), *step.keys)
        for key in _forgotten(step):
            pipeline.execute_command("DEL", key)
    replies = iter(pipeline.execute())
    known: dict[tuple[str, bool], tuple[Any, object]] = {}  # what each key held last: most steps leave it
    for number, step in enumerate(steps):
        reply = next(replies)
        if step.question is None:
            continue
        assert _words(reply) == step.reply, f"step {number}: {step}"
        kept = next(replies)
        for i, key in enumerate(step.keys):
            stored, expiry_ms = written_as(step.stored[i]), step.expiry_ms[i]
            value, left_ms, kind = kept[2 * i], kept[2 * i + 1], (key, isinstance(stored, Log))
            if kind not in known or known[kind][0] != value:
                known[kind] = value, _read(key, value, stored)
            found = known[kind][1]
            if stored is ANYTHING:
                continue
            if stored is None and isinstance(found, Waiting):
                assert not found.jobs, f"{key}, step {number}: {step}"  # what the places of the last jobs cost
            elif expiry_ms is None:
                assert (found, left_ms) == (stored, -2 if stored is None else -1), f"{key}, step {number}: {step}"
            else:
                assert found == stored, f"{key}, step {number}: {step}"
                told_ms = max(1, expiry_ms)  # what lives no longer is written all the same, for a moment
                assert left_ms == told_ms, f"{key}, step {number}: {step}"
        for _ in _forgotten(step):
            next(replies)


def _forgotten(step: Step) -> list[str]:
    return [key for key, left_ms in zip(step.keys, step.expiry_ms, strict=True) if left_ms is not None and left_ms < 1]


def _read(key: str, value: Any, expected: object) -> object:
    """What a key holds; a ring as its log, the oldest unit first, and a sorted set as its holders or waiting jobs."""
    if isinstance(value, list):
        words = value[0].decode().split("\n")
        pairs = list(zip(words[::2], [int(float(score)) for score in words[1::2]], strict=True))
        if key.endswith(":jobs2"):
            jobs = [(score, int(name[:16]), int(name[17:])) for name, score in pairs if score >= 0]
            tags = {name: -1 - score for name, score in pairs if score < 0}
            kinds = ({name[2:]: tag for name, tag in tags.items() if name[:2] == kind} for kind in ("f ", "r "))
            return Waiting(jobs, *kinds)
        known = {name: -number for name, number in pairs if name[:1] == ":"}
        leases = tuple(pair for pair in pairs if pair[0][:1] != ":")
        assert known.get(":extra", 0) == sum(slots_of_holder(holder) - 1 for holder, _ in leases), pairs
        gauge = Gauge(*(known.get(":" + name, 0) for name in GAUGE)) if ":slots" in known else None
        return Holders(leases, *(known.get(name, 0) for name in (":mean", ":granted", ":lease")), gauge)
    if value is None or not isinstance(expected, Log):
        return value
    head, owed_until_us, *ring = (int.from_bytes(value[i : i + 7], "big") for i in range(0, len(value), 7))
    return Log(tuple(instant for instant in ring[head:] + ring[:head] if instant), owed_until_us)
