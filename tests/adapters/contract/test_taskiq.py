"""taskiq's adapter keeps the promises of every adapter: on lists and streams of Redis, and on RabbitMQ."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar

import pytest

from support.contract_sites import settings_to
from support.contract_suite import ConformanceOnSharedSites, ProcessSite
from support.faults.processes import Command
from support.servers.processes import patient
from support.taskiq.brokers import Kind, make_broker
from support.taskiq.contract import declare_all
from support.taskiq.site import Loop, taskiq_worker
from throttlekit.testing.adapter_site import End, Settings

pytestmark = [pytest.mark.workers]

_NUMBERS = itertools.count(1)
_IDLE_MS = 6_000  # after this time, a stream gives a message of a dead worker to another


class TaskiqSite(ProcessSite):
    slots = 2

    def __init__(self, kind: Kind, form: str, broker_url: str, redis_base: str, settings: Settings) -> None:
        self.limiter = settings.limiter(patient(f"{redis_base}/1"))
        self._settings, self._loop = settings, Loop()
        options = {"idle_timeout": _IDLE_MS, "xread_block": 500} if kind == "stream" else {}
        self._settings_of_workers = {
            "kind": kind,
            "form": form,
            "broker": broker_url,
            "results": f"{redis_base}/2",
            "options": options,
            "queue": f"contract{os.getpid()}x{next(_NUMBERS)}",
            "store": patient(f"{redis_base}/1"),
        }
        self.broker = make_broker(
            kind, broker_url, self._settings_of_workers["results"], self._settings_of_workers["queue"], **options
        )
        declare_all(self.broker, self.limiter, settings, form)
        self._loop.run(self.broker.startup())
        self._nudging: Any = None
        self._sent: list[str] = []

    def start_workers(self) -> Command:
        environment = {"TK_CONTRACT": json.dumps({**settings_to(self._settings), **self._settings_of_workers})}
        options = ["--max-async-tasks", str(self.slots)]
        return taskiq_worker("support.taskiq.contract:broker", *options, environment=environment)

    def kill(self) -> None:
        super().kill()
        if self._settings_of_workers["kind"] == "stream":
            self._nudging = asyncio.run_coroutine_threadsafe(self._nudge(), self._loop.loop)

    async def _nudge(self) -> None:
        while True:
            task = self.broker.find_task("nudge")
            assert task is not None
            await task.kiq()
            await asyncio.sleep(0.5)

    def close(self) -> None:
        if self._nudging is not None:
            self._nudging.cancel()
        with suppress(Exception):
            self._loop.run(self.broker.shutdown())
        self._loop.close()
        super().close()

    def enqueue(self, kind: str, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> str:
        task = self.broker.find_task(kind)
        assert task is not None
        labels: Any = {"tenant": "one", "number": 7, "ratio": 0.5, "yes": True, **options}
        sent = self._loop.run(task.kicker().with_labels(**labels).kiq(*arguments))
        self._sent.append(sent.task_id)
        return sent.task_id

    def end(self, job: str) -> End | None:
        backend = self.broker.result_backend
        if not self._loop.run(backend.is_result_ready(job)):
            return None
        result = self._loop.run(backend.get_result(job))
        if result.is_err:
            return End("failed", error=type(result.error).__name__)
        return End("dropped") if result.return_value is None else End("succeeded", result.return_value)

    def left(self) -> int:
        self._sent = [job for job in self._sent if self.end(job) is None]
        return len(self._sent)

    def declare(self, **options: Any) -> None:
        def declared(key: str) -> None: ...

        self.broker.task("declared", **options)(declared)


_OUTSIDE = {
    "a_cancelled_job_is_never_charged": "taskiq cancels no task",
    "an_expired_job_is_never_charged": "taskiq expires no task; `throttle_max_wait` ends one that waits for too long",
    "a_denial_keeps_dependents": "no task of taskiq follows another",
}
_NO_ACK = "a list has no acknowledgements: what a killed worker has taken is lost, whether it waits or runs"


class _Taskiq(ConformanceOnSharedSites):
    unsupported: ClassVar[Mapping[str, str]] = _OUTSIDE
    kind: ClassVar[Kind]
    form: ClassVar[str] = "loop"

    @classmethod
    def open_site(cls, base: str, rabbitmq_url: str, settings: Settings) -> TaskiqSite:
        return TaskiqSite(cls.kind, cls.form, rabbitmq_url or f"{base}/0", base, settings)


class TestRedisList(_Taskiq):
    unsupported: ClassVar[Mapping[str, str]] = {
        **_OUTSIDE,
        "a_denial_loses_nothing": _NO_ACK,
        "a_killed_worker_frees_its_lease": _NO_ACK,
    }
    kind = "list"


class TestRedisStream(_Taskiq):
    kind = "stream"


class TestRabbitMQ(_Taskiq):
    kind = "rabbitmq"
    form = "thread"
