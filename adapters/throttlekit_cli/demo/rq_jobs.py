"""
The demo on RQ: one function, with the limit or without it, and the set-up of its workers.

RQ's keys have fixed prefixes, so the queue and the ids of the jobs carry the run's name.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import redis
from rq import Callback, Retry

from throttlekit import Limiter
from throttlekit_cli.demo.body import CountDeferrals, run_body
from throttlekit_cli.demo.ledger import Ledger
from throttlekit_cli.demo.plan import Plan, Settings
from throttlekit_cli.demo.store import QuietStore
from throttlekit_rq import ThrottledQueue, configure

__all__ = ["RqFramework", "call_partner", "failed", "set_up"]

# Sensible retries for a caller that knows the partner's limit; RQ counts in whole seconds.
_RETRY = Retry(max=20, interval=[1, 1, 2, 4, 8])
_FAILED = f"{__name__}.failed"


class _Worker:
    """The globals of a worker process, set by `set_up`."""

    settings: Settings
    ledger: Ledger


class RqFramework:
    """The demo's own view of RQ; see `throttlekit_cli.demo.frameworks.DemoFramework`."""

    def __init__(self, settings: Settings, ledger: Ledger) -> None:
        self._settings = settings
        self._redis: Any = redis.Redis.from_url(settings.broker_url)
        self._queue: Any = ThrottledQueue(settings.run, connection=self._redis)

    def send(self, job: int, account: int, work: float) -> None:
        self._queue.enqueue(
            call_partner, job, account, work, time.time(), job_id=f"{self._settings.run}-{job}",
            throttle=[self._settings.limit()] if self._settings.throttled else None,
            retry=_RETRY, on_failure=Callback(_FAILED),
        )  # fmt: skip

    def command(self, plan: Plan, folder: Path) -> list[str]:
        kind = "throttlekit_rq.ThrottledWorker" if plan.throttled else "rq.Worker"
        return [
            sys.executable, "-m", "rq.cli", "worker-pool", self._settings.run, "--num-workers", str(plan.workers),
            "--worker-class", kind, "--config", "throttlekit_cli.demo.rq_settings", "--path", str(folder),
        ]  # fmt: skip

    def ready(self) -> int:
        return int(self._redis.scard(f"rq:workers:{self._settings.run}"))

    def settled(self) -> bool:
        queue = self._queue
        return not queue.count and not queue.scheduled_job_registry.count and not queue.started_job_registry.count

    def clear(self) -> None:
        """Delete every key that has the run's name in it, and its entries in RQ's lists of queues and workers."""
        name = self._settings.run
        for key in self._redis.smembers("rq:workers"):
            if self._redis.hget(key, "queues") == name.encode() or not self._redis.exists(key):
                self._redis.srem("rq:workers", key)
                self._redis.delete(key)
        self._redis.srem("rq:queues", f"rq:queue:{name}")
        for key in self._redis.scan_iter(f"*{name}*", count=1000):
            self._redis.delete(key)


def call_partner(job: int, account: int, work: float, sent_at: float) -> None:
    """The function that the jobs run."""
    run_body(_Worker.settings.partner_port, _Worker.ledger, job, account, work, sent_at)


def failed(job: Any, connection: Any, *error: Any) -> None:
    """RQ calls this for each run that fails; a job is given up when it has no retry left."""
    if not job.should_retry:
        _Worker.ledger.given_up()


def set_up() -> None:
    """Set up a worker process from its environment."""
    settings = _Worker.settings = Settings.of_environment()
    ledger = _Worker.ledger = Ledger(settings.report_url, settings.run)
    configure(Limiter(QuietStore(settings.limiter_url), plugins=[CountDeferrals(ledger)]))
