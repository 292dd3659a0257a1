"""The limits of a task: the options of `@huey.task(…)`, and those of one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from datetime import date, timedelta
from functools import partialmethod
from inspect import getclosurevars
from typing import Any

from huey.api import TaskWrapper  # type: ignore[import-untyped]

from throttlekit import Job, Limiter
from throttlekit.adapter import OPTIONS, JobOptions, check_spelling

__all__ = ["ADMITTED", "COPY", "FIELD", "Tasks", "carried", "carry", "throttled_wrapper"]

ADMITTED = "_throttlekit_admitted"
"""The attribute of a task whose body may begin: its `Admitted`."""

FIELD = "throttlekit.huey"
"""The keyword argument in which a message carries options of its own, and `COPY`. The body never gets it."""
COPY = "copy"
"""The key in `FIELD` of a random text, which makes the message of a denied task unique."""
_HUEYS = {"delay", "eta", "expires", "id", "priority", "retries", "retry_backoff", "retry_delay", "timeout"}
"""What huey takes off the keyword arguments of a call."""
_TASK_WRAPPER: Any = TaskWrapper


def carried(task: Any) -> Mapping[str, Any]:
    """What the message of *task* carries for us."""
    return task.kwargs.get(FIELD) or {}


def carry(task: Any, **more: str) -> None:
    """Let the message of *task* carry its own options and *more*, and nothing that another version wrote."""
    field = {name: value for name, value in carried(task).items() if name in OPTIONS} | more
    own = {name: value for name, value in task.kwargs.items() if name != FIELD}
    task.kwargs = {**own, FIELD: field} if field else own


class Tasks:
    """
    The tasks of one huey, as limits see them.

    Attributes:
        names: Those that have limits, by their names in messages.
    """

    def __init__(self, huey: Any, limiter: Limiter) -> None:
        self._huey, self._limiter = huey, limiter
        self._declared: dict[type, tuple[JobOptions, Callable[..., Any] | None]] = {}
        self.names: list[str] = []

    def declare(self, made: Any, function: Callable[..., Any] | None = None) -> None:
        """
        Read the options of a task class, and watch its body, which is *function*.

        Raises:
            ConfigurationError: They can never work.
        """
        function = function or getclosurevars(made.execute).nonlocals["func"]
        check_spelling(f"task {made.__name__!r}", made.__dict__)
        given = {name: getattr(made, name, None) for name in OPTIONS}
        options = JobOptions.declared(f"task {made.__name__!r}", given, limiter=self._limiter, function=function)
        self._declared[made] = options, function
        if options.limits:
            self.names.append(_name(made))
        made.execute = partialmethod(_execute, made.execute)

    def write(self, made: type, args: tuple[Any, ...], kwargs: dict[str, Any], options: dict[str, Any]) -> None:
        """
        Take ours out of the *options* of one call, and add to its *kwargs* what travels of them: limits by value.

        Raises:
            ConfigurationError: They can never work.
        """
        check_spelling(f"a call of task {made.__name__!r}", options, self._of(made)[1])
        if given := {name: options.pop(name) for name in OPTIONS if name in options}:
            own = {name: value for name, value in kwargs.items() if name not in _HUEYS}
            kwargs[FIELD] = self._of(made)[0].travelling(given, self._job(made, args, own))

    def declared(self, message: Any) -> JobOptions:
        """What all messages of a task are held to that bring nothing of their own."""
        return self._of(type(message))[0]

    def options(self, message: Any) -> JobOptions:
        """
        What a task is held to.

        Raises:
            ConfigurationError: Its message carries what throttlekit did not write.
        """
        return self.declared(message).with_message(carried(message))

    def job(self, message: Any) -> Job:
        """A task as limits see it."""
        return replace(self._job(type(message), tuple(message.args), message.kwargs), id=message.id)

    def read(self, message: Any) -> Any:
        """The task of a message as its serializer gives it, also of one that huey knows no longer; None: unknown."""
        made = next((each for each in self._declared if _name(each) == message.name), None)
        return made and made(message.args, message.kwargs, message.id)

    def _job(self, made: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Job:
        kwargs = {name: value for name, value in given.items() if name != FIELD}
        if made.context:
            kwargs["task"] = None  # huey gives the function the task itself
        function = self._of(made)[1]
        return Job(name=_name(made), queue=self._huey.name, args=args, kwargs=kwargs, function=function)

    def _of(self, made: Any) -> tuple[JobOptions, Callable[..., Any] | None]:
        return self._declared.get(made) or (JobOptions(), None)


def _execute(task: Any, execute: Callable[[Any], Any]) -> Any:
    """The body of *task*, as an admitted job if it is one; what its message carries for us is hidden from it."""
    field, admitted = task.kwargs.pop(FIELD, None), task.__dict__.pop(ADMITTED, None)
    try:
        with nullcontext() if admitted is None else admitted.around():
            return execute(task)
    finally:
        if field is not None:
            task.kwargs[FIELD] = field


def _name(made: type) -> str:
    return f"{made.__module__}.{made.__name__}"  # as huey's registry does


def _positional(args: Any) -> Any:
    return () if isinstance(args, (int, float, date, timedelta)) else args or ()  # huey takes a delay here as well


def throttled_wrapper(base: Any, tasks: Tasks) -> Any:
    """The class of what `@huey.task` returns: *base*, which checks our options, and takes them with a call too."""

    class ThrottledTaskWrapper(base):  # type: ignore[misc]
        task_class: Any

        def __init__(self, huey: Any, func: Any, *args: Any, **settings: Any) -> None:
            # A task of another huey: huey itself recognizes only those of this class.
            is_task = isinstance(func, _TASK_WRAPPER)
            base.__init__(self, huey, func.func if is_task else func, *args, **settings)

        def create_task(self, func: Any, *args: Any, **settings: Any) -> Any:
            made: Any = base.create_task(self, func, *args, **settings)
            tasks.declare(made, func)
            return made

        def s(self, *args: Any, **kwargs: Any) -> Any:
            tasks.write(self.task_class, args, kwargs, kwargs)
            return base.s(self, *args, **kwargs)

        def schedule(self, args: Any = None, kwargs: Any = None, *others: Any, **options: Any) -> Any:
            kwargs = dict(kwargs or {})
            tasks.write(self.task_class, _positional(args), kwargs, options)
            return base.schedule(self, args, kwargs, *others, **options)

    return ThrottledTaskWrapper
