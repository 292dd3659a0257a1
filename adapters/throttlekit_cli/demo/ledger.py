"""The ledger: the workers record their runs in Redis, and the demo reads them. Each key begins with the run's name."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import redis

__all__ = ["Counts", "Ledger", "Run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a job's body. Times are the machine's, in seconds; status 0 means that the call failed."""

    job: int
    sent_at: float
    began_at: float
    status: int

    def answered(self, status: int) -> Run:
        return replace(self, status=status)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The progress of a run: bodies running now, jobs done, jobs given up."""

    running: int
    done: int
    given_up: int


class Ledger:
    """
    Safe to share between threads, and to make before a fork.

    Args:
        url: The server and database.
        run: The run's name.
    """

    def __init__(self, url: str, run: str) -> None:
        self._redis: Any = redis.Redis.from_url(url, socket_timeout=5, socket_connect_timeout=5)
        self._run = run

    # Written by the workers

    def worker_ready(self) -> None:
        self._redis.incr(self._key("ready"))

    def run_began(self) -> None:
        self._redis.incr(self._key("began"))

    def run_ended(self, run: Run) -> None:
        pipe = self._redis.pipeline()
        pipe.rpush(self._key("runs"), json.dumps(asdict(run)))
        if run.status == 200:
            pipe.sadd(self._key("done"), run.job)
        pipe.execute()

    def deferred(self, message_id: str) -> None:
        self._redis.hincrby(self._key("deferrals"), message_id, 1)

    def given_up(self) -> None:
        self._redis.incr(self._key("given-up"))

    # Read by the demo

    def ready(self) -> int:
        return int(self._redis.get(self._key("ready")) or 0)

    def counts(self) -> Counts:
        pipe = self._redis.pipeline()
        pipe.get(self._key("began"))
        pipe.llen(self._key("runs"))
        pipe.scard(self._key("done"))
        pipe.get(self._key("given-up"))
        began, ended, done, given_up = pipe.execute()
        return Counts(running=int(began or 0) - ended, done=done, given_up=int(given_up or 0))

    def runs(self) -> list[Run]:
        return [Run(**json.loads(line)) for line in self._redis.lrange(self._key("runs"), 0, -1)]

    def deferrals(self) -> list[int]:
        """For each job that was deferred, how often."""
        return [int(count) for count in self._redis.hvals(self._key("deferrals"))]

    def clear(self, urls: Iterable[str]) -> None:
        """Delete every key whose name has the run's in the databases of *urls*: also what is kept of grants."""
        for url in sorted(set(urls)):
            client: Any = redis.Redis.from_url(url, socket_timeout=5, socket_connect_timeout=5)
            for key in client.scan_iter(f"*{self._run}*", count=1000):
                client.delete(key)
            client.close()

    def _key(self, name: str) -> str:
        return f"{self._run}:ledger:{name}"
