"""The worker around the middleware: Throttle's position in it, and what a denial must not disturb."""

from __future__ import annotations

import logging
from typing import Any

from dramatiq import Broker
from dramatiq.middleware import AgeLimit, CurrentMessage, Middleware, ShutdownNotifications, TimeLimit

from throttlekit_dramatiq._message_state import DEFERRAL

__all__ = ["age_limit_before", "calm", "count_in_prometheus", "quieten", "take_position"]

_BEHIND_US = (TimeLimit, ShutdownNotifications, CurrentMessage)
_log = logging.getLogger("throttlekit.dramatiq")


def take_position(broker: Broker, throttle: Middleware) -> None:
    """
    Move *throttle* to where a denial is safe: behind AgeLimit, before TimeLimit, ShutdownNotifications
    and CurrentMessage.

    An expired message is then never charged, and nothing interrupts a denial half-way: an interrupt
    between the copy and the skip would run the job twice.
    """
    others = [middleware for middleware in broker.middleware if middleware is not throttle]
    first = max((i + 1 for i, m in enumerate(others) if isinstance(m, AgeLimit)), default=0)
    last = min((i for i, m in enumerate(others) if isinstance(m, _BEHIND_US)), default=len(others))
    if first > last:
        _log.warning(
            "Throttle must run after AgeLimit and before %s, but AgeLimit comes later than that in this broker's "
            "middleware: a message past its max_age may be charged to its limits. Put AgeLimit first.",
            type(others[last]).__name__,
        )
        first = last
    now = broker.middleware.index(throttle)
    if not first <= now <= last:
        # A new list: Dramatiq may be walking through the old one.
        broker.middleware = [*others[:last], throttle, *others[last:]]


def age_limit_before(broker: Broker, throttle: Middleware) -> AgeLimit | None:
    """
    The middleware that ends a message past its `max_age` before *throttle* sees it; None: none does.

    One that comes later does not count: an expired message that *throttle* denies would never reach it.
    """
    before = broker.middleware[: broker.middleware.index(throttle)]
    return next((middleware for middleware in before if isinstance(middleware, AgeLimit)), None)


def count_in_prometheus(broker: Broker, throttle: Middleware, message: Any) -> None:
    """
    Let a Prometheus middleware behind us count the message in.

    Dramatiq calls every middleware at a skip, also those that it did not call at the start: the gauge
    of messages in progress would fall below zero.
    """
    behind = broker.middleware[broker.middleware.index(throttle) + 1 :]
    for middleware in behind:
        if any(kind.__name__ == "Prometheus" for kind in type(middleware).__mro__):
            try:
                middleware.before_process_message(broker, message)
            except Exception:
                # As Dramatiq does. An error that leaves the hook of a denied message would run it.
                _log.exception("%r failed on a message that is not run.", middleware)


def calm(broker: Broker, throttle: Middleware, message: Any) -> None:
    """
    End *message* for the middleware behind Throttle that could interrupt its thread, before the worker does.

    A time limit that struck between the mark and the skip would run the job twice. Dramatiq does not call
    CurrentMessage at a skip.
    """
    behind: list[Any] = broker.middleware[broker.middleware.index(throttle) + 1 :]
    for middleware in behind:
        if isinstance(middleware, _BEHIND_US):
            middleware.after_process_message(broker, message)  # type: ignore[no-untyped-call]


class _WithoutDeferrals(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        denied = record.msg == "Message %s was skipped." and record.args and hasattr(record.args[0], DEFERRAL)  # type: ignore[index]
        return not denied


_FILTER = _WithoutDeferrals()


def quieten() -> None:
    """Drop Dramatiq's warning, arguments included, for each denied message: one summary a limit replaces them."""
    logging.getLogger("dramatiq.worker.WorkerThread").addFilter(_FILTER)
