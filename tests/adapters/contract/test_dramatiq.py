"""Dramatiq's adapter keeps the promises of every adapter, on each of its brokers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import dramatiq
import pytest
from dramatiq.results.errors import ResultFailure, ResultMissing

from support.dramatiq.contract import declare_all
from support.dramatiq.helpers import Site, left_over
from support.dramatiq.workers import dramatiq_command
from support.faults.processes import Command
from support.servers.processes import patient
from support.waiting import wait_until
from throttlekit.testing import AdapterConformance
from throttlekit.testing.adapter_site import AdapterSite, End, Settings

pytestmark = pytest.mark.workers


class DramatiqSite(AdapterSite):
    slots = 3

    def __init__(self, site: Site, broker_url: str, store: str, settings: Settings) -> None:
        self.broker: Any = site.broker
        self.queue, self.kind = site.queue, site.kind
        self.limiter = settings.limiter(store)
        self._settings = settings
        self._settings_of_workers = {"broker": broker_url, "queue": self.queue, "store": store}
        self._worker: Any = None
        self._processes: Command | None = None
        declare_all(self.broker, self.queue, self.limiter, settings)

    def start(self) -> None:
        if self._settings.killed:
            command = dramatiq_command("support.dramatiq.contract", processes=1, threads=self.slots)
            self._processes = Command(command, {"TK_CONTRACT": json.dumps(self._settings_of_workers)})
            log = self._processes.log
            wait_until(lambda: "ready for action" in log(), description="the workers are ready")
        elif self._worker is None:
            self._worker = dramatiq.Worker(self.broker, worker_timeout=100, worker_threads=self.slots)
            self._worker.start()

    def kill(self) -> None:
        assert self._processes is not None
        self._processes.close()
        if self.kind == "redis":  # as if a minute had passed, after which Dramatiq considers a worker dead
            heartbeats = "dramatiq:__heartbeats__"
            self.broker.client.zadd(heartbeats, dict.fromkeys(self.broker.client.zrange(heartbeats, 0, -1), 0), xx=True)

    def close(self) -> None:
        if self._worker is not None:
            self._worker.stop(timeout=15_000)
        if self._processes is not None:
            self._processes.close()
        self.limiter.close()

    def enqueue(self, kind: str, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        all_options = {"tenant": "one", **options}
        next_arguments = all_options.pop("then", None)
        if "expires" in all_options:
            all_options["max_age"] = all_options.pop("expires") * 1000
        actor = self.broker.get_actor(kind)
        if next_arguments is None:
            return actor.send_with_options(args=arguments, **all_options)
        message = actor.message_with_options(args=arguments, **all_options)
        other = self.broker.get_actor("free").message_with_options(args=next_arguments, pipe_ignore=True)
        dramatiq.pipeline([message, other], broker=self.broker).run()
        return message

    def id_of(self, job: Any) -> Any:
        return job.message_id

    def end(self, job: Any) -> End | None:
        try:
            value = job.get_result(backend=self.broker.get_results_backend())
        except ResultMissing:
            return None
        except ResultFailure as failure:
            return End("failed", error=failure.orig_exc_type)
        return End("dropped") if value is None else End("succeeded", value)

    def left(self) -> int:
        held = 0
        if self._worker is not None:
            consumers = self._worker.consumers.values()
            held = self._worker.work_queue.unfinished_tasks + sum(
                each.delay_queue.unfinished_tasks for each in consumers
            )
        return held + left_over(self.broker, self.queue)

    def declare(self, **options: Any) -> None:
        dramatiq.actor(lambda key: None, actor_name="declared", queue_name=self.queue, broker=self.broker, **options)


_NO_CANCEL = {"a_cancelled_job_is_never_charged": "Dramatiq cancels no message; max_age expires it"}
_IN_MEMORY = "the broker is in the memory of its workers, and ends with them"


class _Dramatiq(AdapterConformance):
    _where: Site
    _urls: tuple[str, str] = ("", "memory://")

    @contextmanager
    def make_site(self, settings: Settings) -> Iterator[DramatiqSite]:
        site = DramatiqSite(self._where, *self._urls, settings)
        try:
            yield site
        finally:
            site.close()


class TestStubBroker(_Dramatiq):
    unsupported: ClassVar[Mapping[str, str]] = {
        **_NO_CANCEL,
        "a_denial_loses_nothing": _IN_MEMORY,
        "a_killed_worker_frees_its_lease": _IN_MEMORY,
    }

    @pytest.fixture(autouse=True)
    def _servers(self, stub: Site) -> None:
        self._where = stub


class TestRedis(_Dramatiq):
    unsupported: ClassVar[Mapping[str, str]] = _NO_CANCEL

    @pytest.fixture(autouse=True)
    def _servers(self, redis_site: Site, redis_url: str) -> None:
        self._where, self._urls = redis_site, (redis_url, patient(redis_url))


class TestRabbitMQ(_Dramatiq):
    unsupported: ClassVar[Mapping[str, str]] = _NO_CANCEL

    @pytest.fixture(autouse=True)
    def _servers(self, rabbit: Site, rabbitmq_url: str, redis_url: str) -> None:
        self._where, self._urls = rabbit, (rabbitmq_url, patient(redis_url))
