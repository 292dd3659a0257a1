"""A Celery worker with a separate queue, and an app without throttlekit by which a test uses it."""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import redis
from celery import Celery
from kombu import Exchange, Queue

from support.faults.processes import Command
from support.waiting import wait_until

__all__ = ["QUICK_RECOVERY", "WITHIN", "CelerySite", "celery_site", "conf_of", "results"]

_NAMES = itertools.count(1)
WITHIN = 120.0
"""Within this time, a task ends on a busy machine."""
QUICK_RECOVERY = {
    "broker_transport_options": {
        "visibility_timeout": 6,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
        "unacked_mutex_expire": 5,
    }
}
"""Settings with which other workers soon receive the messages of a killed worker, on Redis."""


def results(sent: Iterable[Any]) -> list[Any]:
    """Wait until the tasks *sent* have ended, and return their results."""
    return [result.get(timeout=WITHIN) for result in sent]


class CelerySite:
    """A worker with a separate queue, and a plain app that sends by name."""

    def __init__(self, kind: str, broker_url: str, redis_base: str, config: Mapping[str, Any]) -> None:
        self.kind = kind
        self.queue = f"c{os.getpid()}x{next(_NAMES)}"
        self.record: Any = redis.Redis.from_url(f"{redis_base}/14", decode_responses=True)
        self.settings = {
            "broker": broker_url,
            "backend": f"{redis_base}/15",
            "record": f"{redis_base}/14",
            "queue": self.queue,
            "store": None,
            "rate": "10/s",
            "burst": None,
            "denials": 2,
            "delay": 0.05,
            "quorum": False,
            "install": {},
            "conf": {},
            "form": "hold",
            "module": "support.celery.tasks",
            "pool": "prefork",
            **config,
        }
        self.app = Celery("tests", broker=broker_url, backend=self.settings["backend"], set_as_current=False)
        self.app.conf.update(conf_of(self.settings))
        self.app.conf.result_accept_content = ["json", "pickle"]
        self._workers: list[Command] = []
        self._names: list[str] = []

    def start(self, *options: str, name: str = "w", ready: bool = True) -> Command:
        """Start another worker. It consumes when this returns, unless *ready* is False."""
        command = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            self.settings["module"],
            "worker",
            "--concurrency",
            "2",
            "--pool",
            self.settings["pool"],
            "--hostname",
            f"{name}@{self.queue}",
            "--loglevel",
            "info",
            "--without-gossip",
            "--without-mingle",
            *options,
        ]
        session = Command(command, {"TK_CELERY": json.dumps(self.settings), "C_FORCE_ROOT": "1"})
        self._workers.append(session)
        self._names.append(name)
        if ready:
            wait_until(
                lambda: f"{name}@{self.queue} ready" in session.log() or not session.running,
                description="the worker is ready",
            )
            assert session.running, session.log()
        return session

    def send(self, task: str, *args: Any, **options: Any) -> Any:
        """Send one task by name, as a service without throttlekit would."""
        return self.app.send_task(task, args, queue=self.queue, **options)

    @property
    def queues(self) -> list[str]:
        return [queue.name for queue in self.app.conf.task_queues]

    def send_copies(self, task: str, *args: Any) -> None:
        """Send one task to the exchange, which routes a copy to each of its queues if it is a topic exchange."""
        declare = self.app.conf.task_queues
        self.app.send_task(task, args, exchange=self.queue, routing_key=self.queue, declare=declare)

    def signature(self, task: str, *args: Any, **options: Any) -> Any:
        return self.app.signature(task, args, queue=self.queue, **options)

    def ran(self, what: str) -> list[str]:
        """Return what bodies have recorded under *what*, in order."""
        return list(self.record.lrange(f"{self.queue}:{what}", 0, -1))

    def go(self) -> None:
        """Let the bodies of `free_wait` end."""
        self.record.set(f"{self.queue}:go", 1)

    def asked(self, answer: str) -> int:
        """Return how often the store has given *answer*: "granted" or "denied"."""
        return int(self.record.get(f"{self.queue}:store:{answer}") or 0)

    def held(self) -> list[dict[str, Any]]:
        """Return the messages that the workers report as held."""
        workers = zip(self._names, self._workers, strict=True)
        names = [f"{name}@{self.queue}" for name, worker in workers if worker.running]
        reported = self.inspect(*names).scheduled() or {}
        return [entry for entries in reported.values() for entry in entries]

    def inspect(self, *names: str) -> Any:
        """Return an inspection of the workers of these names, which waits until each of them has replied."""
        return self.app.control.inspect(list(names), timeout=60.0, limit=len(names))

    @contextlib.contextmanager
    def listening(self, kind: str, events: list[dict[str, Any]]) -> Iterator[None]:
        """Put Celery's events of one *kind* into *events*."""
        ready = threading.Event()
        with self.app.connection_for_read() as connection:
            handlers = {kind: events.append, "site-listens": lambda _: ready.set()}
            receiver = self.app.events.Receiver(connection, handlers=handlers)

            def capture() -> None:
                try:
                    receiver.capture(timeout=None, wakeup=False)
                except Exception:
                    if not receiver.should_stop:  # a read on Redis may exceed its time-out; the server ends it
                        raise

            thread = threading.Thread(target=capture, daemon=True)
            thread.start()
            try:
                # On Redis, it subscribes shortly after it reports that it consumes.
                with self.app.events.default_dispatcher() as dispatcher:
                    wait_until(
                        lambda: dispatcher.send("site-listens") is None and ready.wait(0.1),
                        description="the receiver listens to events",
                    )
                yield
            finally:
                receiver.should_stop = True
                thread.join(60)

    def left(self) -> int:
        """Return how many messages are still in the broker, including those that workers hold, except for RabbitMQ."""
        with self.app.connection_for_read() as connection:
            if self.kind == "redis":
                client = connection.default_channel.client
                mine = [data for data in client.hvals("unacked") if self.queue.encode() in data]
                return sum(map(client.llen, self.queues)) + len(mine)
            return int(connection.default_channel.queue_declare(self.queue, passive=True).message_count)

    def wait_until_empty(self) -> None:
        wait_until(lambda: self.left() == 0 and self.held() == [], description="no message is left")

    def assert_each_runs_once(self, sent: list[Any]) -> None:
        """Wait until the tasks `echo` in *sent*, which were sent with 0, 1, 2 and so on, have run once each."""
        expected = list(range(len(sent)))
        assert sorted(results(sent)) == expected
        self.wait_until_empty()
        assert sorted(map(int, self.ran("echo"))) == expected

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        with contextlib.suppress(Exception), self.app.connection_for_write() as connection:
            connection.default_channel.queue_delete(self.queue)
        self.app.close()
        self.record.close()
        gc.collect()  # before Celery 5.7, unused results call the server when they are deleted: it must still run


