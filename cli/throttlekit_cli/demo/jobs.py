"""What the workers run: one actor, with the limit or without. Started as `dramatiq throttlekit_cli.demo.jobs:boot`."""

from __future__ import annotations

import http.client
import time
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import Middleware

from throttlekit import Limiter, hookimpl
from throttlekit.hookspecs import Deferred
from throttlekit_cli.demo.ledger import Ledger, Run
from throttlekit_cli.demo.plan import Settings
from throttlekit_dramatiq import Throttle

__all__ = ["QUEUE", "CountDeferrals", "TooManyRequests", "boot", "declare"]

QUEUE = "demo"

# The same with and without throttlekit. Dramatiq's own would wait 15 s before a first retry, and the
# contrast would take an hour; these are what somebody would set who knows the partner's limit.
_RETRIES = {"min_backoff": 500, "max_backoff": 8_000, "max_retries": 20}


class TooManyRequests(Exception):
    """The partner answered 429."""


class CountDeferrals:
    """A plugin of the limiter: writes every deferral into the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    @hookimpl
    def throttlekit_deferred(self, event: Deferred) -> None:
        self._ledger.deferred(event.job.id)


class _Watch(Middleware):
    """Tells the ledger when a worker is ready, and when Dramatiq gives a job up."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def after_worker_boot(self, broker: dramatiq.Broker, worker: Any) -> None:
        self._ledger.worker_ready()

    def after_nack(self, broker: dramatiq.Broker, message: Any) -> None:
        self._ledger.given_up()


def declare(settings: Settings) -> dramatiq.Actor[..., None]:
    """Make the broker and the actor, as an application does at import."""
    ledger = Ledger(settings.report_url, settings.run)
    broker = _broker(settings)
    broker.add_middleware(_Watch(ledger))
    options: dict[str, Any] = dict(_RETRIES)
    if settings.throttled:
        limiter = Limiter(settings.limiter_url, plugins=[CountDeferrals(ledger)])
        broker.add_middleware(Throttle(limiter))
        options["throttle"] = [settings.limit()]

    @dramatiq.actor(broker=broker, queue_name=QUEUE, **options)
    def call_partner(job: int, account: int, work: float, sent_at: float) -> None:
        ledger.run_began()
        run = Run(job=job, sent_at=sent_at, began_at=time.time(), status=0)
        try:
            run = run.answered(_call(settings.partner_port, account))
            if run.status == 200:
                time.sleep(work)  # what the job does with the answer
        finally:
            ledger.run_ended(run)
        if run.status == 429:
            raise TooManyRequests

    return call_partner


def boot() -> None:
    """Set up a worker process from its environment."""
    settings = Settings.of_environment()
    dramatiq.set_broker(declare(settings).broker)


def _broker(settings: Settings) -> dramatiq.Broker:
    make: Any = RedisBroker  # untyped
    # No maintenance: it looks through the whole database, which may be a user's own.
    broker: dramatiq.Broker = make(url=settings.broker_url, namespace=settings.run, maintenance_chance=0)
    return broker


def _call(port: int, account: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", f"/accounts/{account}")
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()
