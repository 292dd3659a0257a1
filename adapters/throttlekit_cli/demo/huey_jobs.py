"""The demo on huey: one task, with the limit or without it."""

from __future__ import annotations

import importlib
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from throttlekit import Limiter
from throttlekit_cli.demo.body import CountDeferrals, run_body
from throttlekit_cli.demo.ledger import Ledger
from throttlekit_cli.demo.plan import Plan, Settings
from throttlekit_cli.demo.store import QuietStore
from throttlekit_huey import install

__all__ = ["HueyFramework", "make_huey"]

_huey: Any = importlib.import_module("huey")  # untyped

# Sensible retries for a caller that knows the partner's limit; huey's scheduler looks once a second.
_RETRY = {"retries": 20, "retry_delay": 1}


class HueyFramework:
    """The demo's own view of huey; see `throttlekit_cli.demo.frameworks.DemoFramework`."""

    def __init__(self, settings: Settings, ledger: Ledger) -> None:
        self._settings, self._ledger = settings, ledger
        self._huey = make_huey(settings)
        self._redis: Any = self._huey.storage.conn

    def send(self, job: int, account: int, work: float) -> None:
        self._huey.demo(job, account, work, time.time())

    def command(self, plan: Plan, folder: Path) -> list[str]:
        # One command that starts all workers, as for the other frameworks: the shell ends with its last child.
        consumer = (
            f"{shlex.quote(sys.executable)} -m huey.bin.huey_consumer throttlekit_cli.demo.huey_queue.queue "
            f"--workers {plan.threads} --quiet &"
        )
        return ["/bin/sh", "-c", " ".join([consumer] * plan.workers) + " wait"]

    def ready(self) -> int:
        return self._ledger.ready()

    def settled(self) -> bool:
        in_hand = self._redis.zcard(f"throttlekit:huey:{self._settings.run}:in-hand")
        return not (self._huey.pending_count() or self._huey.scheduled_count() or in_hand)

    def clear(self) -> None:
        """Delete every key that has the run's name in it."""
        for key in self._redis.scan_iter(f"*{self._settings.run}*", count=1000):
            self._redis.delete(key)


def make_huey(settings: Settings) -> Any:
    """The huey with its task, as an application makes it at import."""
    made = _huey.RedisHuey(settings.run, url=settings.broker_url, results=False, clean_name=False)
    ledger = Ledger(settings.report_url, settings.run)
    options: dict[str, Any] = dict(_RETRY)
    if settings.throttled:
        install(made, Limiter(QuietStore(settings.limiter_url), plugins=[CountDeferrals(ledger)]))
        options["throttle"] = [settings.limit()]

    def call_partner(job: int, account: int, work: float, sent_at: float) -> None:
        run_body(settings.partner_port, ledger, job, account, work, sent_at)

    made.demo = made.task(**options)(call_partner)
    make_consumer = made.create_consumer

    def create_consumer(**given: Any) -> Any:
        ledger.worker_ready()
        return make_consumer(**given)

    made.create_consumer = create_consumer

    def failed(signal: str, task: Any, error: object = None) -> None:
        if not task.retries:
            ledger.given_up()

    made.signal(_huey.signals.SIGNAL_ERROR)(failed)
    return made
