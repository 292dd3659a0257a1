"""
What the worker processes of `support.rq.slots` run: jobs that hold a slot, and jobs that call an angry partner.

It is their settings module as well, and told by $TK_SLOTS, the JSON of `support.rq.slots.RqSlots.environment`.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from typing import Any

import redis

import throttlekit
from support.partner.angry import AngryPartner
from throttlekit import Limiter, RateLimited, hookimpl
from throttlekit.hookspecs import Deferred
from throttlekit_rq import configure

__all__ = ["call", "work", "work_async"]

_told = json.loads(os.environ["TK_SLOTS"])
_redis: Any = redis.Redis.from_url(_told["record_url"])
_note: Any = _redis.register_script("""
    local time = redis.call('TIME')
    local now = string.format('%.0f', time[1] * 1000000 + time[2])
    redis.call('RPUSH', 'events', now .. ' ' .. ARGV[1] .. ' ' .. ARGV[2] .. ' ' .. ARGV[3])
    if ARGV[1] == 'end' then redis.call('SADD', 'ended', ARGV[2]) end
""")
_partner = AngryPartner(_told["record_url"])


class _Deferrals:
    """A plugin that counts deferrals: each is one more delivery."""

    @hookimpl
    def throttlekit_deferred(self, event: Deferred) -> None:
        _redis.hincrby("counts", event.decision.reason, 1)


configure(Limiter(_told["store_url"], plugins=[_Deferrals()]), max_wait=_told["max_wait"])


def _begin(index: str) -> None:
    _note(args=["start", index, os.getpid()])


def _end(index: str) -> None:
    _note(args=["end", index, "lost" if throttlekit.current().lost else "held"])


def work(index: str, seconds: float) -> None:
    """Hold a slot for so long, and say when."""
    _begin(index)
    time.sleep(seconds)
    _end(index)


async def work_async(index: str, seconds: float) -> None:
    _begin(index)
    await asyncio.sleep(seconds)
    _end(index)


def call(index: str, key: str) -> None:
    """Call the partner, once."""
    _partner.begin(key, index)
    time.sleep(_told["body"])
    answer = _partner.call(key, index)
    if answer.status_code == 429:
        raise RateLimited.from_response(answer)
    _redis.sadd("ended", index)
