"""The demo on taskiq: one task on a stream of Redis, with the limit or without it, and the broker of its workers."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from pathlib import Path
from typing import Any

import redis
from taskiq import (
    AsyncBroker,
    AsyncTaskiqDecoratedTask,
    Context,
    SimpleRetryMiddleware,
    TaskiqDepends,
    TaskiqMessage,
    TaskiqMiddleware,
    TaskiqResult,
)
from taskiq_redis import RedisStreamBroker

from throttlekit import Limiter
from throttlekit_cli.demo.body import CountDeferrals, TooManyRequests, run_body
from throttlekit_cli.demo.ledger import Ledger
from throttlekit_cli.demo.plan import Plan, Settings
from throttlekit_cli.demo.store import QuietStore
from throttlekit_taskiq import Throttle

__all__ = ["TaskiqFramework", "declare"]


class _Watch(TaskiqMiddleware):
    """Records when a worker is ready, and when taskiq gives a task up."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger

    def startup(self) -> None:
        if self.broker.is_worker_process:
            self._ledger.worker_ready()

    def post_save(self, message: TaskiqMessage, result: TaskiqResult[Any]) -> None:
        if result.is_err:
            self._ledger.given_up()


class TaskiqFramework:
    """The demo's own view of taskiq; see `throttlekit_cli.demo.frameworks.DemoFramework`."""

    def __init__(self, settings: Settings, ledger: Ledger) -> None:
        self._ledger, self._queue = ledger, _queue(settings)
        self._redis: Any = redis.Redis.from_url(settings.broker_url)
        self._task = declare(settings)
        self._loop, self._in_use = asyncio.new_event_loop(), threading.Lock()
        self._loop.run_until_complete(self._task.broker.startup())

    def send(self, job: int, account: int, work: float) -> None:
        with self._in_use:
            self._loop.run_until_complete(self._task.kiq(job, account, work, time.time()))

    def command(self, plan: Plan, folder: Path) -> list[str]:
        return [
            sys.executable, "-m", "taskiq", "worker", "throttlekit_cli.demo.taskiq_app:broker",
            "--workers", str(plan.workers), "--max-async-tasks", str(plan.threads),
            "--max-threadpool-threads", str(plan.threads), "--log-level", "CRITICAL",
        ]  # fmt: skip

    def ready(self) -> int:
        return self._ledger.ready()

    def settled(self) -> bool:
        groups = self._redis.xinfo_groups(self._queue)
        return all(group["pending"] == 0 and not group.get("lag") for group in groups)

    def clear(self) -> None:
        """Delete the keys that find the messages of dead workers. All others begin with the name of the run."""
        alive = self._redis.scan_iter(f"throttlekit:taskiq:alive:{self._queue}:*", count=1000)
        self._redis.delete(f"autoclaim:taskiq:{self._queue}", *alive)


def declare(settings: Settings) -> AsyncTaskiqDecoratedTask[Any, Any]:
    """Make the broker and the task, as an application does at import."""
    ledger = Ledger(settings.report_url, settings.run)
    broker: AsyncBroker = RedisStreamBroker(settings.broker_url, queue_name=_queue(settings), consumer_id="0")
    broker.add_middlewares(SimpleRetryMiddleware(), _Watch(ledger))
    options: dict[str, Any] = {"retry_on_error": True, "max_retries": 20}
    if settings.throttled:
        limiter = Limiter(QuietStore(settings.limiter_url), plugins=[CountDeferrals(ledger)])
        broker.add_middlewares(Throttle(limiter))
        options["throttle"] = [settings.limit()]

    @broker.task("call_partner", **options)
    def call_partner(
        job: int, account: int, work: float, sent_at: float, context: Context = TaskiqDepends()  # noqa: B008
    ) -> None:  # fmt: skip
        try:
            run_body(settings.partner_port, ledger, job, account, work, sent_at)
        except TooManyRequests:
            # Sensible for a caller that knows the partner's limit. A stream delays no message, so the body waits.
            time.sleep(min(8.0, 0.5 * 2.0 ** int(context.message.labels.get("_retries", 0))))
            raise

    return call_partner


def _queue(settings: Settings) -> str:
    return f"{settings.run}:demo"
