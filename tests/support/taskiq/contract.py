"""The jobs of `AdapterConformance` as taskiq's tasks, and the module that the suite's worker processes run."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from taskiq import AsyncBroker, Context, NoResultError, SimpleRetryMiddleware, TaskiqDepends, TaskiqMiddleware

from support.contract_sites import settings_from
from support.taskiq.brokers import make_broker
from throttlekit.testing.adapter_site import JOBS, Settings, note_failure, perform
from throttlekit_taskiq import Throttle

__all__ = ["declare_all"]


class _Failures(TaskiqMiddleware):
    def on_error(self, message: Any, result: Any, exception: BaseException) -> None:
        if not isinstance(exception, NoResultError):
            note_failure(*message.args)


def _job(form: str) -> Any:
    """Return a new function for each task, because taskiq renames it."""

    def job(key: str, notes: str, name: str, steps: list[str], context: Context = TaskiqDepends()) -> str:  # noqa: B008
        return perform(key, notes, name, steps, {"id": context.message.task_id, "labels": context.message.labels})

    async def job_in_loop(
        key: str,
        notes: str,
        name: str,
        steps: list[str],
        context: Context = TaskiqDepends(),  # noqa: B008
    ) -> str:
        return await asyncio.to_thread(job, key, notes, name, steps, context)

    return job if form == "thread" else job_in_loop


def declare_all(broker: AsyncBroker, limiter: Any, settings: Settings, form: str) -> None:
    """Add the middleware and every task of the suite."""
    broker.add_middlewares(SimpleRetryMiddleware(), _Failures(), Throttle(limiter, **settings.options()))
    for name, kind in JOBS.items():
        retries = {"retry_on_error": True, "max_retries": kind.retries + 1} if kind.retries else {}
        broker.task(name, **retries, **kind.options())(_job(form))
    broker.task("nudge")(_nudge)


async def _nudge() -> None:
    """Do nothing: any message makes a worker of a stream search for messages of dead workers."""


def _make_broker(config: dict[str, Any]) -> AsyncBroker:
    settings = settings_from(config)
    broker = make_broker(config["kind"], config["broker"], config["results"], config["queue"], **config["options"])
    declare_all(broker, settings.limiter(config["store"]), settings, config["form"])
    return broker


if "TK_CONTRACT" in os.environ:
    broker = _make_broker(json.loads(os.environ["TK_CONTRACT"]))
