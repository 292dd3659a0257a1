"""
Lower bounds of the cost: commands and scripts of redis-py that do less than any limiter, as contenders.

Contenders with a script keep their connection and pack their whole command in advance, so that the client costs almost
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis

from throttlekit._core.storage_keys import bucket_name

__all__ = ["EMPTY", "GCRA", "JOIN", "incr", "scripted", "with_a_time_to_live"]

GCRA = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local tat = math.max(now, tonumber(redis.call('GET', KEYS[1]) or 0)) + ARGV[1]
if tat - now > tonumber(ARGV[2]) then return 0 end
redis.call('SET', KEYS[1], string.format('%d', tat), 'PX', math.ceil((tat - now) / 1000))
return 1
"""
"""Only one token bucket: no waitlist, no pause, no retry time."""

EMPTY = "return 1"
"""A script that does nothing."""

JOIN = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local tat = math.max(now, tonumber(redis.call('GET', KEYS[1]) or 0)) + ARGV[1]
local line = redis.call('GET', KEYS[1] .. ':order')
if tat - now <= tonumber(ARGV[2]) then
  redis.call('SET', KEYS[1], string.format('%d', tat), 'PX', math.ceil((tat - now) / 1000))
  return 1
end
local number = (tonumber(line and string.match(line, '^%d+')) or 0) + 1
local place = string.format('%d %d %d', now, number, tat)
redis.call('ZADD', KEYS[1] .. ':jobs', string.format('%d', number), string.format('%016d', number))
redis.call('SET', KEYS[1] .. ':order', number .. string.rep(' 1795169879209974', 6), 'PX', '60000')
redis.call('PEXPIRE', KEYS[1] .. ':jobs', '60000')
return place .. ' ' .. string.sub(redis.sha1hex(KEYS[1] .. place), 1, 10)
"""
"""GCRA, and a denied caller gets a position at the end of a waitlist, which has six numbers and a seal."""


def incr(url: str) -> Callable[[str, int, int], Callable[[], bool]]:
    client: Any = redis.Redis.from_url(url)
    return lambda key, amount, seconds: lambda: client.incr(key) > 0


def with_a_time_to_live(url: str) -> Callable[[str, int, int], Callable[[], bool]]:
    """Return a contender that sets an integer under the key that a limit of throttlekit has for the tenant."""
    client: Any = redis.Redis.from_url(url)

    def bind(key: str, amount: int, seconds: int) -> Callable[[], bool]:
        name = bucket_name(f"partner-0-{amount}", key, "0123456789")
        return lambda: bool(client.set(name, 1_795_169_879_209_974, px=600_000))

    return bind


def scripted(text: str) -> Callable[[str], Callable[[str, int, int], Callable[[], bool]]]:
    """Return a contender that runs a script, whose reply to an allowed call is 1."""

    def make(url: str) -> Callable[[str, int, int], Callable[[], bool]]:
        client: Any = redis.Redis.from_url(url)
        connection = client.connection_pool.make_connection()
        connection.connect()
        sha = client.script_load(text)

        def bind(key: str, amount: int, seconds: int) -> Callable[[], bool]:
            arguments = "EVALSHA", sha, 1, f"{key}:{amount}", seconds * 1_000_000 // amount, seconds * 1_000_000
            frame = connection.pack_command(*arguments)

            def request() -> bool:
                connection.send_packed_command(frame, check_health=False)
                return connection.read_response() == 1

            return request

        return bind

    return make
