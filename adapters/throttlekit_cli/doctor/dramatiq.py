"""Is a Dramatiq broker set up so that limits hold and nothing is lost?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dramatiq
from dramatiq.middleware import AgeLimit, CurrentMessage, ShutdownNotifications, TimeLimit

from throttlekit_cli.doctor.findings import Finding
from throttlekit_cli.doctor.imports import imported
from throttlekit_dramatiq import Throttle

__all__ = ["examine_dramatiq"]

_BEHIND_US = (TimeLimit, ShutdownNotifications, CurrentMessage)


def examine_dramatiq(where: str) -> Iterator[Finding]:
    """Look at the broker that *where* names: "module" or "module:broker", as the `dramatiq` command reads it."""
    module, attribute = imported(where)
    broker: Any = attribute if attribute is not None else dramatiq.get_broker()
    if callable(broker) and not hasattr(broker, "middleware"):
        broker = broker()
    throttles = [middleware for middleware in broker.middleware if isinstance(middleware, Throttle)]
    limited = [name for name, actor in broker.actors.items() if actor.options.get("throttle")]
    if len(throttles) != 1:
        yield _fault(
            f"The broker of {module} has {len(throttles)} Throttle middlewares.",
            "call broker.add_middleware(Throttle(limiter)) once, before actors are declared",
        )
        return
    yield Finding("ok", "dramatiq", f"Throttle is there; {len(limited)} of {len(broker.actors)} actors name limits.")
    if throttles[0].limiter.in_memory:
        yield _fault(
            "Its limiter keeps limits in memory: each worker process lets as much pass by itself.",
            'make it with the URL of a server: Limiter("redis://…")',
        )
    kinds = [type(middleware) for middleware in broker.middleware]
    ages = [i for i, kind in enumerate(kinds) if issubclass(kind, AgeLimit)]
    behind = [i for i, kind in enumerate(kinds) if issubclass(kind, _BEHIND_US)]
    if ages and behind and max(ages) > min(behind):
        yield Finding(
            "warning",
            "dramatiq",
            f"AgeLimit comes after {kinds[min(behind)].__name__}: a message past its max_age may be charged.",
            "put AgeLimit first among the middleware",
        )
    if "Rabbitmq" in type(broker).__name__ and not getattr(broker, "confirm_delivery", False):
        yield _fault(
            "RabbitMQ is not asked to confirm what is published: a denied message is acknowledged when its copy may "
            "not be stored yet.",
            "make the broker with RabbitmqBroker(…, confirm_delivery=True)",
        )


def _fault(what: str, remedy: str) -> Finding:
    return Finding("fault", "dramatiq", what, remedy)
