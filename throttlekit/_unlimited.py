"""
A warning for a worker whose jobs declare limits while throttlekit is not installed in it.

Celery, huey and taskiq accept the option `throttle=` without throttlekit, and ignore it: no code of an adapter runs in
such a worker. But the worker's code creates limits. So the first use of a limit's class calls `watch_workers`. If one
of these frameworks is loaded, this makes its worker call `_check` when it starts. Nothing is imported for that.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import logging

__all__ = ["adapter_is_in_use", "watch_workers"]

_REMEDIES = {
    "celery": "call throttlekit_celery.install(app, limiter) where the app is made",
    "huey": "call throttlekit_huey.install(huey, limiter) where the huey is made",
    "taskiq": "call broker.add_middlewares(throttlekit_taskiq.Throttle(limiter)) before tasks are declared",
}


class _Process:
    """The checks that this process has made."""

    watched: set[str] = set()  # noqa: RUF012  one a process is meant
    in_use = False


def adapter_is_in_use() -> None:
    """Record that an adapter admits jobs in this process, so that no warning is needed."""
    _Process.in_use = True


def watch_workers() -> None:
    """Make workers of this process check, when they start, whether an adapter enforces the limits of their jobs."""
    if _is_new("celery.signals", "celery", "worker_ready"):
        sys.modules["celery.signals"].worker_ready.connect(_celery_starts, weak=False)
    if _is_new("huey.consumer", "huey", "Consumer"):
        _before(sys.modules["huey.consumer"].Consumer, "start", _huey_starts)
    if _is_new("taskiq.receiver", "taskiq", "Receiver"):
        _before(sys.modules["taskiq.receiver"].Receiver, "listen", _taskiq_starts)


def _is_new(module: str, framework: str, name: str) -> bool:
    if framework in _Process.watched or not hasattr(sys.modules.get(module), name):
        return False
    _Process.watched.add(framework)
    return True


def _before(owner: Any, method: str, check: Callable[[Any], None]) -> None:
    original = getattr(owner, method)

    @functools.wraps(original)
    def checked(worker: Any, *args: Any, **options: Any) -> Any:
        try:
            check(worker)
        except Exception:  # another release of the framework may differ, and a warning must not stop a worker
            _log().debug("This worker's limits could not be checked.", exc_info=True)
        return original(worker, *args, **options)

    setattr(owner, method, checked)


def _celery_starts(sender: Any = None, **_: Any) -> None:
    _check("celery", ((name, getattr(task, "throttle", None)) for name, task in sender.app.tasks.items()))


def _huey_starts(consumer: Any) -> None:
    tasks = consumer.huey._registry._registry
    _check("huey", ((name, getattr(made, "throttle", None)) for name, made in tasks.items()))


def _taskiq_starts(receiver: Any) -> None:
    tasks = receiver.broker.get_all_tasks()
    _check("taskiq", ((name, task.labels.get("throttle")) for name, task in tasks.items()))


def _check(framework: str, throttles: Iterable[tuple[str, Any]]) -> None:
    if _Process.in_use:
        return
    from throttlekit._core.limit.base import Limit

    def is_limited(throttle: Any) -> bool:
        given: Any = throttle
        if not isinstance(throttle, (list, tuple, set)):
            given = [throttle]
        return any(isinstance(each, Limit) for each in given)

    named = [name for name, throttle in throttles if is_limited(throttle)]
    if named:
        _log().warning(
            "Limits are not kept in this worker: throttlekit is not installed in it, and %d of its tasks name limits, "
            "such as %s. To install it, %s.",
            len(named),
            min(named),
            _REMEDIES[framework],
        )


def _log() -> logging.Logger:
    import logging  # half of what `import throttlekit` costs

    return logging.getLogger("throttlekit")
