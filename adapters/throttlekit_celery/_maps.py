"""
`.map`, `.starmap` and `.chunks` of a task: one message whose body calls the task's function for each item of a list.

These methods are rejected for tasks with limits, because the body would call the function without limits. The items
cannot be charged together either: a list longer than the burst would never be admitted, items may have different keys,
and after a 429 of one item the items before it would run again.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NoReturn

from throttlekit import ConfigurationError, Job
from throttlekit.adapter import Throttling
from throttlekit_celery._options import TaskLimits

__all__ = ["refusal_of", "refuse_maps"]

_MAPS = ("celery.map", "celery.starmap")  # chunks are sent as starmaps
_METHODS = ("map", "starmap", "chunks")


def refuse_maps(task: Any) -> None:
    """Replace `.map`, `.starmap` and `.chunks` of *task* by functions that raise an error."""
    for method in _METHODS:
        setattr(task, method, partial(_refuse, task.name, method))


def _refuse(name: str, method: str, *_: Any, **__: Any) -> NoReturn:
    raise _error(name, f".{method}()")


def refusal_of(request: Any, throttling: Throttling[Any], limits: TaskLimits) -> ConfigurationError | None:
    """Return the error for *request* if it maps a task with limits; senders without `install` do not check this."""
    if request.task.name not in _MAPS:
        return None
    try:
        task = request.task.app.tasks[request.kwargs["task"]["task"]]
        options = limits.of(task)
        limited = throttling.concerns(options) and any(throttling.limits(options, job) for job in _items(request, task))
    except (LookupError, TypeError):
        return None  # Celery's own error for this request is clearer
    except ConfigurationError as error:
        return error
    return _error(task.name, request.task.name) if limited else None


def _items(request: Any, task: Any) -> Iterator[Job]:
    for item in request.kwargs["it"]:
        args = tuple(item) if request.task.name == "celery.starmap" else (item,)
        yield Job(id=request.id, name=task.name, args=args, kwargs={}, function=task.run)


def _error(name: str, how: str) -> ConfigurationError:
    return ConfigurationError(
        f"task {name!r} has limits, and {how} would run its function for each item without them: send a group of "
        f"{name!r}, or declare a task that takes the list, with a cost"
    )
