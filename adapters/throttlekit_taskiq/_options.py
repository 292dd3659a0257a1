"""Read the limits of a task from its declaration, write them into a message's labels, and read the labels."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from taskiq import AsyncBroker, TaskiqMessage
from taskiq.decor import AsyncTaskiqDecoratedTask
from taskiq.kicker import AsyncKicker

from throttlekit import ConfigurationError, Delivery, Job, Limiter
from throttlekit.adapter import OPTIONS, THROTTLE, Admitted, JobOptions, WaitRules, check_spelling, watched
from throttlekit_taskiq._held import Delivered

__all__ = ["REQUEST", "Options", "Request"]

_GIVEN = "__throttlekit__"
"""The attribute of a watched function that holds its task's name, the declared options, and the original function."""


@dataclass(slots=True)
class Request:
    """
    The request for the message of one callback.

    Attributes:
        delivered: The message from the broker. None if the broker is in memory.
        woken: The event that repeats the request, if the broker is in memory.
        admitted: The result of the request. None until it is known.
    """

    message: TaskiqMessage
    delivered: Delivered | None
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    admitted: Admitted | None = None


REQUEST: ContextVar[Request | None] = ContextVar("throttlekit_taskiq_request", default=None)
"""The request for the message of the running callback."""


class Options:
    """Reads the options of tasks and messages, as the `Host` of `throttlekit.adapter.Throttling`."""

    def __init__(self, limiter: Limiter, rules: WaitRules, broker: AsyncBroker) -> None:
        self._limiter, self._rules, self._broker = limiter, rules, broker
        self._of_task: dict[str, tuple[JobOptions, Callable[..., Any]]] = {}

    def declare(self, task: AsyncTaskiqDecoratedTask[Any, Any]) -> None:
        """
        Read the options of *task* once, and remove them from its labels, which taskiq would send as text.

        Raises:
            ConfigurationError: An option can never work.
        """
        name, body = task.task_name, task.original_func
        check_spelling(f"task {name!r}", task.labels)
        if getattr(body, _GIVEN, ("",))[0] != name:
            given = {option: task.labels.pop(option) for option in OPTIONS if option in task.labels}
            task.original_func = watched(body, _current_admission)
            setattr(task.original_func, _GIVEN, (name, given, body))
        elif name in self._of_task:
            return
        # Several brokers may share the task. The first broker has removed the options from the task's labels.
        _, given, function = getattr(task.original_func, _GIVEN)
        options = JobOptions.declared(f"task {name!r}", given, limiter=self._limiter, function=function)
        self._of_task[name] = options, function
        kicker = task.kicker
        task.kicker = lambda: _Kicker(kicker(), self)  # type: ignore[method-assign]

    def dump_labels(self, name: str, labels: Mapping[str, Any], args: Any, kwargs: Any) -> dict[str, Any]:
        """
        Return *labels* with the message's own limits dumped by value, as text.

        Raises:
            ConfigurationError: An option can never work.
        """
        options, function = self._of_task[name]
        check_spelling(f"a message of task {name!r}", labels)
        travel = options.travelling(_read_carried(labels), Job(name=name, args=args, kwargs=kwargs, function=function))
        if THROTTLE in travel:
            travel[THROTTLE] = json.dumps(travel[THROTTLE])
        # Without None, which taskiq would send as the text "None".
        return {**{name: value for name, value in labels.items() if name not in OPTIONS or value is not None}, **travel}

    def of_task(self, name: str) -> tuple[JobOptions, Callable[..., Any]]:
        """
        Return the declared options of the task *name*, and its function.

        Raises:
            ConfigurationError: The broker has no such task.
        """
        if name not in self._of_task:
            task = self._broker.find_task(name)
            if task is None:
                raise ConfigurationError(f"the broker has no task {name!r}")
            self.declare(task)
        return self._of_task[name]

    def options(self, message: Request) -> JobOptions:
        return self.of_task(message.message.task_name)[0].with_message(_read_carried(message.message.labels))

    def job(self, message: Request) -> Job:
        sent = message.message
        queue = sent.labels.get("queue_name") or getattr(self._broker, "queue_name", "taskiq")
        return Job(
            id=sent.task_id,
            name=sent.task_name,
            queue=str(queue),
            args=tuple(sent.args),
            kwargs=sent.kwargs,
            function=self.of_task(sent.task_name)[1],
        )

    def delivery(self, message: Request, max_wait: float | None) -> Delivery:
        return self._rules.delivery(Delivery(), max_wait)


def _current_admission() -> Admitted | None:
    return None if (request := REQUEST.get()) is None else request.admitted


class _Kicker(AsyncKicker[Any, Any]):
    """Dumps the limits of one message into its labels by value, before taskiq converts the labels to text."""

    def __init__(self, kicker: AsyncKicker[Any, Any], options: Options) -> None:
        self.__dict__.update(kicker.__dict__)
        self._options = options

    def _prepare_message(self, *args: Any, **kwargs: Any) -> TaskiqMessage:
        labels = self.labels
        self.labels = self._options.dump_labels(self.task_name, labels, args, kwargs)
        try:
            return super()._prepare_message(*args, **kwargs)
        finally:
            self.labels = labels  # the kicker's next message may have other keys and costs


def _read_carried(labels: Mapping[str, Any]) -> dict[str, Any]:
    """Return the throttle options in *labels*, with limits parsed, which are text in a message."""
    found = {option: labels[option] for option in OPTIONS if option in labels}
    if isinstance(found.get(THROTTLE), str):
        with suppress(ValueError):
            found[THROTTLE] = json.loads(found[THROTTLE])
    return found
