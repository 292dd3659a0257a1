"""Read the limits of a task: the options of `@huey.task(…)`, and the options of one call."""

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

__all__ = ["ADMITTED", "COPY", "FIELD", "Tasks", "read_field", "throttled_wrapper", "write_field"]

ADMITTED = "_throttlekit_admitted"
"""The attribute of an admitted task that holds its `Admitted`."""

FIELD = "throttlekit.huey"
"""The keyword argument of a message with its own throttle options, and `COPY`. The body never receives it."""
COPY = "copy"
"""The key, in `FIELD`, of a random text that makes the message of a denied task unique."""
_HUEYS = {"delay", "eta", "expires", "id", "priority", "retries", "retry_backoff", "retry_delay", "timeout"}
"""The keyword arguments of a call that huey itself reads and removes."""
_TASK_WRAPPER: Any = TaskWrapper


def read_field(task: Any) -> Mapping[str, Any]:
    """Return the value of `FIELD` in the message of *task*: its own throttle options, and `COPY`."""
    return task.kwargs.get(FIELD) or {}


def write_field(task: Any, **more: str) -> None:
    """Set `FIELD` in the message of *task* to its own throttle options and *more*. Remove all other keys in `FIELD`."""
    field = {name: value for name, value in read_field(task).items() if name in OPTIONS} | more
    own = {name: value for name, value in task.kwargs.items() if name != FIELD}
    task.kwargs = {**own, FIELD: field} if field else own


class Tasks:
    """
    The tasks of one huey and their throttle options, as the `Host` of `throttlekit.adapter.Throttling`.

    Attributes:
        names: The names of the tasks with limits, as messages contain them.
    """

    def __init__(self, huey: Any, limiter: Limiter) -> None:
        self._huey, self._limiter = huey, limiter
        self._declared: dict[type, tuple[JobOptions, Callable[..., Any] | None]] = {}
        self.names: list[str] = []

    def declare(self, made: Any, function: Callable[..., Any] | None = None) -> None:
        """
        Read the options of a task class, and watch its body, which is *function*.

        Raises:
            ConfigurationError: An option can never work.
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
        Move throttlekit's options of one call from *options* to *kwargs*, in the form that a message carries.

        Raises:
            ConfigurationError: An option can never work.
        """
        check_spelling(f"a call of task {made.__name__!r}", options, self._of(made)[1])
        if given := {name: options.pop(name) for name in OPTIONS if name in options}:
            own = {name: value for name, value in kwargs.items() if name not in _HUEYS}
            kwargs[FIELD] = self._of(made)[0].travelling(given, self._job(made, args, own))

    def declared_options(self, message: Any) -> JobOptions:
        """Return the options of a task's declaration, which apply to each message without its own options."""
        return self._of(type(message))[0]

    def options(self, message: Any) -> JobOptions:
        """
        Return the options that apply to one message.

        Raises:
            ConfigurationError: The message carries options that throttlekit did not write.
        """
        return self.declared_options(message).with_message(read_field(message))

    def job(self, message: Any) -> Job:
        """Return the `Job` that limits read."""
        return replace(self._job(type(message), tuple(message.args), message.kwargs), id=message.id)

    def read(self, message: Any) -> Any:
        """Return the task of a deserialized message, even if huey's registry lacks it, or None if it is unknown."""
        made = next((each for each in self._declared if _name(each) == message.name), None)
        return made and made(message.args, message.kwargs, message.id)

    def _job(self, made: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Job:
        kwargs = {name: value for name, value in given.items() if name != FIELD}
        if made.context:
            kwargs["task"] = None  # huey passes the task itself to the function
        function = self._of(made)[1]
        return Job(name=_name(made), queue=self._huey.name, args=args, kwargs=kwargs, function=function)

    def _of(self, made: Any) -> tuple[JobOptions, Callable[..., Any] | None]:
        return self._declared.get(made) or (JobOptions(), None)


def _execute(task: Any, execute: Callable[[Any], Any]) -> Any:
    """Run the body of *task*, as an admitted job if it was admitted, without `FIELD` in its arguments."""
    field, admitted = task.kwargs.pop(FIELD, None), task.__dict__.pop(ADMITTED, None)
    try:
        with nullcontext() if admitted is None else admitted.around():
            return execute(task)
    finally:
        if field is not None:
            task.kwargs[FIELD] = field


def _name(made: type) -> str:
    return f"{made.__module__}.{made.__name__}"  # the name in huey's registry


def _positional(args: Any) -> Any:
    return () if isinstance(args, (int, float, date, timedelta)) else args or ()  # huey also accepts a delay here


def throttled_wrapper(base: Any, tasks: Tasks) -> Any:
    """Return a subclass of *base*, huey's class of decorated tasks, that checks the options of tasks and calls."""

    class ThrottledTaskWrapper(base):  # type: ignore[misc]
        task_class: Any

        def __init__(self, huey: Any, func: Any, *args: Any, **settings: Any) -> None:
            # *func* may be a task of another huey. Huey itself recognizes only tasks of this subclass.
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