@contextlib.contextmanager
def celery_site(kind: str, broker_url: str, redis_base: str, **config: Any) -> Iterator[CelerySite]:
    """A site whose worker has not been started."""
    site = CelerySite(kind, f"{broker_url}/0" if kind == "redis" else broker_url, redis_base, config)
    try:
        yield site
    finally:
        site.close()


def conf_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return Celery's settings. With *exchange* "topic", a second queue, whose name ends in "-copy", gets a copy of each
    message.
    """
    arguments = {"x-queue-type": "quorum"} if config["quorum"] else {}
    exchange = Exchange(config["queue"], type="topic" if config["quorum"] else config.get("exchange", "direct"))
    queues = [Queue(config["queue"], exchange, routing_key=config["queue"], queue_arguments=arguments)]
    if config.get("exchange") == "topic":
        queues.append(Queue(f"{config['queue']}-copy", exchange, routing_key="#"))
    return {
        "task_queues": queues,
        "task_default_queue": config["queue"],
        "task_default_exchange": config["queue"],
        "task_default_exchange_type": exchange.type,
        "task_default_routing_key": config["queue"],
        "accept_content": ["json", "pickle"],
        "worker_hijack_root_logger": False,
        "broker_connection_retry_on_startup": True,  # Celery before 6 warns if this is not set
        **config["conf"],
    }
