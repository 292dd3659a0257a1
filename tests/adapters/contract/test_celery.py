"""Celery's adapter keeps the promises of every adapter, on Redis and on RabbitMQ."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any, ClassVar

import pytest
from celery import Celery
from celery.exceptions import TaskRevokedError

from support.celery.quiet import QUIET
from support.celery.site import QUICK_RECOVERY, celery_site
from support.celery.site import CelerySite as Workers
from support.contract_sites import settings_to
from support.contract_suite import ConformanceOnSharedSites
from support.servers.processes import patient
from support.waiting import wait_until
from throttlekit.testing.adapter_site import AdapterSite, End, Settings
from throttlekit_celery import install

pytestmark = [pytest.mark.workers, *QUIET]

_NAMES = itertools.count(1)


class CelerySite(AdapterSite):
    slots = 2

    def __init__(self, kind: str, broker: str, base: str, settings: Settings) -> None:
        store = patient(f"{base}/12")
        self._settings = settings
        conf = QUICK_RECOVERY if settings.killed and kind == "redis" else {}
        self._closing = celery_site(
            kind, broker, base, module="support.celery.contract", store=store, settings=settings_to(settings), conf=conf
        )
        self._workers: Workers = self._closing.__enter__()
        self._running: list[Any] = []
        self._logged = ""
        self.limiter = settings.limiter(store)

    def start(self) -> None:
        if not self._running:
            if self._settings.killed and self._workers.kind == "redis":
                wait_until(self._can_be_redelivered, description="the messages of a killed worker can be redelivered")
            self._running.append(self._workers.start(name=f"w{next(_NAMES)}"))

    def _can_be_redelivered(self) -> bool:
        """A worker restores such tasks as it connects; with Celery before 5.5, only every 100 seconds after that."""
        with self._workers.app.connection_for_read() as connection:
            channel = connection.default_channel
            return not channel.client.zcount("unacked_index", time.time() - channel.visibility_timeout, "+inf")

    def kill(self) -> None:
        for worker in self._running:
            worker.kill()
            self._logged += worker.log()
        self._running.clear()

    def close(self) -> None:
        self.limiter.close()
        self._closing.__exit__(None, None, None)

    def log(self) -> str:
        return self._logged + "".join(worker.log() for worker in self._running)

    def enqueue(self, kind: str, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        all_options: dict[str, Any] = {"priority": 3, "headers": {"tenant": "one"}, "shadow": "suite", **options}
        next_arguments = all_options.pop("then", None)
        if next_arguments is not None:
            all_options["link"] = self._workers.signature("free", *next_arguments, immutable=True)
        return self._workers.send(kind, *arguments, **all_options)

    def id_of(self, job: Any) -> Any:
        return job.id

    def end(self, job: Any) -> End | None:
        state = job.state
        if state in ("PENDING", "RETRY", "STARTED"):
            return None
        if state == "SUCCESS":
            return End("succeeded", job.result)
        if isinstance(job.result, TaskRevokedError):
            return End("dropped")
        return End("failed", error=type(job.result).__name__)

    def left(self) -> int:
        return self._workers.left() + (len(self._workers.held()) if self._workers.kind == "rabbitmq" else 0)

    def cancel(self, job: Any) -> None:
        job.revoke()

    def declare(self, **options: Any) -> None:
        with closing(Celery("declares", set_as_current=False)) as app:
            install(app, self.limiter)
            app.task(name="declared", shared=False, **options)(_declared)


def _declared(key: str) -> None: ...


_BY_MESSAGE = "a message names no limits of its own: the task has them, or `install(throttle=…)` by its name"


class _Celery(ConformanceOnSharedSites):
    unsupported: ClassVar[Mapping[str, str]] = {
        "limits_by_message": _BY_MESSAGE,
        "wrong_message_options_fail_where_they_are_written": _BY_MESSAGE,
    }
    kind: ClassVar[str]

    @classmethod
    def open_site(cls, base: str, rabbitmq_url: str, settings: Settings) -> CelerySite:
        return CelerySite(cls.kind, rabbitmq_url or base, base, settings)


class TestRedis(_Celery):
    kind = "redis"


class TestRabbitMQ(_Celery):
    kind = "rabbitmq"
