"""Workers of any framework that run plain jobs with limits: their commands, and a producer without throttlekit."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Protocol

from throttlekit import Limit

__all__ = ["READY", "Plan", "Producer"]

_WORKER = "support.plain.worker"
READY = {
    "celery": "ready for action",
    "dramatiq": "ready for action",
    "huey": "commands are available",
    "rq": "*** Listening on",
    "taskiq": "Listening started.",
}
"""What each worker process prints when it is ready."""


class Producer(Protocol):
    """A producer without throttlekit, except for RQ, where a job carries its limits."""

    def send(self, job: str, limits: Sequence[Limit] = (), **arguments: Any) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Plan:
    """
    Workers on one queue.

    Attributes:
        jobs: The module that declares the jobs: see `support.plain.worker`.
        form: The kind of a broker of taskiq, or "quorum" for a quorum queue of Celery.
    """

    framework: str
    broker_url: str
    queue: str
    jobs: str
    form: str = ""

    @property
    def environment(self) -> dict[str, str]:
        return {"TK_PLAIN": json.dumps(asdict(self))}

    @staticmethod
    def read() -> Plan:
        """Return the plan of this worker process."""
        config = json.loads(os.environ["TK_PLAIN"])
        return Plan(**{each.name: config[each.name] for each in fields(Plan)})

    def commands(
        self, count: int, *, threads: int = 4, kind: str = "", quiet: bool = False
    ) -> tuple[list[list[str]], int]:
        """
        Return the commands of *count* worker processes, and how many processes each command has.

        Args:
            quiet: Whether a worker logs no job. It may then not print that it is ready.
            kind: Celery's pool, huey's type of worker, or RQ's class, with the suffix "+scheduler" for RQ's scheduler.
        """
        if self.framework == "dramatiq":
            from support.dramatiq.workers import dramatiq_command

            return [dramatiq_command(_WORKER, processes=count, threads=threads)], count
        if self.framework == "taskiq":
            from support.taskiq.site import worker_command

            options = ["--log-level", "WARNING"] if quiet else []
            return [worker_command(f"{_WORKER}:broker", *options, processes=count)], count
        if self.framework == "huey":
            from support.huey.workers import huey_consumer

            command = huey_consumer(f"{_WORKER}.app", kind=kind or "thread", workers=threads)
            return [[*command, *(["--quiet"] if quiet else [])]] * count, 1
        if self.framework == "rq":
            from support.rq.workers import rq_worker

            return [rq_worker(self.broker_url, self.queue, kind=kind, options=["-c", _WORKER])] * count, 1
        celery = [sys.executable, "-m", "celery", "-A", _WORKER, "worker", "--loglevel", "warning"]
        celery += ["-P", kind or "threads", "-c", str(threads), "--without-gossip", "--without-mingle", "--hostname"]
        return [[*celery, f"w{number}@{self.queue}"] for number in range(count)], 1

    def celery_conf(self) -> dict[str, Any]:
        from support.celery.site import conf_of

        # With pickle, Celery does not run as root.
        conf = {"accept_content": ["json"], "task_ignore_result": True}
        return conf_of({"queue": self.queue, "quorum": self.form == "quorum", "conf": conf})

    def producer(self) -> Producer:
        return _PRODUCERS[self.framework](self)


class _Dramatiq:
    def __init__(self, plan: Plan) -> None:
        from support.dramatiq.workers import make_broker

        self._queue, self._broker = plan.queue, make_broker(plan.broker_url, middleware=[])
        self._broker.declare_queue(plan.queue)

    def send(self, job: str, limits: Sequence[Limit] = (), **arguments: Any) -> None:
        import dramatiq

        self._broker.enqueue(dramatiq.Message(self._queue, job, (), arguments, {}))

    def close(self) -> None:
        self._broker.close()


class _Celery:
    def __init__(self, plan: Plan) -> None:
        from celery import Celery

        self._app = Celery("sender", broker=plan.broker_url, set_as_current=False)
        self._app.conf.update(plan.celery_conf())

    def send(self, job: str, limits: Sequence[Limit] = (), **arguments: Any) -> None:
        self._app.send_task(job, kwargs=arguments)

    def close(self) -> None:
        self._app.close()


class _Rq:
    def __init__(self, plan: Plan) -> None:
        import redis
        from rq import Queue

        from throttlekit_rq import ThrottledQueue

        self._redis: Any = redis.Redis.from_url(plan.broker_url)
        self._plain = Queue(plan.queue, connection=self._redis)
        self._queue = ThrottledQueue(plan.queue, connection=self._redis)

    def send(self, job: str, limits: Sequence[Limit] = (), **arguments: Any) -> None:
        if limits:
            self._queue.enqueue(f"{_WORKER}.{job}", kwargs=arguments, throttle=limits)
        else:
            self._plain.enqueue(f"{_WORKER}.{job}", kwargs=arguments)

    def close(self) -> None:
        self._redis.close()


class _Huey:
    def __init__(self, plan: Plan) -> None:
        from huey import RedisHuey

        self._huey: Any = RedisHuey(plan.queue, url=plan.broker_url)
        self._tasks: dict[str, Any] = {}

    def send(self, job: str, limits: Sequence[Limit] = (), **arguments: Any) -> None:
        if job not in self._tasks:
            body: Any = _named(job)
            body.__module__ = _WORKER  # messages have this name
            self._tasks[job] = self._huey.task(name=job)(body)
        self._tasks[job](**arguments)

    def close(self) -> None:
        self._huey.storage.pool.disconnect()


class _Taskiq:
    def __init__(self, plan: Plan) -> None:
        from support.taskiq.brokers import make_broker
        from support.taskiq.site import Loop

        self._loop, self._tasks = Loop(), dict[str, Any]()
        self._broker = make_broker(plan.form, plan.broker_url, None, plan.queue)  # type: ignore[arg-type]
        self._loop.run(self._broker.startup())

    def send(self, job: str, limits: Sequence[Limit] = (), **arguments: Any) -> None:
        if job not in self._tasks:
            self._tasks[job] = self._broker.task(job)(_named(job))
        self._loop.run(self._tasks[job].kiq(**arguments))

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._loop.run(self._broker.shutdown())
        self._loop.close()


def _named(name: str) -> Callable[..., None]:
    def task(**arguments: Any) -> None:
        """A placeholder that never runs in this process."""

    task.__name__ = name
    return task


_PRODUCERS: Mapping[str, type[Any]] = {
    "celery": _Celery,
    "dramatiq": _Dramatiq,
    "huey": _Huey,
    "rq": _Rq,
    "taskiq": _Taskiq,
}
