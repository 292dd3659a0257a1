"""Huey's adapter keeps the promises of every adapter, on both kinds of queue and in each kind of worker."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any, ClassVar

import pytest
from huey.constants import EmptyData
from huey.utils import Error

from support.contract_sites import SharedSites, settings_to
from support.contract_suite import ConformanceOnSharedSites
from support.faults.processes import Command
from support.huey.contract import make_huey
from support.huey.workers import huey_consumer
from support.servers.processes import patient, redis_server
from support.waiting import wait_until
from throttlekit.testing.adapter_site import AdapterSite, End, Settings

pytestmark = pytest.mark.workers

_NUMBERS = itertools.count(1)


class HueySite(AdapterSite):
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
        self._command: Command | None = None
        self._logged = ""

    def start(self) -> None:
        if self._command is not None:
            return
        consumer = huey_consumer("support.huey.contract.queue", kind=self._kind, workers=self.slots)
        command = self._command = Command(consumer, {"TK_CONTRACT": json.dumps(self._told)})
        started = "commands are available"
        wait_until(lambda: started in command.log() or not command.running, description="the workers are ready")
        assert command.running, command.log()

    def kill(self) -> None:
        assert self._command is not None
        self._command.kill()
        self._logged += self._command.log()
        self._command.close()
        self._command = None

    def close(self) -> None:
        if self._command is not None:
            self._command.stop()
            self._command.close()
        self.limiter.close()
        self.huey.storage.pool.disconnect()

    def log(self) -> str:
        return self._logged + (self._command.log() if self._command is not None else "")

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


@pytest.fixture(scope="class")
def sites(request: pytest.FixtureRequest) -> Iterator[SharedSites[HueySite]]:
    where: type[_Huey] = request.cls

    def make(settings: Settings) -> HueySite:
        return HueySite(base, where.kind, queue_sorted=where.queue_sorted, settings=settings)

    with redis_server() as base, closing(SharedSites(make)) as sites:
        yield sites


class _Huey(ConformanceOnSharedSites):
    kind: ClassVar[str]
    queue_sorted: ClassVar[bool] = False


class TestThreads(_Huey):
    kind = "thread"


class TestProcessesAndPriorities(_Huey):
    kind = "process"
    queue_sorted = True


class TestGreenlets(_Huey):
    kind = "greenlet"
