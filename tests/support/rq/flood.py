"""Floods on RQ: `support.flood.run` with `rq worker` processes of any kind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import redis
from rq import Queue
from rq.job import Job

from support.flood.run import Flood, Flooding
from support.rq.workers import Fleet, rq_waker, rq_worker
from support.servers.flood import Servers, batches
from support.waiting import wait_until
from throttlekit_rq import ThrottledQueue
from throttlekit_rq._waker import read_announcement

__all__ = ["OURS", "OURS_SIMPLE", "STOCK", "RqFlood", "RqFlooding"]

STOCK = "rq.Worker+scheduler"
OURS = "throttlekit_rq.ThrottledWorker"
OURS_SIMPLE = "throttlekit_rq.ThrottledSimpleWorker"
_SETTINGS = "support.rq.flood_jobs"


@dataclass(frozen=True, kw_only=True)
class RqFlood(Flood):
    """
    A flood on RQ.

    Attributes:
        kinds: The class of each worker, with "+scheduler" to run RQ's scheduler too.
        wakes: Whether `throttlekit wake` runs too.
    """

    kinds: tuple[str, ...] = (OURS, OURS)
    wakes: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "processes", len(self.kinds))


class _Sender:
    """The producer, which also reads RQ's state."""

    def __init__(self, flood: RqFlood, where: Servers, queue: str) -> None:
        self._redis: Any = redis.Redis.from_url(where.broker_url)
        self._redis.flushall()
        limits = [limit.made() for limit in flood.limits]
        self._throttle = limits if flood.mode == "throttlekit" else None
        self._function = f"{_SETTINGS}.{'naive' if flood.mode == 'naive' else 'job'}"
        self._queue = ThrottledQueue(queue, connection=self._redis)
        self._commands = 0

    def send(self, actor: str, index: str, account: str = "one", *, expires: int | None = None) -> None:
        kwargs = {"index": index, "account": account}
        self._queue.enqueue(self._function, throttle=self._throttle, kwargs=kwargs, ttl=expires)
        self._commands = self._count()

    def send_many(self, jobs: Iterable[tuple[str, str]]) -> None:
        """Send a job for each index, with the id "job-" and its index, in batches."""
        for some in batches(jobs):
            prepared = [
                self._queue.prepare_data(
                    self._function,
                    kwargs={"index": index, "account": "one"},
                    throttle=self._throttle,
                    job_id=f"job-{index}",
                )
                for _, index in some
            ]
            self._queue.enqueue_many(prepared)
        self._commands = self._count()

    def purge(self) -> None:
        """Delete the jobs that are in the queue or scheduled."""
        self._queue.empty()
        waiting = self._queue.scheduled_job_registry.get_job_ids()
        for some in batches(Job.fetch_many(waiting, connection=self._redis)):
            with self._redis.pipeline() as pipeline:
                for job in filter(None, some):
                    job.delete(pipeline=pipeline)
                pipeline.execute()

    def commands(self) -> int:
        return self._count() - self._commands

    def left(self) -> int:
        queue = self._queue
        registries = queue.scheduled_job_registry, queue.started_job_registry, queue.failed_job_registry
        left = {*queue.get_job_ids(), *queue.intermediate_queue.get_job_ids()}
        # A job whose worker was killed when it began is in two of them.
        return len(left.union(*(registry.get_job_ids() for registry in registries)))

    def close(self) -> None:
        self._redis.flushall()
        self._redis.close()

    def _count(self) -> int:
        return int(self._redis.info("stats")["total_commands_processed"])


class RqFlooding(Flooding):
    """A running flood on RQ."""

    flood: RqFlood
    ready = "*** Listening on"
    counts_cpu = False

    def sender(self, where: Servers, queue: str) -> _Sender:
        self.url, self._store = where.broker_url, where.store_url
        return _Sender(self.flood, where, queue)

    def workers(self) -> Fleet:
        options = ["-c", _SETTINGS]
        fleet = Fleet(
            [rq_waker(self.url, self.queue, store=self._store)] if self.flood.wakes else [], self._environment
        )
        if self.flood.wakes:  # a job that is denied before the waker is announced waits in RQ's scheduler
            with redis.Redis.from_url(self.url) as client:
                wait_until(
                    lambda: not fleet.running or read_announcement(client, self.queue),
                    description="the waker is announced, or has failed",
                )
        for kind in self.flood.kinds:
            fleet.add(rq_worker(self.url, self.queue, kind=kind, options=options))
        return fleet

    def extra(self, kind: str) -> Fleet:
        """Start another worker, and return it when it is ready."""
        fleet = Fleet([rq_worker(self.url, self.queue, kind=kind, options=["-c", _SETTINGS])], self._environment)
        # Before it listens, a SIGTERM would leave its scheduler's lock for a minute.
        wait_until(lambda: self.ready in fleet.log(), description="another worker is ready")
        return fleet

    def expire(self) -> None:
        """Do nothing: RQ's state of dead workers does not affect a flood."""

    def unlock(self) -> None:
        """Delete the locks of ended schedulers, which otherwise expire after a minute."""
        with redis.Redis.from_url(self.url) as client:
            client.delete(f"rq:scheduler-lock:{self.queue}")

    def idle(self) -> bool:
        """Return whether no job is in the queue or scheduled."""
        with redis.Redis.from_url(self.url) as client:
            waiting = client.llen(f"rq:queue:{self.queue}"), client.zcard(f"rq:scheduled:{self.queue}")
        return not any(waiting)

    def orphans(self) -> set[str]:
        """
        Return the jobs in RQ's intermediate queue that no worker runs, and those that RQ marked as failed for that.
        """
        with redis.Redis.from_url(self.url) as client:
            queue = Queue(self.queue, connection=client)
            waiting = queue.intermediate_queue.get_job_ids()
            begun = set(queue.started_job_registry.get_job_ids())
            return {*waiting} - begun | {*queue.failed_job_registry.get_job_ids()}


RqFlood.flooding = RqFlooding
