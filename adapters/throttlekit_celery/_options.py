"""Which limits a task has, read once for each task, and checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from throttlekit import ConfigurationError, Limit, Limiter
from throttlekit._core.durations import seconds_in
from throttlekit.adapter.options import limits_in
from throttlekit.adapter.rate_limited import check_on_429

__all__ = ["MAX_WAIT", "ON_429", "OPTION", "TaskLimits"]

OPTION = "throttle"
MAX_WAIT = "throttle_max_wait"
ON_429 = "on_429"

_STRATEGY = "celery.worker.strategy:default"


class TaskLimits:
    """
    Looks up limits by task: those of *by_name* first, then the task's own option `throttle`.

    Raises:
        ConfigurationError: *by_name* is no mapping of names to limits.
    """

    def __init__(self, limiter: Limiter, by_name: Mapping[str, Any] | None) -> None:
        if by_name is not None and not isinstance(by_name, Mapping):
            raise ConfigurationError(
                f'throttle= takes a mapping of task names to limits, like {{"tasks.call": [limit]}}, not {by_name!r}'
            )
        self._limiter = limiter
        self._by_name: dict[str, tuple[Limit, ...]] = {}
        self._known: dict[str, tuple[Limit, ...]] = {}
        for name, spec in (by_name or {}).items():
            if not isinstance(name, str):
                raise ConfigurationError(f"throttle= takes task names, not {name!r}: write task.name")
            self._by_name[name] = self._read(name, spec)

    @property
    def names(self) -> set[str]:
        """The tasks that were given limits by name."""
        return set(self._by_name)

    def check_options(self, options: Mapping[str, Any]) -> tuple[Limit, ...]:
        """
        The limits among the options of a task that is being declared.

        Raises:
            ConfigurationError: They can never work.
        """
        seconds_in(MAX_WAIT, options.get(MAX_WAIT))
        limits = limits_in(options.get(OPTION))
        self._limiter.declare(*limits)
        if OPTION in options:
            check_on_429(options.get(ON_429), limits)
        return limits

    def check_function(self, limits: Iterable[Limit], function: Callable[..., Any]) -> None:
        """
        Make sure that the keys of *limits* can be worked out from the arguments of *function*.

        Raises:
            ConfigurationError: One cannot; the message names the function.
        """
        for limit in limits:
            limit.check_function(function)

    def of(self, task: Any) -> tuple[Limit, ...]:
        """
        The limits of *task*.

        Raises:
            ConfigurationError: They can never work; the message names the task.
        """
        limits = self._known.get(task.name)
        if limits is None:
            limits = self._by_name.get(task.name)
            if limits is None:
                limits = self._read(task.name, getattr(task, OPTION, None))
            if limits and task.Strategy != _STRATEGY:
                raise ConfigurationError(
                    f"task {task.name!r}: its class has a Strategy of its own (celery-batches has), which hands tasks "
                    "to the pool past their limits: take them away, and ask the limiter in the body"
                )
            try:
                self.check_function(limits, task.run)
                check_on_429(self.on_429_of(task), limits)
            except ConfigurationError as error:
                raise ConfigurationError(f"task {task.name!r}: {error}") from error
            _max_wait(task.name, getattr(task, MAX_WAIT, None))
            self._known[task.name] = limits
        return limits

    def any_of(self, task: Any) -> bool:
        """Whether *task* has limits; one whose limits can never work has none that would be asked."""
        try:
            return bool(self.of(task))
        except ConfigurationError:
            return False

    def max_wait_of(self, task: Any) -> float | None:
        """The task's own longest wait, in seconds; None: it has none of its own."""
        return _max_wait(task.name, getattr(task, MAX_WAIT, None))

    def on_429_of(self, task: Any) -> Any:
        """The task's own say which limit is paused when its body hears "429"; None: it has none."""
        return getattr(task, ON_429, None)

    def _read(self, name: str, spec: Any) -> tuple[Limit, ...]:
        try:
            limits = limits_in(spec)
            self._limiter.declare(*limits)
        except ConfigurationError as error:
            raise ConfigurationError(f"task {name!r}: {error}") from error
        return limits


def _max_wait(name: str, value: Any) -> float | None:
    if value is None:
        return None
    try:
        return seconds_in(MAX_WAIT, value)
    except ConfigurationError as error:
        raise ConfigurationError(f"task {name!r}: {error}") from error
