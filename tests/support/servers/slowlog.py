"""A Redis server whose SLOWLOG measures how long each script holds it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from itertools import combinations
from typing import Any

import redis

import throttlekit_lua
from support.servers.processes import redis_server
from throttlekit import Limiter
from throttlekit.stores.redis import RedisStore

__all__ = ["PARTS", "VERBS", "Slowest", "slowest_server"]

VERBS = (
    "decide",
    "renew",
    "wait_clear",
    "wait_forget",
    "wait_list",
    "wait_look",
    "wait_pause",
    "wait_return",
    "wait_settle",
    "wait_slow",
    "wait_where",
)
"""The scripts that `throttlekit_lua.read` composes."""

PARTS = (
    "at_once",
    "claims",
    "clock",
    "common",
    "fleet_common",
    "one_record",
    "ring",
    "slowdown",
    "waitlist",
    *throttlekit_lua.ALGORITHMS.values(),
)
"""The files that the scripts are composed of: none of them is a script."""


_REFERENCE = """
for i = 1, 250 do
  local name = string.format('%016d|id%d', i, i)
  redis.call('ZADD', KEYS[1], '0', name)
  redis.call('HSET', KEYS[2], name, table.concat({name, 'w', i}, ' '))
  redis.call('ZRANGEBYLEX', KEYS[1], '[' .. name, '(' .. name .. '~', 'LIMIT', '0', '1')
  redis.call('HGET', KEYS[2], name)
end
redis.call('DEL', KEYS[1], KEYS[2])
"""
_REFERENCE_US = 2_600
"""
How long `_REFERENCE` takes at most on the machine of docs/results/decisions.md, which runs the bare script of
one_core.py 192 000 times a second. It took 5 000 µs where one_core.py printed 91 000. A smaller number would
give scripts more time.
"""


class Slowest:
    """
    A server that logs how long each command holds it.

    Attributes:
        ran: The names of all scripts that `of` has measured.
        processor_us: The CPU time that the server used for the commands of the last measurement.
    """

    def __init__(self, url: str) -> None:
        self.client: Any = redis.Redis.from_url(url)
        self.client.config_set("slowlog-log-slower-than", 0)
        self.client.config_set("slowlog-max-len", 1_000)
        self.store, self.waitlists = RedisStore(url, timeout=10), RedisStore(url, timeout=10)
        self.limiter = Limiter(self.store)
        self.ran: set[str] = set()
        self.processor_us = 0
        self._names: dict[bytes, str] = {}
        codes = [*throttlekit_lua.ALGORITHMS]
        for verb in VERBS:
            for count in range(len(codes) + 1):
                for some_codes in combinations(codes, count):
                    self._names[_sha(throttlekit_lua.read(verb, frozenset(some_codes)))] = verb

    def script(self, name: str, keys: list[str], args: list[Any]) -> object:
        """Run the script *name* of the fleet or of an adapter."""
        text = throttlekit_lua.script(name)
        sha = self.client.script_load(text)
        self._names[sha.encode()] = name
        return self.client.evalsha(sha, len(keys), *keys, *args)

    def of(self, prepare: Callable[[], Any], act: Callable[[Any], object]) -> int:
        """
        Return the microseconds of the slowest script of *act*, which gets what *prepare* returned.

        On a busy machine a script may wait for the CPU, which its SLOWLOG includes: the CPU time of all commands is
        returned if it is less.
        """
        commands = [(words, took) for words, took in self.commands(prepare, act) if words[0] in (b"EVAL", b"EVALSHA")]
        assert commands
        self.ran |= {
            self._names[words[1]] for words, _ in commands if words[0] == b"EVALSHA" and words[1] in self._names
        }
        return min(self.processor_us, max(took for _, took in commands))

    def here(self, us: int) -> int:
        """
        Return how long this machine needs now for *us* of work on the machine of the results pages: at least *us*. A
        fixed script is measured, so a slower or busier machine has more time.
        """
        took = self.of(lambda: None, lambda _: self.client.eval(_REFERENCE, 2, "reference:1", "reference:2"))
        return max(us, us * took // _REFERENCE_US)

    def commands(self, prepare: Callable[[], Any], act: Callable[[Any], object]) -> list[tuple[list[bytes], int]]:
        """Return the commands that *act* sent, the last one first, with the microseconds that each took."""
        self.client.flushall()
        prepared = prepare()
        self.client.slowlog_reset()
        began = self._processor_us()
        act(prepared)
        self.processor_us = self._processor_us() - began
        return [(each["command"].split(maxsplit=2), each["duration"]) for each in self.client.slowlog_get(1_000)]

    def _processor_us(self) -> int:
        cpu = self.client.info("cpu")
        return round(sum(cpu[f"used_cpu_{kind}_main_thread"] for kind in ("user", "sys")) * 1_000_000)


@contextmanager
def slowest_server() -> Generator[Slowest, None, None]:
    with redis_server() as url:
        slowest = Slowest(url)
        yield slowest
        slowest.limiter.close()
        slowest.waitlists.close()
        slowest.client.close()


def _sha(text: str) -> bytes:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest().encode()
