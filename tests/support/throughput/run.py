"""
Real workers of each framework, with and without throttlekit: the time that a number of empty jobs takes.

    with Bench() as bench:
        timing = bench.run(SETUPS["Dramatiq, Redis"], "limit", jobs=3000)   # per job, after the first tenth

The jobs of a worker are configured by $TK_THROUGHPUT, and declared by `support.plain.worker`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

import redis

from support.faults.processes import Command
from support.plain.plan import Plan
from support.servers.processes import rabbitmq_server, redis_server
from support.waiting import wait_until
from throttlekit import Limiter, TokenBucket

__all__ = [
    "AN_INCR",
    "LIMIT",
    "SETUPS",
    "VARIANTS",
    "WITHOUT_THROTTLEKIT",
    "Bench",
    "Setup",
    "Timing",
    "ask",
    "mark",
    "worker_jobs",
]

AN_INCR = "an INCR"
VARIANTS = ("without", "limit", "no limit", AN_INCR)
"""
Without throttlekit; with it and a limit that never denies; with it and jobs without a limit; and without it, with an
INCR of redis-py at the place where throttlekit would make its request, which is the least cost of any call to a server.
"""
WITHOUT_THROTTLEKIT = ("without", AN_INCR)
LIMIT = TokenBucket("ample", "1000000/s", burst=1_000_000)
_LAST = 8
_RUNS = itertools.count(1)


@dataclass(frozen=True)
class Setup:
    """
    One framework as users run it.

    Attributes:
        jobs: How many jobs take one or two seconds.
        judged_by: The kind of its promise: a share of its speed ("share"), the cost of an INCR ("INCR"), or a time for
        each
            job.
        kinds: The kinds of the worker without throttlekit and with it: see `support.plain.plan.Plan.commands`.
        most_us: The promised time in µs. Huey's jobs are kept in Redis until they are granted, which takes another
            request, and a script instead of a pop. taskiq's worker is one thread, which shares the interpreter with the
            thread that makes the requests. Celery's main process makes its requests one after the other.
    """

    framework: str
    broker: str
    jobs: int
    judged_by: Literal["share", "INCR", "time"]
    kinds: tuple[str, str] = ("", "")
    threads: int = 4
    most_us: float = 100.0


class Timing(NamedTuple):
    """
    The time per job, in µs.

    Attributes:
        cpu_us: The CPU time of the process that ran all jobs, with all its threads. None: there were several processes.
    """

    us: float
    cpu_us: float | None = None


def ask() -> None:
    """Make the cheapest possible call to the server."""
    _client().incr("counter")


def mark(index: int, *, asks: bool = True) -> None:
    """
    Run the body of a job, which does nothing, except that some jobs record Redis's time and the CPU of their process.

    Args:
        asks: Whether `ask` is called here.
    """
    config = _config()
    if asks and config["variant"] == AN_INCR:
        ask()
    if index == config["first"] or index >= config["last"]:
        with redis.Redis.from_url(config["record"]) as client:
            seconds, micros = client.time()
            mine = seconds * 1_000_000 + micros, round(1e6 * time.process_time()), os.getpid()
            client.hset("marks", str(index), json.dumps(mine))


def _mark_alone(index: int) -> None:
    mark(index, asks=False)


async def _mark_in_loop(index: int) -> None:
    mark(index)


def worker_jobs() -> tuple[Limiter | None, list[tuple[str, Any, list[TokenBucket]]]]:
    """Return the limiter of this worker, if it has one, and its job."""
    config, body = _config(), mark
    if config["framework"] == "taskiq":
        body = _mark_in_loop  # type: ignore[assignment]
    elif config["framework"] == "celery":
        body = _mark_alone  # type: ignore[assignment]
        if config["variant"] == AN_INCR:
            from celery import signals

            signals.task_received.connect(lambda **_: ask(), weak=False)  # in the main process, as the adapter does
    limiter = None if config["variant"] in WITHOUT_THROTTLEKIT else Limiter(config["store"])
    return limiter, [("job", body, [LIMIT] if config["variant"] == "limit" else [])]


@cache
def _config() -> dict[str, Any]:
    """Return the configuration of this worker."""
    return dict(json.loads(os.environ["TK_THROUGHPUT"]))


@cache
def _client() -> Any:
    """Return the client of this process. A work-horse that RQ forks creates one, and makes one call."""
    return redis.Redis.from_url(_config()["store"])


class Bench:
    """The servers of all runs: one Redis for brokers, one for limits, and RabbitMQ when it is needed."""

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
        """Send *jobs*, start the workers, and return the time per job after the first tenth."""
        url, queue, first = self._broker(setup), f"throughput-{next(_RUNS)}", jobs // 10
        for base in (self._redis, self._store):
            with redis.Redis.from_url(base) as client:
                client.flushall()
        form = "" if setup.framework != "taskiq" else "rabbitmq" if setup.broker == "rabbitmq" else "stream"
        plan = Plan(framework=setup.framework, broker_url=url, queue=queue, jobs=__name__, form=form)
        config = {
            "framework": setup.framework,
            "store": f"{self._store}/1",
            "record": f"{self._store}/2",
            "variant": variant,
            "first": first,
            "last": jobs - _LAST,
        }
        with contextlib.closing(plan.producer()) as producer:
            for index in range(jobs):
                producer.send("job", [LIMIT] if variant == "limit" else (), index=index)
        kind = setup.kinds[variant not in WITHOUT_THROTTLEKIT]
        (command,), _ = plan.commands(1, threads=setup.threads, kind=kind, quiet=True)
        worker = Command(command, {**plan.environment, "TK_THROUGHPUT": json.dumps(config)})
        try:
            wait_until(lambda: self._done(worker), description=f"{setup.framework}: {jobs} jobs are done", timeout=180)
        finally:
            worker.close()  # a clean end would save nothing
        marks = {int(index): json.loads(config) for index, config in self._record.hgetall("marks").items()}
        began, ended, processes = marks[first], max(marks.values()), {pid for _, _, pid in marks.values()}
        us, cpu_us = ((ended[which] - began[which]) / (jobs - first) for which in (0, 1))
        return Timing(us, cpu_us if len(processes) == 1 else None)

    def _done(self, worker: Command) -> bool:
        if not worker.running:
            raise AssertionError(f"the worker has ended:\n{worker.log()}")
        return bool(self._record.hlen("marks") == _LAST + 1)


_SIMPLE = "rq.worker.SimpleWorker", "throttlekit_rq.ThrottledSimpleWorker"
SETUPS: Mapping[str, Setup] = {
    "Dramatiq, Redis": Setup("dramatiq", "redis", 3000, "time"),
    "Dramatiq, RabbitMQ": Setup("dramatiq", "rabbitmq", 3000, "INCR"),
    "RQ, stock worker": Setup("rq", "redis", 80, "share", ("rq.Worker", "rq.Worker")),
    "RQ, ThrottledWorker": Setup("rq", "redis", 80, "share", ("rq.Worker", "throttlekit_rq.ThrottledWorker")),
    "RQ, ThrottledSimpleWorker": Setup("rq", "redis", 600, "INCR", _SIMPLE),
    "Celery, prefork, Redis": Setup("celery", "redis", 2000, "time", ("prefork",) * 2, 2, 150.0),
    "Celery, threads, Redis": Setup("celery", "redis", 2000, "time", ("threads",) * 2, 2, 150.0),
    "taskiq, Redis stream": Setup("taskiq", "redis", 2000, "time", most_us=600.0),
    "taskiq, RabbitMQ": Setup("taskiq", "rabbitmq", 2000, "time", most_us=600.0),
    "huey, threads": Setup("huey", "redis", 3000, "time", ("thread",) * 2, 4, 300.0),
    "huey, process": Setup("huey", "redis", 3000, "time", ("process",) * 2, 1, 300.0),
}
