"""
Two kinds of jobs for each fault: jobs of kind "a" have the fault, and jobs of kind "b" wait behind them.

Both kinds have the limit `all-FAULT`. A job's name is KIND_FAULT. `support.plain.worker` declares the jobs in each
framework.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import redis

from support.plain.plan import Plan
from support.servers.processes import patient
from throttlekit import Limit, Limiter, RateLimited, TokenBucket

__all__ = ["FAULTS", "KINDS", "RATE", "Fleet", "account_of", "limits_of", "worker_jobs"]

FAULTS = ("pause", "429", "set", "undecodable", "store", "queue")
KINDS = ("a", "b")
RATE = 1
"""The jobs per second of each limit that two kinds share."""

_ACCOUNTS = {"a": "A", "b": "B"}
_PAUSED_S = 600.0


def account_of(kind: str) -> str:
    """Return the key of jobs of that kind."""
    return _ACCOUNTS[kind]


def limits_of(kind: str, fault: str) -> list[Limit]:
    """Return the limits of KIND_FAULT. The fault affects the second limit, or no limit."""
    limits: list[Limit] = [TokenBucket(f"all-{fault}", f"{RATE}/s", burst=1)]
    if fault in ("pause", "429"):
        limits.append(TokenBucket(f"account-{fault}", "1000/s", burst=1000, key="{account}"))
    elif fault in ("set", "store") and kind == "a":
        limits.append(TokenBucket(f"second-{fault}", "1000/s", burst=1000))
    return limits


@dataclass(frozen=True, kw_only=True)
class Fleet(Plan):
    """
    Worker processes that declare the jobs and listen to one queue.

    Attributes:
        redis_base: The Redis of the limits (database 1) and of the record (database 2).
        group_url: The store of the limits named second-store.
        without: Jobs that these workers do not declare.
    """

    redis_base: str
    group_url: str
    without: Sequence[str] = ()
    jobs: str = __name__

    @property
    def store_url(self) -> str:
        return patient(f"{self.redis_base}/1")

    @property
    def record_url(self) -> str:
        return f"{self.redis_base}/2"


def worker_jobs() -> tuple[Limiter, list[tuple[str, Callable[[str, str], None], list[Limit]]]]:
    """Return the limiter of this worker, and the jobs that it declares."""
    fleet = Fleet(**json.loads(os.environ["TK_PLAIN"]))
    names = [(f"{kind}_{fault}", limits_of(kind, fault)) for fault in FAULTS for kind in KINDS]
    jobs = [(name, _body_of(fleet, name), limits) for name, limits in names if name not in fleet.without]
    return Limiter(fleet.store_url, stores={"second-store": fleet.group_url}), jobs


def _body_of(fleet: Fleet, name: str) -> Callable[[str, str], None]:
    """Return the body of the job *name*, which records its run. A body of kind "a" may get a 429."""
    record: Any = redis.Redis.from_url(fleet.record_url)

    def body(index: str, account: str) -> None:
        if name == "a_429" and record.exists("429"):
            record.set("refused", 1)
            raise RateLimited(retry_after=_PAUSED_S, limit="account-429")
        record.rpush(f"ran:{name}", index)

    body.__name__ = body.__qualname__ = name
    return body
