"""The record of a flood that its worker processes write, by the clock of the recording Redis."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import redis

from support.partner.hidden import HiddenPartner
from support.servers.stores import Passing
from throttlekit import RateLimited, current
from throttlekit._core.answer import Caller
from throttlekit._engine.plugins import plugin_manager, store_from
from throttlekit.stores import Request

__all__ = ["Record", "RecordingStore"]

_START = """
    local time = redis.call('TIME')
    local now = string.format('%.0f', time[1] * 1000000 + time[2])
    redis.call('RPUSH', 'starts', now .. ' ' .. ARGV[1] .. ' ' .. ARGV[2])
    if ARGV[3] == '1' then redis.call('RPUSH', 'ends', ARGV[1]); redis.call('SADD', 'ended', ARGV[1]) end
"""


class Record:
    """
    A worker's access to the recording Redis.

    Args:
        slow_s: See `support.flood.run.Flood`.
    """

    def __init__(self, url: str, slow_s: float | None = None) -> None:
        self.redis: Any = redis.Redis.from_url(url)
        self._partner, self._slow_s = None if slow_s is None else HiddenPartner(url), slow_s or 0.0
        self._start: Any = self.redis.register_script(_START)

    def run(self, index: str, seconds: float) -> None:
        """Run the body of a job: call the partner, or record the start, work for *seconds*, and record the end."""
        if self._partner is not None:
            answer, took = self._partner.call()
            if "RateLimit" in answer.headers:
                current().apply_response(answer)
            if answer.status_code == 429:
                raise RateLimited.from_response(answer)
            if took > self._slow_s:
                current().report_overload()
            return
        self._start(args=[index, os.getpid(), "0" if seconds else "1"])
        if seconds:
            time.sleep(seconds)
            with self.redis.pipeline() as pipe:
                pipe.rpush("ends", index)
                pipe.sadd("ended", index)
                pipe.execute()

    def count(self, name: str, by: float = 1) -> None:
        self.redis.hincrbyfloat("counts", name, by)


class RecordingStore(Passing):
    """The store of a URL, which records each grant with its time, and the charge and new state of each bucket."""

    def __init__(self, url: str, record: Record, count: Callable[[str], None]) -> None:
        self.inner = store_from(url, plugin_manager([]))
        self._record = record
        self._count = count

    def decide(self, claims: Any, requester: Any, now_us: int | None = None, *, attempt: str = "") -> Any:
        request = Request(claims, requester, attempt)
        return self._record_answer(
            request, self.inner.decide(request.claims, request.requester, now_us, attempt=request.attempt)
        )

    def decide_all(self, requests: Sequence[Request]) -> list[Any]:
        """Decide the requests of an event loop together."""
        inner: Any = self.inner
        answers = zip(requests, inner.decide_all(requests), strict=True)
        return [
            each if isinstance(each, Exception) else self._record_answer(request, each) for request, each in answers
        ]

    def _record_answer(self, request: Request, verdict: Any) -> Any:
        if request.requester.caller is Caller.PEEK:
            return verdict
        self._count(f"store: {verdict.reason.value}")
        if verdict.allowed:
            buckets = [
                (claim.bucket, claim.algorithm.size, use.full_us)
                for claim, use in zip(request.claims, verdict.uses, strict=True)
                if use is not None
            ]
            self._record.redis.rpush("grants", json.dumps([verdict.retry_us, buckets]))
        return verdict

    def __getattr__(self, name: str) -> Any:
        """Delegate all other methods to the recorded store."""
        if name.startswith("_") or name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)
