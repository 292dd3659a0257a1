"""The demo on Dramatiq: one actor, with the limit or without it. Workers start with the `boot` of this module."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import Middleware

from throttlekit import Limiter
from throttlekit_cli.demo.body import CountDeferrals, run_body
from throttlekit_cli.demo.ledger import Ledger
from throttlekit_cli.demo.plan import Plan, Settings
from throttlekit_cli.demo.store import QuietStore
from throttlekit_dramatiq import Throttle

__all__ = ["DramatiqFramework", "boot", "declare"]

_QUEUE = "demo"

# The same with and without throttlekit. With its defaults Dramatiq waits 15 s before a first retry, and the
# contrast would take an hour; these are sensible for a caller that knows the partner's limit.
_RETRIES = {"min_backoff": 500, "max_backoff": 8_000, "max_retries": 20}


class _Watch(Middleware):
    """Records when a worker is ready, and when Dramatiq gives a job up."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def after_worker_boot(self, broker: dramatiq.Broker, worker: Any) -> None:
        self._ledger.worker_ready()

    def after_nack(self, broker: dramatiq.Broker, message: Any) -> None:
        self._ledger.given_up()


class DramatiqFramework:
    """The demo's own view of Dramatiq; see `throttlekit_cli.demo.frameworks.DemoFramework`."""

    def __init__(self, settings: Settings, ledger: Ledger) -> None:
        self._actor: Any = declare(settings)
        self._ledger = ledger

    def send(self, job: int, account: int, work: float) -> None:
        self._actor.send(job, account, work, time.time())

    def command(self, plan: Plan, folder: Path) -> list[str]:
        return [
            sys.executable, "-m", "dramatiq", f"{__name__}:boot",
            "--processes", str(plan.workers), "--threads", str(plan.threads), "--path", str(folder),
        ]  # fmt: skip

    def ready(self) -> int:
        return self._ledger.ready()

    def settled(self) -> bool:
        return bool(self._actor.broker.do_qsize(_QUEUE) == 0)

    def clear(self) -> None:
        """Does nothing: Dramatiq's keys begin with the run's name, as the ledger's do."""


def declare(settings: Settings) -> dramatiq.Actor[..., None]:
    """Make the broker and the actor, as an application does at import."""
    ledger = Ledger(settings.report_url, settings.run)
    broker = _broker(settings)
    broker.add_middleware(_Watch(ledger))
    options: dict[str, Any] = dict(_RETRIES)
    if settings.throttled:
        limiter = Limiter(QuietStore(settings.limiter_url), plugins=[CountDeferrals(ledger)])
        broker.add_middleware(Throttle(limiter))
        options["throttle"] = [settings.limit()]

    @dramatiq.actor(broker=broker, queue_name=_QUEUE, **options)
    def call_partner(job: int, account: int, work: float, sent_at: float) -> None:
        run_body(settings.partner_port, ledger, job, account, work, sent_at)

    return call_partner


def boot() -> None:
    """Set up a worker process from its environment."""
    settings = Settings.of_environment()
    dramatiq.set_broker(declare(settings).broker)


def _broker(settings: Settings) -> dramatiq.Broker:
    make: Any = RedisBroker  # untyped
    # No maintenance: it scans the whole database, which may be the user's own.
    broker: dramatiq.Broker = make(url=settings.broker_url, namespace=settings.run, maintenance_chance=0)
    return broker
