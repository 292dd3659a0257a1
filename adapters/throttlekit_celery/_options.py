"""Read and check the limits of each task, once, and give them to the check of a task."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from throttlekit import ConfigurationError, Delivery, Job, Limit, Limiter
from throttlekit.adapter import (
    MAX_WAIT,
    ON_429,
    OPTIONS,
    THROTTLE,
    JobOptions,
    WaitRules,
    check_function,
    check_spelling,
)
from throttlekit_celery._held_task import HeldTask
from throttlekit_celery._host import expires_in, job_of

__all__ = ["DECLARED", "TaskLimits"]

_log = logging.getLogger("throttlekit.celery")

DECLARED = "_throttlekit_declared"
"""The attribute of a function that holds the options of its `throttled`."""
_STRATEGY = "celery.worker.strategy:default"


class TaskLimits:
    """
    The options of each task, and the `Host` of `throttlekit.adapter.Throttling` in a worker's main process.

    Args:
        by_name: The limits by the task's name. They replace those of the task's own option `throttle`.

    Raises:
        ConfigurationError: *by_name* is not a mapping of names to limits.
    """

    def __init__(self, limiter: Limiter, by_name: Mapping[str, Any] | None, rules: WaitRules) -> None:
        if by_name is not None and not isinstance(by_name, Mapping):
            raise ConfigurationError(
                f'throttle= takes a mapping of task names to limits, like {{"tasks.call": [limit]}}, not {by_name!r}'
            )
        self._limiter, self._rules = limiter, rules
        self._by_name: dict[str, tuple[Limit, ...]] = {}
        self._known: dict[str, JobOptions] = {}
        for name, spec in (by_name or {}).items():
            if not isinstance(name, str):
                raise ConfigurationError(f"throttle= takes task names, not {name!r}: write task.name")
            given = {THROTTLE: spec}
            self._by_name[name] = JobOptions.declared(f"task {name!r}", given, limiter=limiter).limits

    def check(self, app: Any) -> None:
        """
        Read the limits of every task of *app*.

        Raises:
            ConfigurationError: The limits of a task can never work; the message names the task.
        """
        for task in list(app.tasks.values()):
            self.of(task)
        for name in sorted(set(self._by_name) - set(app.tasks)):
            _log.warning("install(throttle=…) names a task %r, which this worker does not know.", name)

    def of(self, task: Any) -> JobOptions:
        """
        Return the options of *task*.

        Raises:
            ConfigurationError: The options can never work. The message names the task.
        """
        options = self._known.get(task.name)
        if options is None:
            given = {option: getattr(task, option, None) for option in OPTIONS}
            if (declared := getattr(task.run, DECLARED, None)) is not None:
                if given[THROTTLE] is not None:
                    raise ConfigurationError(
                        f"task {task.name!r} has limits by throttle= and by @throttled: name them once"
                    )
                given |= {THROTTLE: declared.limits, ON_429: declared.on_429}
            if task.name in self._by_name:
                given[THROTTLE] = self._by_name[task.name]
            options = JobOptions.declared(f"task {task.name!r}", given, limiter=self._limiter, function=task.run)
            if options.limits and task.Strategy != _STRATEGY:
                raise ConfigurationError(
                    f"task {task.name!r}: its class has its own Strategy (as in celery-batches), which does not check "
                    "limits: remove the limits, and call the limiter in the body"
                )
            self._known[task.name] = options
        return options

    def may_limit(self, task: Any) -> bool:
        """Return whether *task* may have limits. If its limits can never work, it fails before its body: False."""
        try:
            return bool(self.of(task).limits) or self._limiter.events.configures_limits
        except ConfigurationError:
            return False

    def check_declaration(self, options: Mapping[str, Any]) -> Callable[[Callable[..., Any]], None] | None:
        """
        Check the *options* of a task that is being declared.

        Returns:
            A check for the task's function, which is not known yet, or None if the options name no limits.

        Raises:
            ConfigurationError: The options can never work. The returned check raises it too.
        """
        check_spelling("a task", options)
        limits = JobOptions.read(
            options.get(THROTTLE),
            on_429=options.get(ON_429) if THROTTLE in options else None,  # install(throttle=…) may set the limits
            max_wait=options.get(MAX_WAIT),
            limiter=self._limiter,
        ).limits
        return (lambda function: check_function(limits, function)) if limits else None

    def options(self, message: HeldTask) -> JobOptions:
        return self.of(message.request.task)

    def job(self, message: HeldTask) -> Job:
        return job_of(message.request.task, message.request, queue=message.queue or "")

    def delivery(self, message: HeldTask, max_wait: float | None) -> Delivery:
        """Return the `Delivery` of *message*: its longest wait, and the time at which it expires."""
        return self._rules.delivery(Delivery(), max_wait, expires_in=expires_in(message.request))
