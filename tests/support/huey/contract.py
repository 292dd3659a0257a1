"""The jobs of `AdapterConformance` as huey's tasks, and the module of its consumers, configured by $TK_CONTRACT."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import huey.signals as signals
from huey import PriorityRedisHuey, RedisHuey

from support.contract_sites import settings_from
from throttlekit.testing.adapter_site import JOBS, note_failure, perform
from throttlekit_huey import install

__all__ = ["make_huey"]

_SEEN = ("id", "retries", "retry_delay", "priority", "expires", "timeout", "name", "eta", "kwargs", "on_error")


def _job(key: str, notes: str, name: str, steps: list[str], *more: Any, task: Any) -> str:
    seen = {attribute: getattr(task, attribute) for attribute in _SEEN}
    return perform(key, notes, name, steps, {**seen, "follows": str(task.on_complete)})


def make_huey(config: Mapping[str, Any]) -> Any:
    """
    Return a huey with the tasks of the suite, which records the tasks that ended without a run and those that run.
    """
    queue_of_suite: Any = (PriorityRedisHuey if config["sorted"] else RedisHuey)(config["name"], url=config["broker"])
    connection = queue_of_suite.storage.conn
    queue_of_suite.ended, queue_of_suite.running = f"ended:{config['name']}", f"running:{config['name']}"
    limiter = settings_from(config["settings"]).limiter(config["store"])
    install(queue_of_suite, limiter, **settings_from(config["settings"]).options())
    queue_of_suite.suite = {
        name: queue_of_suite.task(name=name, context=True, retries=kind.retries, **kind.options())(_job)
        for name, kind in JOBS.items()
    }

    @queue_of_suite.signal(signals.SIGNAL_ERROR)
    def failed(signal: str, task: Any, error: object = None) -> None:
        note_failure(*task.args[:4])

    @queue_of_suite.signal(signals.SIGNAL_CANCELED, signals.SIGNAL_REVOKED, signals.SIGNAL_EXPIRED)
    def ended(signal: str, task: Any) -> None:
        connection.sadd(queue_of_suite.ended, task.id)

    dequeue, execute = queue_of_suite.dequeue, queue_of_suite.execute

    def counted_dequeue() -> Any:
        task = dequeue()
        if task is not None:
            connection.sadd(queue_of_suite.running, task.id)
        return task

    def counted_execute(task: Any, timestamp: Any = None) -> Any:
        try:
            return execute(task, timestamp)
        finally:
            connection.srem(queue_of_suite.running, task.id)

    queue_of_suite.dequeue, queue_of_suite.execute = counted_dequeue, counted_execute
    return queue_of_suite


if "TK_CONTRACT" in os.environ:
    queue = make_huey(json.loads(os.environ["TK_CONTRACT"]))
