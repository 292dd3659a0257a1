"""Handle the other middleware of the worker: Throttle's position in the list, and hooks for denied messages."""

from __future__ import annotations

import logging
from typing import Any

from dramatiq import Broker
from dramatiq.middleware import AgeLimit, CurrentMessage, Middleware, ShutdownNotifications, TimeLimit

from throttlekit_dramatiq._holding import DEFERRAL

__all__ = ["age_limit_before", "count_in_prometheus", "drop_skip_warnings", "end_interrupting", "take_position"]

_BEHIND_US = (TimeLimit, ShutdownNotifications, CurrentMessage)
_log = logging.getLogger("throttlekit.dramatiq")


def take_position(broker: Broker, throttle: Middleware) -> None:
    """
    Move *throttle* to a position where a denial is safe: after AgeLimit, and before TimeLimit, ShutdownNotifications
    and CurrentMessage.

    At this position, an expired message is never charged, and no middleware interrupts a denial. If a denial were
    interrupted after the message was copied and before it is skipped, the job would run twice.
    """
    others = [middleware for middleware in broker.middleware if middleware is not throttle]
    first = max((i + 1 for i, m in enumerate(others) if isinstance(m, AgeLimit)), default=0)
    last = min((i for i, m in enumerate(others) if isinstance(m, _BEHIND_US)), default=len(others))
    if first > last:
        _log.warning(
            "Throttle must run after AgeLimit and before %s, but AgeLimit is later than that in this broker's "
            "middleware: a message past its max_age may be charged to its limits. Put AgeLimit first.",
            type(others[last]).__name__,
        )
        first = last
    now = broker.middleware.index(throttle)
    if not first <= now <= last:
        # Make a new list: Dramatiq may be iterating over the old one.
        broker.middleware = [*others[:last], throttle, *others[last:]]


def age_limit_before(broker: Broker, throttle: Middleware) -> AgeLimit | None:
    """
    Return the AgeLimit middleware before *throttle*, or None if there is none.

    An AgeLimit after *throttle* does not count: an expired message that *throttle* denies would never reach it.
    """
    before = broker.middleware[: broker.middleware.index(throttle)]
    return next((middleware for middleware in before if isinstance(middleware, AgeLimit)), None)


def count_in_prometheus(broker: Broker, throttle: Middleware, message: Any) -> None:
    """
    Make a Prometheus middleware after *throttle* count the start of *message*.

    When a message is skipped, Dramatiq also calls the middleware that it has not called at the start. Without this
    call, the gauge of messages in progress would fall below zero.
    """
    behind = broker.middleware[broker.middleware.index(throttle) + 1 :]
    for middleware in behind:
        if any(kind.__name__ == "Prometheus" for kind in type(middleware).__mro__):
            try:
                middleware.before_process_message(broker, message)
            except Exception:
                # Log the error, like Dramatiq. If it left the hook of a denied message, the body would run.
                _log.exception("%r failed on a message that was denied.", middleware)


def end_interrupting(broker: Broker, throttle: Middleware, message: Any) -> None:
    """
    Call `after_process_message` of the middleware after Throttle that could interrupt the thread of *message*.

    If a time limit interrupted the thread after the message is marked as denied and before it is skipped, the job would
    run twice. CurrentMessage is included because Dramatiq does not call it when a message is skipped.
    """
    behind: list[Any] = broker.middleware[broker.middleware.index(throttle) + 1 :]
    for middleware in behind:
        if isinstance(middleware, _BEHIND_US):
            middleware.after_process_message(broker, message)  # type: ignore[no-untyped-call]


def drop_skip_warnings() -> None:
    """Drop the warning that Dramatiq logs for each denied message. Throttlekit logs one summary per limit instead."""
    logging.getLogger("dramatiq.worker.WorkerThread").addFilter(_is_no_deferral)


def _is_no_deferral(record: logging.LogRecord) -> bool:
    skipped: Any = record.args[0] if record.msg == "Message %s was skipped." and record.args else None  # type: ignore[index]
    return not hasattr(skipped, DEFERRAL)
