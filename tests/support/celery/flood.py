"""`support.flood.run` with Celery: real `celery worker` commands, on Redis or RabbitMQ."""

from __future__ import annotations

import base64
import contextlib
import copy
import itertools
import json
import signal
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

import pika
import redis
from celery import Celery
from kombu import Queue

from support.faults.processes import Fleet
from support.flood.run import Flood, Flooding, FloodRecord
from support.servers.flood import Servers, batches, publish
from support.waiting import wait_until

__all__ = ["CeleryFlood", "CeleryFlooding"]

_MODULE = "support.celery.jobs"
_FLEETS = itertools.count(1)
"""Each worker of a queue needs a different name."""


@dataclass(frozen=True, kw_only=True)
class CeleryFlood(Flood):
    """
    A flood for Celery.

    Attributes:
        processes: How many `celery worker` commands run.
        threads: The concurrency of each command.
        pool: The kind of pool of each command.
        conf: Settings of the app.
        install: Arguments of `throttlekit_celery.install`.
        queues: Accounts whose jobs have separate queues.
        kill_with: The signal that each worker's main process gets at each of the `kills`.
    """

    threads: int = 2
    pool: str = "prefork"
    conf: Mapping[str, Any] = field(default_factory=dict[str, Any])
    install: Mapping[str, Any] = field(default_factory=dict[str, Any])
    queues: tuple[str, ...] = ()
    kill_with: signal.Signals = signal.SIGKILL

    def more(self, where: Servers) -> dict[str, Any]:
        return {"results_url": f"{where.redis_base}/3", "conf": dict(self.conf), "install": dict(self.install)}


class CeleryFlooding(Flooding):
    """A running Celery flood."""

    flood: CeleryFlood

    def kill(self) -> None:
        """Stop every worker at once with the flood's signal, and kill those that still run after a minute."""
        if self._workers is not None and self.flood.kill_with != signal.SIGKILL:
            self.fleet.signal(self.flood.kill_with)
            self.fleet.ends_within(60)
        super().kill()

    def stop(self) -> FloodRecord:
        """Stop the workers cleanly, and return what happened. The counts include the states of the results."""
        result = super().stop()
        return replace(result, counts={**result.counts, **self.states()})

    def purge(self) -> None:
        """
        Revoke the jobs that were sent one by one, and wait for the workers' replies. The workers do nothing else
        meanwhile, which takes some seconds for thousands of jobs. `celery purge` does not delete jobs that workers
        hold.
        """
        sender, workers = self._sender, self.flood.processes
        answers = sender.app.control.revoke(sender.ids, reply=True, limit=workers, timeout=60)
        assert len(answers) == workers, answers

    def expire(self) -> None:
        """Do nothing: Celery has no state of dead workers."""

    def states(self) -> Counter[str]:
        """Count the states of all stored results."""
        results: Any = redis.Redis.from_url(self._environment_value("results_url"))
        keys = list(results.scan_iter("celery-task-meta-*", count=1000))
        found = Counter(json.loads(value)["status"] for value in (results.mget(keys) if keys else []) if value)
        results.close()
        return found

    def _environment_value(self, name: str) -> str:
        return str(json.loads(self._environment["TK_FLOOD"])[name])

    def sender(self, where: Servers, queue: str) -> Any:
        return _Sender(where, queue, self.flood.queues)

    def workers(self) -> Fleet:
        command = [sys.executable, "-m", "celery", "-A", _MODULE, "worker", "--loglevel", "warning"]
        command += ["--pool", self.flood.pool, "--concurrency", str(self.flood.threads)]
        if self.flood.queues:
            command += ["-Q", ",".join(f"{self._sender.queue}-{account}" for account in self.flood.queues)]
        self._sender.begin()
        node = f"{self.queue}.{next(_FLEETS)}"
        names = [f"w{n}@{node}" for n in range(self.flood.processes)]
        options = ["--without-gossip", "--without-mingle", "--hostname"]
        return Fleet([[*command, *options, name] for name in names], self._environment)


