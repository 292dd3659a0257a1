"""When bodies ran, by the clock of the Redis that wrote it down."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import redis

from support.flood.slot_record import slots_of

__all__ = ["Event", "Spans", "most_at_once"]

_NOTE = """
    local time = redis.call('TIME')
    local now = string.format('%.0f', time[1] * 1000000 + time[2])
    redis.call('RPUSH', KEYS[1], now .. ' ' .. ARGV[1] .. ' ' .. ARGV[2] .. ' ' .. ARGV[3])
"""


@dataclass(frozen=True, slots=True)
class Event:
    """A body began (`by` is 1) or ended (-1)."""

    at_us: int
    by: int
    process: int
    job: str


class Spans:
    """What bodies note, and what a test reads of it."""

    def __init__(self, url: str, name: str) -> None:
        self._redis: Any = redis.Redis.from_url(url, decode_responses=True)
        self._note: Any = self._redis.register_script(_NOTE)
        self._name = name

    @contextlib.contextmanager
    def body(self, kind: str, job: str, seconds: float) -> Iterator[None]:
        """A body that works for so long. One that is killed, or interrupted, never ends."""
        self._tell(kind, 1, job)
        time.sleep(seconds)
        yield
        self._tell(kind, -1, job)

    def count(self, what: str) -> None:
        self._redis.hincrby(f"{self._name}:counts", what, 1)

    def counted(self, what: str) -> int:
        return int(self._redis.hget(f"{self._name}:counts", what) or 0)

    def told(self, kind: str) -> list[Event]:
        """All beginnings and ends, in order."""
        lines = [line.split(" ", 3) for line in self._redis.lrange(self._key(kind), 0, -1)]
        return [Event(int(at_us), int(by), int(process), job) for at_us, by, process, job in lines]

    def now_us(self) -> int:
        """The clock's time."""
        seconds, micros = self._redis.time()
        return int(seconds * 1_000_000 + micros)

    def close(self) -> None:
        self._redis.close()

    def _tell(self, kind: str, by: int, job: str) -> None:
        self._note(keys=[self._key(kind)], args=[by, os.getpid(), job])

    def _key(self, kind: str) -> str:
        return f"{self._name}:spans:{kind}"


def most_at_once(events: list[Event]) -> int:
    """How many slots the bodies had at the busiest instant."""
    return max(accumulate((event.by * slots_of(event.job) for event in events), initial=0))
