"""RQ's adapter keeps the promises of every adapter, in stock workers and in its own."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
import redis
from rq import Callback, Retry
from rq.job import Job
from rq.results import Result

from support.contract_sites import settings_to
from support.contract_suite import ConformanceOnSharedSites, ProcessSite
from support.rq import contract
from support.rq.helpers import QUIET
from support.rq.workers import Fleet, rq_worker
from support.servers.processes import patient
from support.waiting import wait_until
from throttlekit.testing.adapter_site import JOBS, End, Settings
from throttlekit_rq import ThrottledQueue, throttled

pytestmark = [pytest.mark.workers, *QUIET]

_NUMBERS = itertools.count(1)


class RqSite(ProcessSite):
    def __init__(self, base: str, kind: str, settings: Settings) -> None:
        self._url, self._store, self._kind = f"{base}/0", patient(f"{base}/1"), kind
        self._settings = settings
        self.connection: Any = redis.Redis.from_url(self._url)
        self.limiter = settings.limiter(self._store)
        self.queue = ThrottledQueue(f"contract{next(_NUMBERS)}", connection=self.connection)

    def start_workers(self) -> Fleet:
        environment = {"TK_CONTRACT": json.dumps({**settings_to(self._settings), "store": self._store})}
        options = ["-c", "support.rq.contract"]
        fleet = Fleet([rq_worker(self._url, self.queue.name, kind=self._kind, options=options)], environment)
        wait_until(lambda: "Listening on" in fleet.log() or not fleet.running, description="the worker is ready")
        assert fleet.running, fleet.log()
        return fleet

    def kill(self) -> None:
        super().kill()
        # As if a minute had passed, after which RQ's scheduler lock expires.
        self.connection.delete(f"rq:scheduler-lock:{self.queue.name}")

    def close(self) -> None:
        super().close()
        self.connection.close()

    def enqueue(self, kind: str, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        all_options: dict[str, Any] = {"meta": {"tenant": "one"}, "job_timeout": 77, "description": "suite", **options}
        next_arguments = all_options.pop("then", None)
        if "expires" in all_options:
            all_options["ttl"] = int(all_options.pop("expires"))
        if JOBS[kind].retries:
            all_options["retry"] = Retry(max=JOBS[kind].retries)
        if JOBS[kind].max_wait is not None:
            all_options["throttle_max_wait"] = JOBS[kind].max_wait
        job = self.queue.enqueue(
            getattr(contract, kind), args=arguments, on_failure=Callback(contract.failed), **all_options
        )
        if next_arguments is not None:
            self.queue.enqueue(contract.free, args=next_arguments, depends_on=job, description="next")
        return job

    def id_of(self, job: Any) -> str:
        return str(job.id)

    def end(self, job: Any) -> End | None:
        job = Job.fetch(job.id, connection=self.connection)
        status, result = job.get_status(), job.latest_result()
        if status == "canceled":
            return End("dropped")
        if result is None or (status in ("queued", "started") and _is_retried(result)):
            return None
        if result.type == Result.Type.SUCCESSFUL:
            return End("succeeded", result.return_value)
        error = str(result.exc_string).strip().splitlines()[-1].partition(":")[0]
        return End("failed", error=error.rpartition(".")[2])

    def left(self) -> int:
        started = 0 if self._settings.killed else self.queue.started_job_registry.count
        waiting = self.queue.scheduled_job_registry.count + self.queue.deferred_job_registry.count
        return int(self.queue.count + waiting + started)

    def cancel(self, job: Any) -> None:
        Job.fetch(job.id, connection=self.connection).cancel()

    def declare(self, **options: Any) -> None:
        throttle, on_429 = options.pop("throttle"), options.pop("throttle_on_429", None)
        throttled(*(throttle if isinstance(throttle, list) else [throttle]), on_429=on_429, **options)(_declared)


def _declared(key: str) -> None: ...


def _is_retried(result: Any) -> bool:
    return result.type.name in ("RETRIED", "FAILED")


class _Rq(ConformanceOnSharedSites):
    kind: ClassVar[str]

    @classmethod
    def open_site(cls, base: str, rabbitmq_url: str, settings: Settings) -> RqSite:
        return RqSite(base, cls.kind, settings)


class TestStockWorker(_Rq):
    kind = "rq.Worker+scheduler"


class TestThrottledWorker(_Rq):
    kind = "throttlekit_rq.ThrottledWorker"
