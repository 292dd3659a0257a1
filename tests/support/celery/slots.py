"""
The jobs of the workers in tests of slots and of 429s, configured by $TK_CELERY, which `support.celery.site` writes.

Bodies record when they begin and end, by the clock of the recording Redis: see `support.flood.slot_record`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from celery import Celery, signals

from support.celery.site import conf_of
from support.flood.slot_record import SlotRecord, slots_of
from throttlekit import Concurrency, Job, Limiter, TokenBucket
from throttlekit_celery import install

__all__ = ["app"]


def cost_of(job: Job) -> int:
    """Return how many slots the job needs, by its first argument."""
    return slots_of(job.args[0]) if job.args else 1


def _make_app(config: Mapping[str, Any]) -> Celery:
    app = Celery("slots", broker=config["broker"], backend=config["backend"])
    app.conf.update(conf_of(config))
    record = SlotRecord(config["record"], config["queue"])
    install(app, Limiter(config["store"]), **config["install"])
    scope = config.get("scope", "global")
    slots = Concurrency(
        f"slots of {config['queue']}", config["amount"], lease=config["lease"], scope=scope, cost=cost_of
    )
    rate = TokenBucket(f"rate of {config['queue']}", config["rate"], burst=config["burst"], key="{key}")
    calls = Concurrency(f"calls of {config['queue']}", 50, lease=30, key="{key}")

    @signals.task_received.connect(weak=False)
    def received(**_: Any) -> None:
        record.count("deliveries")

    @signals.task_failure.connect(weak=False)
    def failed(**_: Any) -> None:
        record.count("failures")

    def hold(job: str, seconds: float) -> str:
        record.hold(job, seconds)
        return job

    app.task(hold, name="work", throttle=slots)
    app.task(hold, name="free_work")
    app.task(hold, name="late_work", throttle=slots, acks_late=True, reject_on_worker_lost=True)

    @app.task(name="dying", throttle=slots)
    def dying() -> None:
        os.kill(os.getpid(), 9)

    def call_partner(key: str, job: str) -> str:
        record.call(key, job)
        return job

    limits = [rate, calls]
    app.task(call_partner, name="ask", throttle=limits, shared=True)
    app.task(call_partner, name="late_ask", throttle=limits, acks_late=True)
    app.task(
        call_partner, name="auto_ask", throttle=limits, autoretry_for=(Exception,), max_retries=0, retry_backoff=False
    )
    app.task(call_partner, name="free_ask")

    @app.task(name="slow_ask", throttle=limits)
    def slow_ask(key: str, job: str, seconds: float) -> str:
        record.hold(job, seconds)
        return call_partner(key, job)

    @app.task(name="gather")
    def gather(results: list[str]) -> str:
        return " ".join(sorted(results))

    @app.task(name="told_error")
    def told_error(*_: Any) -> None:
        record.count("errors told")

    return app


app = _make_app(json.loads(os.environ["TK_CELERY"]))
