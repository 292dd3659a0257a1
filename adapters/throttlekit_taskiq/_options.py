"""What a task is held to: read where it is declared, written into a message's labels, and read in the worker."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from taskiq import AsyncBroker, TaskiqMessage
from taskiq.decor import AsyncTaskiqDecoratedTask
from taskiq.kicker import AsyncKicker
from taskiq.labels import LabelType

from throttlekit import ConfigurationError, Delivery, Job, Limit, Limiter
from throttlekit.adapter import (
    MAX_WAIT,
    ON_429,
    THROTTLE,
    JobOptions,
    WaitRules,
    check_on_429,
    dump_limits,
    load_limits,
    name_of,
    read_limits,
    seconds_in,
)
from throttlekit_taskiq._held import Delivered

__all__ = ["TICKET", "Asked", "Options"]

TICKET = "throttlekit"
"""The label in which a message that goes back to the broker carries its ticket."""

_LATENESS = 0.05
_Task: TypeAlias = "AsyncTaskiqDecoratedTask[Any, Any]"


@dataclass(slots=True)
class Asked:
    """A message that is asked for, and how it came; None: its broker has no stream of messages."""

    message: TaskiqMessage
    delivered: Delivered | None
    ticket: Mapping[str, Any] | None


class Options:
    """
    Reads tasks and messages: the `Host` of `throttlekit.adapter.Throttling`.

    Args:
        watch: Makes of a task's function one that is watched while it runs.
    """

    def __init__(
        self, limiter: Limiter, rules: WaitRules, watch: Callable[[str, Callable[..., Any]], Callable[..., Any]]
    ) -> None:
        self._limiter, self._rules, self._watch = limiter, rules, watch
        self._of_task: dict[str, tuple[JobOptions, Callable[..., Any]]] = {}
        self.broker: AsyncBroker
        self.longest_hold = 0.0

    def declare(self, task: _Task) -> tuple[JobOptions, Callable[..., Any]]:
        """
        Read the options of *task*. They leave its labels, which travel as text.

        Raises:
            ConfigurationError: An option can never work.
        """
        name = task.task_name
        function: Any = task.original_func
        found = function
        read_as, read = getattr(found, "__throttlekit__", ("", None))
        if read is not None and (known := self._of_task.get(name)) is not None:
            return known
        if read is None or read_as != name:
            read = {option: task.labels.pop(option, None) for option in (THROTTLE, ON_429, MAX_WAIT)}
        else:  # brokers share the task, and it has lost its labels to the first of them
            function = found.__wrapped__
        try:
            options = JobOptions.read(
                read[THROTTLE], on_429=read[ON_429], max_wait=read[MAX_WAIT], limiter=self._limiter, function=function
            )
        except ConfigurationError as error:
            raise ConfigurationError(f"task {name!r}: {error}") from None
        self._of_task[name] = options, function
        if function is found:
            watched: Any = self._watch(name, function)
            watched.__throttlekit__ = name, read
            module, called = sys.modules.get(function.__module__), function.__name__
            if getattr(module, called, None) is function:  # a process pool finds it by this name, as taskiq has set it
                setattr(module, called, watched)
            task.original_func = watched
        kicker = task.kicker
        task.kicker = lambda: _Kicker(kicker(), self)  # type: ignore[method-assign]
        return options, function

    def travelling(self, name: str, labels: Mapping[str, Any], args: Any, kwargs: Any) -> dict[str, Any]:
        """
        *labels* with limits of their own by value, as text.

        Raises:
            ConfigurationError: An option can never work.
        """
        found = dict(labels)
        of_task, function = self._of_task[name]
        limits, fresh = of_task.limits, THROTTLE in found and not str(found[THROTTLE]).startswith("[{")
        if fresh:
            limits = read_limits(found[THROTTLE])
            job = Job(name=name, args=args, kwargs=kwargs, function=function)
            found[THROTTLE] = json.dumps(dump_limits(limits, job))
        if (on_429 := found.get(ON_429)) is not None:
            if fresh or THROTTLE not in found:
                check_on_429(on_429, limits)
            found[ON_429] = name_of(on_429)
        if found.get(MAX_WAIT) is not None:
            found[MAX_WAIT] = seconds_in(MAX_WAIT, found[MAX_WAIT])
        return found

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

    def limits_nothing(self, message: TaskiqMessage) -> bool:
        """Whether *message* names no limit; a plugin may add some."""
        return THROTTLE not in message.labels and not self._read(message.task_name)[0].limits

    def limits_of(self, name: str) -> tuple[Limit, ...]:
        """The limits that the task *name* was declared with."""
        return self._read(name)[0].limits

    def options(self, message: Asked) -> JobOptions:
        labels = message.message.labels
        own = self._read(message.message.task_name)[0]
        if THROTTLE in labels:
            try:
                own = replace(own, limits=load_limits(json.loads(labels[THROTTLE])), on_429=None)
            except (TypeError, ValueError):
                raise ConfigurationError("the label throttle is not one that throttlekit wrote") from None
        if labels.get(MAX_WAIT) is not None:
            own = replace(own, max_wait=seconds_in(MAX_WAIT, labels[MAX_WAIT]))
        return replace(own, on_429=str(labels[ON_429])) if ON_429 in labels else own

    def job(self, message: Asked) -> Job:
        told = message.message
        queue = told.labels.get("queue_name") or getattr(self.broker, "queue_name", "taskiq")
        return Job(
            id=told.task_id,
            name=told.task_name,
            queue=str(queue),
            args=tuple(told.args),
            kwargs=told.kwargs,
            function=self._read(told.task_name)[1],
            ticket=message.ticket,
        )

    def delivery(self, message: Asked, max_wait: float | None) -> Delivery:
        held = message.delivered is not None and message.delivered.waited
        return self._rules.delivery(Delivery(longest=self.longest_hold, lateness=_LATENESS, held=held), max_wait)

    def _read(self, name: str) -> tuple[JobOptions, Callable[..., Any]]:
        known = self._of_task.get(name)
        if known is None:
            task = self.broker.find_task(name)
            assert task is not None, name  # noqa: S101 - the receiver has found it just now
            known = self.declare(task)
        return known


class _Kicker(AsyncKicker[Any, Any]):
    """Writes limits that are given with one message into its labels by value, before taskiq makes text of them."""

    def __init__(self, kicker: AsyncKicker[Any, Any], options: Options) -> None:
        self.__dict__.update(kicker.__dict__)
        self._options = options

    def _prepare_message(self, *args: Any, **kwargs: Any) -> TaskiqMessage:
        self.labels = self._options.travelling(self.task_name, self.labels, args, kwargs)
        return super()._prepare_message(*args, **kwargs)
