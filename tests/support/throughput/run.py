"""
Real workers of each framework, with jobs that do nothing, with and without throttlekit: how long do so many take?

    with Bench() as bench:
        timing = bench.run(SETUPS["Dramatiq, Redis"], "limit", jobs=3000)   # a job, once the first tenth is done

What a worker does is told by $TK_THROUGHPUT, and declared by `support.plain.worker`.
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
        kinds: Of the worker, as `support.plain.plan.Plan.commands` knows them: without throttlekit, and with it.
        most_us: That time, in µs. Huey's jobs are kept in Redis until they are granted: one more question, and a script
            in place of a pop.
            taskiq's worker is one thread, which shares the interpreter with the one that asks. Celery's main process
            asks for one task after the other.
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
    What a job took, in µs.

    Attributes:
        cpu_us: Of the process that ran all of them, with all its threads; None: there were several.
    """

    us: float
    cpu_us: float | None = None


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


def _mark_alone(index: int) -> None:
    mark(index, asks=False)


async def _mark_in_loop(index: int) -> None:
    mark(index)


def worker_jobs() -> tuple[Limiter | None, list[tuple[str, Any, list[TokenBucket]]]]:
    """The limiter of this worker, if it has one, and its job."""
    told, body = _told(), mark
    if told["framework"] == "taskiq":
        body = _mark_in_loop  # type: ignore[assignment]
    elif told["framework"] == "celery":
        body = _mark_alone  # type: ignore[assignment]
        if told["variant"] == AN_INCR:
            from celery import signals

            signals.task_received.connect(lambda **_: ask(), weak=False)  # in the main process, where the gate asks
    limiter = None if told["variant"] in WITHOUT_THROTTLEKIT else Limiter(told["store"])
    return limiter, [("job", body, [LIMIT] if told["variant"] == "limit" else [])]


@cache
def _told() -> dict[str, Any]:
    """What this worker is to do."""
    return dict(json.loads(os.environ["TK_THROUGHPUT"]))


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
        form = "" if setup.framework != "taskiq" else "rabbitmq" if setup.broker == "rabbitmq" else "stream"
        plan = Plan(framework=setup.framework, broker_url=url, queue=queue, jobs=__name__, form=form)
        told = {
            "framework": setup.framework, "store": f"{self._store}/1", "record": f"{self._store}/2",
            "variant": variant, "first": first, "last": jobs - _LAST,
        }  # fmt: skip
        with contextlib.closing(plan.producer()) as producer:
            for index in range(jobs):
                producer.send("job", [LIMIT] if variant == "limit" else (), index=index)
        kind = setup.kinds[variant not in WITHOUT_THROTTLEKIT]
        (command,), _ = plan.commands(1, threads=setup.threads, kind=kind, quiet=True)
        worker = Command(command, {**plan.environment, "TK_THROUGHPUT": json.dumps(told)})
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
