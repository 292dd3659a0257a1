"""The jobs of `AdapterConformance` as huey's tasks; $TK_CONTRACT says how. Also what its consumers are started with."""

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


def make_huey(told: Mapping[str, Any]) -> Any:
    """A huey with the tasks of the suite, and the keys of those that ended without a run, and of those that run."""
    made: Any = (PriorityRedisHuey if told["sorted"] else RedisHuey)(told["name"], url=told["broker"])
    connection = made.storage.conn
    made.ended, made.running = f"ended:{told['name']}", f"running:{told['name']}"
    limiter = settings_from(told["settings"]).limiter(told["store"])
    install(made, limiter, **settings_from(told["settings"]).options())
    made.suite = {
        name: made.task(name=name, context=True, retries=kind.retries, **kind.options())(_job)
        for name, kind in JOBS.items()
    }

    @made.signal(signals.SIGNAL_ERROR)
    def failed(signal: str, task: Any, error: object = None) -> None:
        note_failure(*task.args[:4])

    @made.signal(signals.SIGNAL_CANCELED, signals.SIGNAL_REVOKED, signals.SIGNAL_EXPIRED)
    def ended(signal: str, task: Any) -> None:
        connection.sadd(made.ended, task.id)

    dequeue, execute = made.dequeue, made.execute

    def counted_dequeue() -> Any:
        task = dequeue()
        if task is not None:
            connection.sadd(made.running, task.id)
        return task

    def counted_execute(task: Any, timestamp: Any = None) -> Any:
        try:
            return execute(task, timestamp)
        finally:
            connection.srem(made.running, task.id)

    made.dequeue, made.execute = counted_dequeue, counted_execute
    return made


if "TK_CONTRACT" in os.environ:
    queue = make_huey(json.loads(os.environ["TK_CONTRACT"]))
