"""What tasks are held to: options of `@huey.task(…)`, and those that one call brings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date, timedelta
from inspect import getclosurevars
from typing import Any

from throttlekit import ConfigurationError, Job, Limiter
from throttlekit.adapter import MAX_WAIT, ON_429, THROTTLE, JobOptions, dump_limits, load_limits

__all__ = ["FIELD", "TICKET", "Tasks", "carried", "throttled_wrapper"]

FIELD = "throttlekit.huey"
"""The keyword argument in which a message carries options of its own, and its ticket. The body never gets it."""
TICKET = "ticket"
_OPTIONS = (THROTTLE, ON_429, MAX_WAIT)
_HUEYS = {"delay", "eta", "expires", "id", "priority", "retries", "retry_backoff", "retry_delay", "timeout"}
"""What huey takes off the keyword arguments of a call."""


def carried(task: Any) -> Mapping[str, Any]:
    """What the message of *task* carries for us."""
    return task.kwargs.get(FIELD) or {}


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
        Read the options of a task class; *function* is its body.

        Raises:
            ConfigurationError: They can never work.
        """
        function = function or getclosurevars(made.execute).nonlocals["func"]
        throttle, on_429, max_wait = (getattr(made, name, None) for name in _OPTIONS)
        try:
            options = JobOptions.read(
                throttle, on_429=on_429, max_wait=max_wait, limiter=self._limiter, function=function
            )
        except ConfigurationError as error:
            raise ConfigurationError(f"task {made.__name__!r}: {error}") from None
        self._declared[made] = options, function
        if options.limits:
            self.names.append(_name(made))

    def write(self, made: type, args: tuple[Any, ...], kwargs: dict[str, Any], given: Mapping[str, Any]) -> None:
        """
        Add to *kwargs* what travels of options *given* with one call of the task: limits by value.

        Raises:
            ConfigurationError: They can never work.
        """
        limits = given.get(THROTTLE, self._declared[made][0].limits)
        options = JobOptions.read(limits, on_429=given.get(ON_429), max_wait=given.get(MAX_WAIT))
        travels: dict[str, Any] = {ON_429: options.on_429, MAX_WAIT: options.max_wait}
        if THROTTLE in given:
            own = {name: value for name, value in kwargs.items() if name not in _HUEYS}
            travels[THROTTLE] = dump_limits(options.limits, self._job(made, args, own))
        kwargs[FIELD] = travels

    def options(self, message: Any) -> JobOptions:
        """
        What a task is held to.

        Raises:
            ConfigurationError: Its message carries what throttlekit did not write.
        """
        declared, given = self._of(type(message))[0], carried(message)
        if not given:
            return declared
        return JobOptions(
            limits=load_limits(given[THROTTLE]) if THROTTLE in given else declared.limits,
            on_429=given.get(ON_429) or declared.on_429,
            max_wait=declared.max_wait if given.get(MAX_WAIT) is None else given[MAX_WAIT],
        )

    def job(self, message: Any) -> Job:
        """A task as limits see it."""
        job = self._job(type(message), tuple(message.args), message.kwargs)
        return replace(job, id=message.id, ticket=carried(message).get(TICKET))

    def _job(self, made: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Job:
        kwargs = {name: value for name, value in given.items() if name != FIELD}
        if made.context:
            kwargs["task"] = None  # huey gives the function the task itself
        function = self._of(made)[1]
        return Job(name=_name(made), queue=self._huey.name, args=args, kwargs=kwargs, function=function)

    def _of(self, made: Any) -> tuple[JobOptions, Callable[..., Any] | None]:
        return self._declared.get(made) or (JobOptions(), None)


def _name(made: type) -> str:
    return f"{made.__module__}.{made.__name__}"  # as huey's registry does


def _positional(args: Any) -> Any:
    return () if isinstance(args, (int, float, date, timedelta)) else args or ()  # huey takes a delay here as well


def throttled_wrapper(base: Any, tasks: Tasks) -> Any:
    """The class of what `@huey.task` returns: *base*, which checks our options, and takes them with a call too."""

    class ThrottledTaskWrapper(base):  # type: ignore[misc]
        task_class: Any

        def create_task(self, func: Any, *args: Any, **settings: Any) -> Any:
            made: Any = base.create_task(self, func, *args, **settings)
            tasks.declare(made, func)
            return made

        def s(self, *args: Any, **kwargs: Any) -> Any:
            if given := {name: kwargs.pop(name) for name in _OPTIONS if name in kwargs}:
                tasks.write(self.task_class, args, kwargs, given)
            return base.s(self, *args, **kwargs)

        def schedule(self, args: Any = None, kwargs: Any = None, *others: Any, **options: Any) -> Any:
            if given := {name: options.pop(name) for name in _OPTIONS if name in options}:
                kwargs = dict(kwargs or {})
                tasks.write(self.task_class, _positional(args), kwargs, given)
            return base.schedule(self, args, kwargs, *others, **options)

    return ThrottledTaskWrapper
