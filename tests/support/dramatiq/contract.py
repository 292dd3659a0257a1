"""The jobs of `AdapterConformance` as Dramatiq's actors, and the module that the suite's worker processes run."""

from __future__ import annotations

import json
import os
from typing import Any

import dramatiq
from dramatiq.middleware import CurrentMessage, Middleware
from dramatiq.results import Results
from dramatiq.results.backends import StubBackend

from support.dramatiq.workers import make_broker
from throttlekit.testing.adapter_site import JOBS, Settings, note_failure, perform
from throttlekit_dramatiq import Throttle

__all__ = ["OURS", "declare_all"]

OURS = {"throttlekit", "throttlekit_429"}
_CHANGED_BY_DRAMATIQ = {"eta", "redis_message_id"}


class _Failures(Middleware):
    def after_process_message(
        self, broker: Any, message: Any, *, result: Any = None, exception: BaseException | None = None
    ) -> None:
        if exception is not None:
            note_failure(*message.args)


def _job(key: str, notes: str, name: str, steps: list[str]) -> str:
    message: Any = CurrentMessage.get_current_message()
    options = {name: value for name, value in message.options.items() if name not in _CHANGED_BY_DRAMATIQ}
    return perform(key, notes, name, steps, {"id": message.message_id, "queue": message.queue_name, "options": options})


def declare_all(broker: Any, queue: str, limiter: Any, settings: Settings) -> None:
    """Add the middleware and every actor of the suite."""
    for middleware in (CurrentMessage(), Results(backend=StubBackend()), _Failures()):
        broker.add_middleware(middleware)
    broker.add_middleware(Throttle(limiter, **settings.options()))
    for name, kind in JOBS.items():
        dramatiq.actor(
            _job,
            actor_name=name,
            queue_name=queue,
            broker=broker,
            max_retries=kind.retries,
            min_backoff=1,
            max_backoff=1,
            store_results=True,
            **kind.options(),
        )


def _make_broker(config: dict[str, Any]) -> Any:
    broker = make_broker(
        config["broker"], **({"maintenance_chance": 1_000_000} if config["broker"].startswith("redis") else {})
    )
    dramatiq.set_broker(broker)
    declare_all(broker, config["queue"], Settings().limiter(config["store"]), Settings())
    return broker


if "TK_CONTRACT" in os.environ:
    broker = _make_broker(json.loads(os.environ["TK_CONTRACT"]))