CeleryFlood.flooding = CeleryFlooding


class _Sender:
    """The producer, which has no throttlekit and sends by name."""

    def __init__(self, where: Servers, queue: str, queues: tuple[str, ...]) -> None:
        self.app = Celery("sender", broker=where.broker_url, set_as_current=False)
        self.app.conf.task_queues = [Queue(queue), *(Queue(f"{queue}-{account}") for account in queues)]
        self.queue, self._queues, self._url = queue, queues, where.broker_url
        self._pattern: dict[str, Any] | None = None
        self._redis: Any = None
        if where.kind == "redis":
            self._redis = redis.Redis.from_url(where.broker_url)
            self._redis.flushall()
        self._before: int | None = None
        self.ids: list[str] = []

    def send(self, actor: str, index: str, account: str = "one", *, expires: int | None = None) -> None:
        """Send one job to *actor*, which expires after *expires* seconds."""
        queue = f"{self.queue}-{account}" if account in self._queues else self.queue
        self.ids.append(self.app.send_task(actor, (index, account), queue=queue, expires=expires).id)
        self._before = None

    def send_many(self, jobs: Iterable[tuple[str, str]]) -> None:
        """Send a task for each actor and index: a copy of a message of Celery with another name, id and index."""
        if self._pattern is None:
            self._pattern = self._take_pattern()
        copies = (self._made(copy.deepcopy(self._pattern), *job) for job in jobs)
        if self._redis is None:
            messages = ((each.pop("body"), pika.BasicProperties(**each)) for each in copies)
            publish(self._url, self.queue, messages)
        else:
            for some in batches(copies):
                self._redis.lpush(self.queue, *map(json.dumps, some))
        self._before = None

    def _take_pattern(self) -> dict[str, Any]:
        """Return one message as Celery sends it, and remove it from the queue."""
        self.send("job", "0")
        if self._redis is not None:
            return dict(json.loads(self._redis.lpop(self.queue)))
        with contextlib.closing(pika.BlockingConnection(pika.URLParameters(self._url))) as connection:
            channel = connection.channel()
            _, properties, body = wait_until(
                lambda: (found := channel.basic_get(self.queue, auto_ack=True))[0] and found,
                description="the message is in its queue",
            )
        return {**vars(properties), "body": body}

    def _made(self, pattern: dict[str, Any], actor: str, index: str) -> dict[str, Any]:
        id, args = str(uuid4()), (index, "one")
        pattern["headers"].update(task=actor, id=id, root_id=id, argsrepr=repr(args))
        if self._redis is None:
            pattern["correlation_id"] = id
            pattern["body"] = json.dumps([args, *json.loads(pattern["body"])[1:]]).encode()
        else:
            pattern["properties"].update(correlation_id=id, delivery_tag=str(uuid4()))
            body = json.dumps([args, *json.loads(base64.b64decode(pattern["body"]))[1:]])
            pattern["body"] = base64.b64encode(body.encode()).decode()
        return pattern

    def commands(self) -> int | None:
        """Return how many commands the broker's Redis has run since the last message was sent. None for RabbitMQ."""
        if self._redis is None:
            return None
        calls = sum(entry["calls"] for entry in self._redis.info("commandstats").values())
        return int(calls - (self._before or 0))

    def begin(self) -> None:
        """Note the count of commands before the workers start."""
        if self._redis is not None and self._before is None:
            self._before = sum(entry["calls"] for entry in self._redis.info("commandstats").values())

    def left(self) -> int:
        if self._redis is not None:
            return int(self._redis.llen(self.queue) + self._redis.hlen("unacked"))
        with self.app.connection_for_read() as connection:
            return int(connection.default_channel.queue_declare(self.queue, passive=True).message_count)

    def close(self) -> None:
        if self._redis is not None:
            self._redis.flushall(asynchronous=True)
            self._redis.close()
        else:
            with contextlib.suppress(Exception), self.app.connection_for_write() as connection:
                connection.default_channel.queue_delete(self.queue)
        self.app.close()
