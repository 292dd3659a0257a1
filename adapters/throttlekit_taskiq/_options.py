"""The limits of a task: read where it is declared, written into a message's labels, and read in the worker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from taskiq import AsyncBroker, TaskiqMessage
from taskiq.decor import AsyncTaskiqDecoratedTask
from taskiq.kicker import AsyncKicker
from taskiq.labels import LabelType

from throttlekit import ConfigurationError, Delivery, Job, Limiter
from throttlekit.adapter import OPTIONS, THROTTLE, Admitted, JobOptions, WaitRules, check_spelling, watched
from throttlekit_taskiq._held import Delivered

__all__ = ["Asked", "Options"]

_GIVEN = "__throttlekit__"
"""The attribute of a watched function: its task's name, the options as written, and the function as it was."""
_Task: TypeAlias = "AsyncTaskiqDecoratedTask[Any, Any]"


@dataclass(slots=True)
class Asked:
    """
    A message that is asked for in this callback.

    Attributes:
        delivered: How it came; None: its broker has no stream of messages.
        woken: Set when it is to ask again, if its broker has no stream.
        admitted: How it may run, once that is known.
    """

    message: TaskiqMessage
    delivered: Delivered | None
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    admitted: Admitted | None = None


class Options:
    """Reads tasks and messages: the `Host` of `throttlekit.adapter.Throttling`."""

    def __init__(
        self,
        limiter: Limiter,
        rules: WaitRules,
        broker: AsyncBroker,
        admitted: Callable[[], Admitted | None],
    ) -> None:
        self._limiter, self._rules, self._broker, self._admitted = limiter, rules, broker, admitted
        self._of_task: dict[str, tuple[JobOptions, Callable[..., Any]]] = {}

    def declare(self, task: _Task) -> None:
        """
        Read the options of *task*, unless that is done. They leave its labels, which travel as text.

        Raises:
            ConfigurationError: An option can never work.
        """
        name, body = task.task_name, task.original_func
        check_spelling(f"task {name!r}", task.labels)
        if getattr(body, _GIVEN, ("",))[0] != name:
            given = {option: task.labels.pop(option) for option in OPTIONS if option in task.labels}
            task.original_func = watched(body, self._admitted)
            setattr(task.original_func, _GIVEN, (name, given, body))
        elif name in self._of_task:
            return
        # Brokers may share the task, which has lost its labels to the first of them.
        _, given, function = getattr(task.original_func, _GIVEN)
        options = JobOptions.declared(f"task {name!r}", given, limiter=self._limiter, function=function)
        self._of_task[name] = options, function
        kicker = task.kicker
        task.kicker = lambda: _Kicker(kicker(), self)  # type: ignore[method-assign]

    def travelling(self, name: str, labels: Mapping[str, Any], args: Any, kwargs: Any) -> dict[str, Any]:
        """
        *labels* with limits of their own by value, as text.

        Raises:
            ConfigurationError: An option can never work.
        """
        options, function = self._of_task[name]
        check_spelling(f"a message of task {name!r}", labels)
        job = Job(name=name, args=args, kwargs=kwargs, function=function)
        travel = options.travelling(_carried(labels), job)
        if THROTTLE in travel:
            travel[THROTTLE] = json.dumps(travel[THROTTLE])
        return {**labels, **travel}

    def check_sent(self, message: TaskiqMessage) -> None:
        """
        Raises:
            ConfigurationError: *message* was to bring limits, and taskiq has made text of the objects.
        """
        if (message.labels_types or {}).get(THROTTLE) == LabelType.ANY:
            raise ConfigurationError(
                f"task {message.task_name!r}: its broker has no Throttle, or has it since its `startup()` only, so "
                "throttle= went into the message as text: add the middleware before the task is declared"
            )

    def of_task(self, name: str) -> tuple[JobOptions, Callable[..., Any]]:
        """What the task *name* was declared with, and its function."""
        if name not in self._of_task:
            task = self._broker.find_task(name)
            assert task is not None, name  # noqa: S101 - the receiver has found it just now
            self.declare(task)
        return self._of_task[name]

    def options(self, message: Asked) -> JobOptions:
        return self.of_task(message.message.task_name)[0].with_message(_carried(message.message.labels))

    def job(self, message: Asked) -> Job:
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

    def delivery(self, message: Asked, max_wait: float | None) -> Delivery:
        return self._rules.delivery(Delivery(), max_wait)


class _Kicker(AsyncKicker[Any, Any]):
    """Writes limits that are given with one message into its labels by value, before taskiq makes text of them."""

    def __init__(self, kicker: AsyncKicker[Any, Any], options: Options) -> None:
        self.__dict__.update(kicker.__dict__)
        self._options = options

    def _prepare_message(self, *args: Any, **kwargs: Any) -> TaskiqMessage:
        labels = self.labels
        self.labels = self._options.travelling(self.task_name, labels, args, kwargs)
        try:
            return super()._prepare_message(*args, **kwargs)
        finally:
            self.labels = labels  # of its next message, keys and costs are others


def _carried(labels: Mapping[str, Any]) -> dict[str, Any]:
    """Our options among *labels*, in which limits are text once they travel."""
    found = {option: labels[option] for option in OPTIONS if option in labels}
    if isinstance(found.get(THROTTLE), str):
        with suppress(ValueError):
            found[THROTTLE] = json.loads(found[THROTTLE])
    return found
