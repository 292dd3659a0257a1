"""Helpers for tests of the RQ adapter: a Redis with a queue, workers in this process, and RQ's scheduler."""

from __future__ import annotations

import contextlib
import gc
import signal
import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from rq import SimpleWorker, SpawnWorker, Worker
from rq.job import Job, JobStatus
from rq.scheduler import RQScheduler

from support.rq import jobs
from support.servers.processes import patient
from support.waiting import wait_until
from throttlekit import Limit, Limiter
from throttlekit_rq import (
    ThrottledQueue,
    ThrottledSimpleWorker,
    ThrottledSpawnWorker,
    ThrottledWorker,
    configure,
)

__all__ = ["FORKING", "IN_PROCESS", "QUIET", "OwnSpawnWorker", "Site"]

QUIET = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # from RQ: see `Site.close`
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # the same, in the garbage collector
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]
"""The marks of modules that run RQ's workers in this process."""

IN_PROCESS: dict[str, Any] = {"simple": SimpleWorker, "throttled-simple": ThrottledSimpleWorker}
FORKING: dict[str, Any] = {
    "stock": Worker,
    "throttled": ThrottledWorker,
    "spawn": SpawnWorker,
    "throttled-spawn": ThrottledSpawnWorker,
}


class OwnSpawnWorker(SpawnWorker):
    """A user's class of workers."""


class Site:
    """
    One Redis database with a queue, a limiter that uses the same database, and workers of one kind.

    `shut` uses up a limit, and `open` resets it, so that a test can check the state of denied jobs.
    """

    def __init__(self, url: str, kind: str) -> None:
        self.url = url
        self.kind = kind
        self.ours = kind.startswith("throttled")
        self.connection = redis.Redis.from_url(url)
        self.limiter = Limiter(patient(url))
        self.queue = ThrottledQueue("work", connection=self.connection)
        self._scheduler: Any = None
        configure(self.limiter)

    def close(self) -> None:
        configure()
        self.limiter.close()
        self.connection.close()
        self.connection.connection_pool.disconnect()
        with warnings.catch_warnings():
            # RQ leaves an event loop and some sockets to the garbage collector.
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()

    def shut(self, *limits: Limit, **options: Any) -> None:
        """Use up *limits*, so that no job is admitted."""
        for limit in limits:
            assert self.limiter.acquire(limit, cost=limit.burst, **options).allowed

    def open(self, *limits: Limit, **options: Any) -> None:
        """Reset *limits*, so that jobs are admitted, and make denied jobs due at once."""
        self.limiter.reset(*limits, **options)
        self.make_due()

    def open_and_work(self, *limits: Limit) -> None:
        """Reset *limits*, and run the jobs that they have denied."""
        self.open(*limits)
        self.work()

    def enqueue_denied(self, function: Any = jobs.plain, *args: Any, **options: Any) -> Any:
        """Enqueue a job under a limit without room, and have it denied once."""
        self.shut(jobs.HOURLY)
        job = self.queue.enqueue(function, *args, throttle=[jobs.HOURLY], **options)
        self.work()
        assert self.fetch(job).get_status() == JobStatus.SCHEDULED
        assert self.queue.scheduled_job_registry.get_job_ids() == [job.id]
        return job

    def make_due(self) -> None:
        key = self.queue.scheduled_job_registry.key
        for job_id in self.connection.zrange(key, 0, -1):
            self.connection.zadd(key, {job_id: time.time() - 2}, xx=True)

    def work(self, *queues: str, worker: Any = None, **options: Any) -> Any:
        """Run a worker until no job is left. For a stock worker, RQ's scheduler runs first."""
        if not self.ours:
            self.tick(*queues)
        kinds = {**IN_PROCESS, **FORKING}
        names = list(queues) or [self.queue.name]
        worker = worker or kinds[self.kind](names, connection=self.connection)
        self.run(worker, burst=True, **options)
        return worker

    def run(self, worker: Any, *, burst: bool | None = None, **options: Any) -> None:
        """Run *worker* without a scheduler, by default until no job is left."""
        # The channel for commands: RQ often takes a second to close it.
        worker.subscribe = worker.unsubscribe = lambda: None
        with _own_signals():
            worker.work(burst=not options if burst is None else burst, logging_level="WARNING", **options)

    def tick(self, *queues: str) -> None:
        """Run RQ's scheduler once. It keeps the queues' locks."""
        if self._scheduler is None:
            self._scheduler = RQScheduler(list(queues) or [self.queue.name], connection=self.connection)
            assert self._scheduler.acquire_locks()
        self._scheduler.enqueue_scheduled_jobs()

    @property
    def noted(self) -> list[str]:
        """What jobs have recorded, in order."""
        return [entry.decode() for entry in self.connection.lrange("noted", 0, -1)]

    def fetch(self, job: Any) -> Any:
        return Job.fetch(job.id, connection=self.connection, serializer=job.serializer)

    def raw(self, job: Any) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = self.connection.hgetall(job.key)
        return found

    def wait_until_denied(self, count: int) -> None:
        registry = self.queue.scheduled_job_registry
        wait_until(lambda: registry.count == count, description=f"{count} jobs are denied")

    def disable_schedule(self) -> None:
        """Change the schedule so that no denied job is enqueued unless it is woken."""
        registry = self.queue.scheduled_job_registry
        for job_id in registry.get_job_ids():
            self.connection.zadd(registry.key, {job_id: time.time() + 3600}, xx=True)

    def wait_until_noted(self, *expected: str) -> None:
        wait_until(lambda: len(self.noted) >= len(expected), description=f"{len(expected)} jobs have run")
        assert self.noted == [*expected]

    def deferrals_left(self) -> list[str]:
        """Return the keys and fields that denials have left."""
        left = [key for key in ("rq:queue:work:intermediate", "rq:wip:work") if self.connection.exists(key)]
        for key in self.connection.scan_iter("rq:job:*"):
            fields = self.connection.hkeys(key) if self.connection.type(key) == b"hash" else []
            if b"throttlekit" in fields or b"throttlekit_expires" in fields:
                left.append(key.decode())
        return left


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Restore the signal handlers, which RQ's workers do not."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
