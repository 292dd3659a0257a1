"""
Two kinds of jobs for each fault: those of kind "a" have the fault, and those of kind "b" wait behind them.

Both kinds name the limit `all-FAULT`. A job is called KIND_FAULT, and runs as `body_of` says. The worker modules beside
this one declare the jobs in each framework, as $TK_OTHERS says: the JSON of `Fleet.environment`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import redis

from support.servers.processes import patient
from throttlekit import Limit, Limiter, RateLimited, TokenBucket

__all__ = ["FAULTS", "KINDS", "RATE", "Fleet", "account_of", "body_of", "limits_of"]

FAULTS = ("pause", "429", "set", "undecodable", "store", "queue")
KINDS = ("a", "b")
RATE = 2
"""Jobs a second of each limit that two kinds share."""

_ACCOUNTS = {"a": "A", "b": "B"}
_PAUSED_S = 600.0


def account_of(kind: str) -> str:
    """The key that a job of that kind has."""
    return _ACCOUNTS[kind]


def limits_of(kind: str, fault: str) -> list[Limit]:
    """The limits of KIND_FAULT. What the fault concerns is the second one, or nothing of the limits."""
    limits: list[Limit] = [TokenBucket(f"all-{fault}", f"{RATE}/s", burst=1)]
    if fault in ("pause", "429"):
        limits.append(TokenBucket(f"account-{fault}", "1000/s", burst=1000, key="{account}"))
    elif fault in ("set", "store") and kind == "a":
        limits.append(TokenBucket(f"second-{fault}", "1000/s", burst=1000))
    return limits


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """
    Worker processes that declare the jobs and listen to one queue.

    Attributes:
        redis_base: The Redis of the limits (database 1) and of the record (database 2).
        group_url: The store of the limits called second-store.
        without: Jobs that these workers do not know.
        form: What else the worker module needs to know about its broker.
    """

    broker_url: str
    redis_base: str
    group_url: str
    queue: str
    without: Sequence[str] = ()
    form: str = ""

    @property
    def environment(self) -> dict[str, str]:
        return {"TK_OTHERS": json.dumps(asdict(self))}

    @property
    def store_url(self) -> str:
        return patient(f"{self.redis_base}/1")

    @property
    def record_url(self) -> str:
        return f"{self.redis_base}/2"

    @staticmethod
    def read() -> Fleet:
        """The fleet of which this process is a worker."""
        return Fleet(**json.loads(os.environ["TK_OTHERS"]))

    def limiter(self) -> Limiter:
        return Limiter(self.store_url, stores={"second-store": self.group_url})

    def jobs(self) -> Iterator[tuple[str, list[Limit]]]:
        """The name and the limits of each job that these workers know."""
        for fault in FAULTS:
            for kind in KINDS:
                if (name := f"{kind}_{fault}") not in self.without:
                    yield name, limits_of(kind, fault)


def body_of(fleet: Fleet, name: str) -> Callable[[str, str], None]:
    """What the job called *name* does: record that it runs; that of kind "a" may get a 429."""
    record: Any = redis.Redis.from_url(fleet.record_url)

    def body(index: str, account: str) -> None:
        if name == "a_429" and record.exists("429"):
            record.set("refused", 1)
            raise RateLimited(retry_after=_PAUSED_S, limit="account-429")
        record.rpush(f"ran:{name}", index)

    body.__name__ = body.__qualname__ = name
    return body
