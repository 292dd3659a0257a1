"""Check that a Dramatiq broker is set up so that limits hold and no message is lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dramatiq
from dramatiq.middleware import AgeLimit, CurrentMessage, ShutdownNotifications, TimeLimit

from throttlekit.stores.redis_server import address_of
from throttlekit_cli.doctor.findings import Finding, findings_about
from throttlekit_cli.doctor.imports import import_target
from throttlekit_cli.doctor.same_store import compare_stores
from throttlekit_dramatiq import Throttle

__all__ = ["examine"]

_AFTER_THROTTLE = (TimeLimit, ShutdownNotifications, CurrentMessage)
_ok, _, _warning, _fault = findings_about("dramatiq")


def examine(where: str, url: str | None) -> Iterator[Finding]:
    """Check the broker that *where* names: "module" or "module:broker", as the `dramatiq` command reads it."""
    module, attribute = import_target(where)
    broker: Any = attribute if attribute is not None else dramatiq.get_broker()
    if callable(broker) and not hasattr(broker, "middleware"):
        broker = broker()
    throttles = [middleware for middleware in broker.middleware if isinstance(middleware, Throttle)]
    limited = [name for name, actor in broker.actors.items() if actor.options.get("throttle")]
    if len(throttles) != 1:
        yield _fault(
            f"The broker of {module} has {len(throttles)} Throttle middlewares.",
            "call broker.add_middleware(Throttle(limiter)) exactly once, before actors are declared",
        )
        return
    yield _ok(f"Throttle is there; {len(limited)} of {len(broker.actors)} actors name limits.")
    pool = getattr(getattr(broker, "client", None), "connection_pool", None)
    yield from compare_stores(throttles[0].limiter, url, "dramatiq", "" if pool is None else address_of(pool))
    kinds = [type(middleware) for middleware in broker.middleware]
    ages = [i for i, kind in enumerate(kinds) if issubclass(kind, AgeLimit)]
    behind = [i for i, kind in enumerate(kinds) if issubclass(kind, _AFTER_THROTTLE)]
    if ages and behind and max(ages) > min(behind):
        yield _warning(
            f"AgeLimit comes after {kinds[min(behind)].__name__}: a message past its max_age may be charged.",
            "make AgeLimit the first middleware",
        )
    if "Rabbitmq" in type(broker).__name__ and not getattr(broker, "confirm_delivery", False):
        yield _fault(
            "RabbitMQ does not confirm published messages: a denied message may be acknowledged before its copy is "
            "stored.",
            "make the broker with RabbitmqBroker(…, confirm_delivery=True)",
        )
