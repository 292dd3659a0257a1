"""The demo on Celery: one task, with the limit or without it, and the app of its workers."""

from __future__ import annotations

import importlib
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import redis

from throttlekit import Limiter
from throttlekit_celery import install
from throttlekit_cli.demo.body import CountDeferrals, TooManyRequests, run_body
from throttlekit_cli.demo.ledger import Ledger
from throttlekit_cli.demo.plan import Plan, Settings
from throttlekit_cli.demo.store import QuietStore

__all__ = ["CeleryFramework", "make_app"]

_QUEUE = "demo"
_TASK = "call_partner"
_celery: Any = importlib.import_module("celery")  # untyped

# Sensible retries for a caller that knows the partner's limit; Celery counts in whole seconds.
_RETRY = {"autoretry_for": (TooManyRequests,), "retry_backoff": 1, "retry_backoff_max": 8, "max_retries": 20}


class CeleryFramework:
    """The demo's own view of Celery; see `throttlekit_cli.demo.frameworks.DemoFramework`."""

    def __init__(self, settings: Settings, ledger: Ledger) -> None:
        self._settings = settings
        self._ledger = ledger
        self._app = _app(settings)
        self._redis: Any = redis.Redis.from_url(settings.broker_url)

    def send(self, job: int, account: int, work: float) -> None:
        self._app.send_task(_TASK, (job, account, work, time.time()))

    def command(self, plan: Plan, folder: Path) -> list[str]:
        # One command that starts all workers, as for the other frameworks: the shell ends with its last child.
        worker = (
            f"{shlex.quote(sys.executable)} -m celery -A throttlekit_cli.demo.celery_app worker --pool threads "
            f"--loglevel WARNING --concurrency {plan.threads} --without-gossip --without-mingle --hostname"
        )
        return ["/bin/sh", "-c", " ".join(f"{worker} demo{n}@%h &" for n in range(plan.workers)) + " wait"]

    def ready(self) -> int:
        return self._ledger.ready()

    def settled(self) -> bool:
        return not any(self._redis.exists(f"{self._settings.run}:{key}") for key in (_QUEUE, "unacked"))

    def clear(self) -> None:
        """Does nothing: Celery's keys begin with the run's name, as the ledger's do."""


def make_app(settings: Settings) -> Any:
    """The workers' app, as an application makes it at import."""
    app, ledger = _app(settings), Ledger(settings.report_url, settings.run)
    options: dict[str, Any] = dict(_RETRY)
    if settings.throttled:
        install(app, Limiter(QuietStore(settings.limiter_url), plugins=[CountDeferrals(ledger)]))
        options["throttle"] = [settings.limit()]

    def call_partner(job: int, account: int, work: float, sent_at: float) -> None:
        run_body(settings.partner_port, ledger, job, account, work, sent_at)

    app.task(name=_TASK, **options)(call_partner)
    signals: Any = importlib.import_module("celery.signals")
    signals.worker_ready.connect(lambda **_: ledger.worker_ready(), weak=False)
    signals.task_failure.connect(lambda **_: ledger.given_up(), weak=False)
    return app


def _app(settings: Settings) -> Any:
    app = _celery.Celery("throttlekit-demo", broker=settings.broker_url, set_as_current=False)
    app.conf.update(
        task_default_queue=_QUEUE,
        task_ignore_result=True,
        worker_enable_remote_control=False,
        worker_hijack_root_logger=False,
        broker_transport_options={"global_keyprefix": f"{settings.run}:"},
    )
    return app
