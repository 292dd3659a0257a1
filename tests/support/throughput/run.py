"""
Real workers of each framework, with jobs that do nothing, with and without throttlekit: how long do so many take?

    with Bench() as bench:
        timing = bench.run(SETUPS["Dramatiq, Redis"], "limit", jobs=3000)   # a job, once the first tenth is done

What a worker does is told by $TK_THROUGHPUT; the other modules of `support.throughput` are the workers' modules.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

import redis

from support.faults.processes import Command
from support.huey.workers import huey_consumer
from support.rq.workers import rq_worker
from support.servers.processes import rabbitmq_server, redis_server
from support.taskiq.site import worker_command
from support.waiting import wait_until
from throttlekit import TokenBucket

__all__ = [
    "AN_INCR", "LIMIT", "SETUPS", "VARIANTS", "WITHOUT_THROTTLEKIT", "Bench", "Setup", "Timing", "ask", "mark",
    "settings",
]  # fmt: skip

AN_INCR = "an INCR"
VARIANTS = ("without", "limit", "no limit", AN_INCR)
"""
Without throttlekit; with it and a limit that never binds; with it and jobs that name no limit; without it, and each job
begins with an INCR of redis-py, where throttlekit would ask: the least that any question to a server can cost there.
"""
WITHOUT_THROTTLEKIT = ("without", AN_INCR)
LIMIT = TokenBucket("ample", "1000000/s", burst=1_000_000)
_LAST = 8
_RUNS = itertools.count(1)


@dataclass(frozen=True)
class Setup:
    """
    One framework as people run it.

    Attributes:
        jobs: So many take a second or two.
        judged_by: What its promise is: a share of its speed ("share"); what an INCR would cost there ("INCR"); else a
            time for each job.
        worker: The command, by broker URL, queue and variant.
        most_us: That time, in µs. Huey's jobs are kept in Redis until they are granted: one more question, and a script
            in place of a pop.
            taskiq's worker is one thread, which shares the interpreter with the one that asks. Celery's main process
            asks for one task after the other.
    """

    framework: str
    broker: str
    jobs: int
    judged_by: Literal["share", "INCR", "time"]
    worker: Callable[[str, str, str], list[str]]
    most_us: float = 100.0


class Timing(NamedTuple):
    """
    What a job took, in µs.

    Attributes:
        cpu_us: Of the process that ran all of them, with all its threads; None: there were several.
    """

    us: float
    cpu_us: float | None = None


def settings() -> dict[str, Any]:
    """What this worker is to do."""
    return dict(json.loads(os.environ["TK_THROUGHPUT"]))


def ask() -> None:
    """The least question."""
    _client().incr("counter")


def mark(index: int, *, asks: bool = True) -> None:
    """
    The body of a job: nothing, but at the marks, where it writes down the time by Redis, and its process's CPU.

    Args:
        asks: Whether it is also the place to `ask`.
    """
    told = _told()
    if asks and told["variant"] == AN_INCR:
        ask()
    if index == told["first"] or index >= told["last"]:
        with redis.Redis.from_url(told["record"]) as client:
            seconds, micros = client.time()
            mine = seconds * 1_000_000 + micros, round(1e6 * time.process_time()), os.getpid()
            client.hset("marks", str(index), json.dumps(mine))


_kept: dict[str, Any] = {}


def _told() -> dict[str, Any]:
    if not _kept:
        _kept.update(settings())
    return _kept


@cache
def _client() -> Any:
    """Of this process: a work-horse that RQ forks begins with none, and asks once."""
    return redis.Redis.from_url(_told()["store"])


class Bench:
    """The servers, kept for all runs: one Redis for brokers, one for limits, and RabbitMQ once it is asked for."""

    def __enter__(self) -> Bench:
        self._stack = contextlib.ExitStack()
        self._redis = self._stack.enter_context(redis_server())
        self._store = self._stack.enter_context(redis_server())
        self._rabbitmq: str | None = None
        self._record: Any = self._stack.enter_context(contextlib.closing(redis.Redis.from_url(f"{self._store}/2")))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _broker(self, setup: Setup) -> str:
        if setup.broker == "redis":
            return self._redis
        if self._rabbitmq is None:
            self._rabbitmq = self._stack.enter_context(rabbitmq_server())
        return self._rabbitmq

    def run(self, setup: Setup, variant: str, jobs: int) -> Timing:
        """Send *jobs*, start the workers, and return what a job took between the first tenth and the last."""
        url, queue, first = self._broker(setup), f"throughput-{next(_RUNS)}", jobs // 10
        for base in (self._redis, self._store):
            with redis.Redis.from_url(base) as client:
                client.flushall()
        told = {
            "broker": url, "store": f"{self._store}/1", "record": f"{self._store}/2", "queue": queue,
            "variant": variant, "first": first, "last": jobs - _LAST,
        }  # fmt: skip
        _SENDERS[setup.framework](url, queue, variant, jobs)
        worker = Command(setup.worker(url, queue, variant), {"TK_THROUGHPUT": json.dumps(told)})
        try:
            wait_until(lambda: self._done(worker), description=f"{setup.framework}: {jobs} jobs are done", timeout=180)
        finally:
            worker.close()  # there is nothing left that a peaceful end would save
        marks = {int(index): json.loads(told) for index, told in self._record.hgetall("marks").items()}
        began, ended, processes = marks[first], max(marks.values()), {pid for _, _, pid in marks.values()}
        us, cpu_us = ((ended[which] - began[which]) / (jobs - first) for which in (0, 1))
        return Timing(us, cpu_us if len(processes) == 1 else None)

    def _done(self, worker: Command) -> bool:
        if not worker.running:
            raise AssertionError(f"the worker has ended:\n{worker.log()}")
        return bool(self._record.hlen("marks") == _LAST + 1)


# Producers: they know nothing of throttlekit, but for RQ, where a job brings its limits with it.


def _send_dramatiq(url: str, queue: str, variant: str, jobs: int) -> None:
    import dramatiq

    from support.dramatiq.workers import make_broker

    broker = make_broker(url, middleware=[])
    broker.declare_queue(queue)
    for index in range(jobs):
        broker.enqueue(dramatiq.Message(queue, "job", (index,), {}, {}))
    broker.close()


def _send_celery(url: str, queue: str, variant: str, jobs: int) -> None:
    from celery import Celery
    from kombu import Queue

    app = Celery("sender", broker=url, set_as_current=False)
    app.conf.task_queues = [Queue(queue)]
    for index in range(jobs):
        app.send_task("job", (index,), queue=queue)
    app.close()


def _send_rq(url: str, queue: str, variant: str, jobs: int) -> None:
    from rq import Queue

    from throttlekit_rq import ThrottledQueue

    job = "support.throughput.run.mark"
    with contextlib.closing(redis.Redis.from_url(url)) as client:
        if variant == "limit":
            ours = ThrottledQueue(queue, connection=client)
            ours.enqueue_many([ours.prepare_data(job, args=(index,), throttle=[LIMIT]) for index in range(jobs)])
        else:
            plain = Queue(queue, connection=client)
            plain.enqueue_many([plain.prepare_data(job, args=(index,)) for index in range(jobs)])


def _send_taskiq(url: str, queue: str, variant: str, jobs: int) -> None:
    import asyncio

    from support.taskiq.brokers import make_broker

    broker = make_broker("rabbitmq" if url.startswith("amqp") else "stream", url, None, queue)
    task = broker.task("job")(_nothing)

    async def send() -> None:
        await broker.startup()
        for index in range(jobs):
            await task.kiq(index)
        await broker.shutdown()

    asyncio.run(send())


def _send_huey(url: str, queue: str, variant: str, jobs: int) -> None:
    from huey import RedisHuey

    sender: Any = RedisHuey(queue, url=url)
    job = sender.task(name="job")(_nothing)
    job.task_class.__module__ = "support.throughput.huey"
    sender._registry._registry["support.throughput.huey.job"] = job.task_class
    for index in range(jobs):
        job(index)
    sender.storage.pool.disconnect()


def _nothing(index: int) -> None:
    """Is run elsewhere."""


_SENDERS = {
    "dramatiq": _send_dramatiq, "celery": _send_celery, "rq": _send_rq, "taskiq": _send_taskiq, "huey": _send_huey,
}  # fmt: skip


def _dramatiq(url: str, queue: str, variant: str) -> list[str]:
    return [sys.executable, "-m", "dramatiq", "support.throughput.dramatiq", "-p", "1", "-t", "4"]


def _celery(pool: str) -> Callable[[str, str, str], list[str]]:
    options = ["--loglevel", "warning", "--pool", pool, "--concurrency", "2", "--without-gossip", "--without-mingle"]
    command = [sys.executable, "-m", "celery", "-A", "support.throughput.celery", "worker", *options]
    return lambda url, queue, variant: [*command, "--queues", queue]


def _rq(stock: str, ours: str) -> Callable[[str, str, str], list[str]]:
    def command(url: str, queue: str, variant: str) -> list[str]:
        if variant in WITHOUT_THROTTLEKIT:
            return rq_worker(url, queue, kind=stock, options=["-c", "support.throughput.run"])
        return rq_worker(url, queue, kind=ours, options=["-c", "support.throughput.rq"])

    return command


def _taskiq(url: str, queue: str, variant: str) -> list[str]:
    return worker_command("support.throughput.taskiq:broker", "--log-level", "WARNING")


def _huey(kind: str, workers: int) -> Callable[[str, str, str], list[str]]:
    command = huey_consumer("support.throughput.huey.queue", kind=kind, workers=workers)
    return lambda url, queue, variant: [*command, "--quiet"]


SETUPS: Mapping[str, Setup] = {
    "Dramatiq, Redis": Setup("dramatiq", "redis", 3000, "time", _dramatiq),
    "Dramatiq, RabbitMQ": Setup("dramatiq", "rabbitmq", 3000, "INCR", _dramatiq),
    "RQ, stock worker": Setup("rq", "redis", 80, "share", _rq("rq.Worker", "rq.Worker")),
    "RQ, ThrottledWorker": Setup("rq", "redis", 80, "share", _rq("rq.Worker", "throttlekit_rq.ThrottledWorker")),
    "RQ, ThrottledSimpleWorker": Setup(
        "rq", "redis", 600, "INCR", _rq("rq.worker.SimpleWorker", "throttlekit_rq.ThrottledSimpleWorker")
    ),
    "Celery, prefork, Redis": Setup("celery", "redis", 2000, "time", _celery("prefork"), 150.0),
    "Celery, threads, Redis": Setup("celery", "redis", 2000, "time", _celery("threads"), 150.0),
    "taskiq, Redis stream": Setup("taskiq", "redis", 2000, "time", _taskiq, 600.0),
    "taskiq, RabbitMQ": Setup("taskiq", "rabbitmq", 2000, "time", _taskiq, 600.0),
    "huey, threads": Setup("huey", "redis", 3000, "time", _huey("thread", 4), 300.0),
    "huey, process": Setup("huey", "redis", 3000, "time", _huey("process", 1), 300.0),
}
