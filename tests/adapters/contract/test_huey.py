"""Huey's adapter keeps the promises of every adapter, on both kinds of queue and in each kind of worker."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from huey.constants import EmptyData
from huey.utils import Error

from support.contract_sites import settings_to
from support.contract_suite import ConformanceOnSharedSites, ProcessSite
from support.faults.processes import Command
from support.huey.contract import make_huey
from support.huey.workers import huey_consumer
from support.servers.processes import patient
from support.waiting import wait_until
from throttlekit.testing.adapter_site import End, Settings

pytestmark = pytest.mark.workers

_NUMBERS = itertools.count(1)


class HueySite(ProcessSite):
    slots = 3

    def __init__(self, base: str, kind: str, *, queue_sorted: bool, settings: Settings) -> None:
        store = patient(f"{base}/1")
        self._told = {
            "broker": f"{base}/0",
            "store": store,
            "name": f"contract{next(_NUMBERS)}",
            "sorted": queue_sorted,
            "settings": settings_to(settings),
        }
        self._settings, self._kind = settings, kind
        self.processes = self.slots if kind == "process" else 1
        self.limiter = settings.limiter(store)
        self.huey = make_huey(self._told)

    def start_workers(self) -> Command:
        consumer = huey_consumer("support.huey.contract.queue", kind=self._kind, workers=self.slots)
        command = Command(consumer, {"TK_CONTRACT": json.dumps(self._told)})
        started = "commands are available"
        wait_until(lambda: started in command.log() or not command.running, description="the workers are ready")
        assert command.running, command.log()
        return command

    def close(self) -> None:
        super().close()
        self.huey.storage.pool.disconnect()

    def enqueue(self, kind: str, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> str:
        all_options = dict(options)
        next_arguments, task = all_options.pop("then", None), self._task(kind)
        if next_arguments is None:
            return str(task(*arguments, **all_options).id)
        first = task.s(*arguments, **all_options)
        self.huey.enqueue(first.then(self._task("free"), *next_arguments))
        return str(first.id)

    def _task(self, kind: str) -> Any:
        return self.huey.suite[kind]

    def end(self, job: Any) -> End | None:
        found = self.huey.get_raw(job, peek=True)
        if found is EmptyData:
            return End("dropped") if self.huey.storage.conn.sismember(self.huey.ended, job) else None
        value = self.huey.serializer.deserialize(found)
        if not isinstance(value, Error):
            return End("succeeded", value)
        if value.metadata["retries"]:
            return None
        return End("failed", error=value.metadata["error"].partition("(")[0])

    def left(self) -> int:
        connection = self.huey.storage.conn
        running = 0 if self._settings.killed else connection.scard(self.huey.running)
        held = connection.zcard(f"throttlekit:huey:{self.huey.name}:in-hand")
        return int(self.huey.pending_count() + self.huey.scheduled_count() + held + running)

    def cancel(self, job: Any) -> None:
        self.huey.revoke_by_id(job)

    def declare(self, **options: Any) -> None:
        self.huey.task(name=f"declared{next(_NUMBERS)}", **options)(_declared)


def _declared(key: str) -> None: ...


class _Huey(ConformanceOnSharedSites):
    kind: ClassVar[str]
    queue_sorted: ClassVar[bool] = False

    @classmethod
    def open_site(cls, base: str, rabbitmq_url: str, settings: Settings) -> HueySite:
        return HueySite(base, cls.kind, queue_sorted=cls.queue_sorted, settings=settings)


class TestThreads(_Huey):
    kind = "thread"


class TestProcessesAndPriorities(_Huey):
    kind = "process"
    queue_sorted = True


class TestGreenlets(_Huey):
    kind = "greenlet"
