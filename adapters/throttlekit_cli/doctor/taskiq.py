"""Check that a taskiq broker is set up so that limits hold and no message is lost."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from throttlekit.stores.redis_server import address_of
from throttlekit_cli.doctor.findings import Finding, findings_about
from throttlekit_cli.doctor.imports import ExaminationError, import_target
from throttlekit_cli.doctor.same_store import compare_stores
from throttlekit_taskiq import Throttle

__all__ = ["examine"]
_ok, _, _warning, _fault = findings_about("taskiq")


def examine(where: str, url: str | None) -> Iterator[Finding]:
    """Check the broker that *where* names: "module:broker", as the `taskiq worker` command reads it."""
    module, broker = import_target(where)
    if inspect.isfunction(broker):
        broker = broker()
    if not hasattr(broker, "middlewares"):
        raise ExaminationError(f"{where} is not a broker of taskiq: name it as for taskiq worker, like {module}:broker")
    throttles = [middleware for middleware in broker.middlewares if isinstance(middleware, Throttle)]
    if len(throttles) != 1:
        yield _fault(
            f"The broker of {module} has {len(throttles)} Throttle middlewares.",
            "call broker.add_middlewares(Throttle(limiter)) exactly once, before tasks are declared",
        )
        return
    tasks = broker.get_all_tasks()
    limited = [name for name in tasks if throttles[0].limits_of(name)]
    yield _ok(f"Throttle is there; {len(limited)} of {len(tasks)} tasks name limits.")
    pool: Any = getattr(broker, "connection_pool", None)
    yield from compare_stores(throttles[0].limiter, url, "taskiq", "" if pool is None else address_of(pool))
    kind = type(broker).__name__
    if kind.startswith(("ListQueue", "PubSub")):
        yield _warning(
            f"{kind} has no acknowledgements: tasks that wait or run in a worker are lost if it is killed.",
            "use RedisStreamBroker, or AioPikaBroker on RabbitMQ",
        )
