"""
`install`, the only call that users need: it checks options, watches for tasks, and adds a step to the app's workers.

The app stays lazy: `install` reads neither `app.tasks` nor `app.conf`. Reading them would bind all tasks, and evaluate
the configuration before the user has completed it.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Literal

from throttlekit import ConfigurationError, Limit, Limiter
from throttlekit.adapter import OnWaitedTooLong, Throttling, WaitRules, check_limiter, checks_spelling, seconds_in
from throttlekit_celery._body import Bodies
from throttlekit_celery._eager import make_eager_wait
from throttlekit_celery._host import (
    RUN,
    StartStopStep,
    attribute_to_celery,
    is_pool_process,
    on_each_task,
    real_app,
)
from throttlekit_celery._installation import Installation, add, installation_of
from throttlekit_celery._options import TaskLimits

__all__ = ["install"]

_log = logging.getLogger("throttlekit.celery")


@checks_spelling
def install(
    app: Any,
    limiter: Limiter,
    *,
    throttle: Mapping[str, Limit | list[Limit] | None] | None = None,
    max_wait: float | timedelta | None = None,
    max_deferrals: int | None = None,
    on_waited_too_long: OnWaitedTooLong = "fail",
    max_hold: float | timedelta | None = None,
    max_held: int = 10_000,
    eager: Literal["ignore", "wait"] = "ignore",
) -> None:
    """
    Apply limits in the workers of *app*, together with all workers whose limiter uses the same store.

        app = Celery("shop", broker="redis://localhost/0")
        install(app, Limiter("redis://localhost/1"))

    A denied task waits in the worker's main process, unacknowledged, and runs at its turn, with the same id, arguments,
    options, retries, result, chain and chord. Call `install` once, in the module that creates the app, before or after
    the tasks and settings are defined. A process that only sends tasks does not have to call it.

    Args:
        app: The Celery app.
        limiter: The limiter that decides. Create it at import; it connects on first use.
        throttle: The limits of tasks of other packages, by task name. They replace the limits of the task's own option
            `throttle`. None or an empty list removes these limits.
        max_wait: The longest total wait of a task, in seconds from its first denial. The option `throttle_max_wait` of
            a task replaces this value. Default: no limit.
        max_deferrals: The maximum number of denials of a task. Default: no limit.
        on_waited_too_long: The action for a task that exceeds *max_wait* or *max_deferrals*, or that a full `queue=`
            rejects. "fail" ends it as FAILURE with `WaitedTooLong`. "drop" ends it as REVOKED. "run" runs it uncharged,
            **beyond the limit**.
        max_hold: The longest time for which a worker holds a task unacknowledged, in seconds. Default: 10 minutes, or
            a third of `visibility_timeout` or of a queue's `x-consumer-timeout` if that is less. If RabbitMQ's
            `consumer_timeout` is less than 30 minutes on your server, set *max_hold* to a third of it.
        max_held: The number of held tasks above which a worker fetches no new tasks until some have run.
        eager: The treatment of tasks that run with `task_always_eager`: "ignore" their limits, or "wait" in place.

    Raises:
        ConfigurationError: An argument can never work, `install` was already called for this app, or this is a
            process of a worker's pool.
    """
    if (real := real_app(app)) is None:
        raise ConfigurationError(f"install takes a Celery app: install(app, limiter), not {app!r}")
    app = real
    check_limiter(limiter, 'install takes a limiter: install(app, Limiter("redis://…"))')
    if is_pool_process():
        raise ConfigurationError("install(app, …) in a pool process is too late: call it where the app is made")
    if installation_of(app) is not None:
        raise ConfigurationError("install(app, …) was called before for this app: each task would be charged twice")
    if eager not in ("ignore", "wait"):
        raise ConfigurationError(f'eager must be "ignore" or "wait", not {eager!r}')
    if type(max_held) is not int or max_held < 1:
        raise ConfigurationError(f"max_held must be a whole number of at least 1, not {max_held!r}")
    rules = WaitRules.read(max_wait, max_deferrals, on_waited_too_long)
    limits = TaskLimits(limiter, throttle, rules)
    throttling = Throttling(limiter, limits, rules=rules, log=_log, noun="Task")
    installed = Installation(
        throttling,
        limits,
        Bodies(throttling, limits),
        wait_if_eager=make_eager_wait(limiter, limits) if eager == "wait" else None,
        max_hold=None if max_hold is None else _read_max_hold(max_hold),
        max_held=max_held,
    )
    if app.finalized:
        limits.check(app)
    app.task = _add_check(app.task, limits)
    app.steps["consumer"].add(_make_step(installed))
    on_each_task(app, installed.listen)  # a process without a worker may never finalize the app
    if app.finalized:
        installed.listen_all(app)
    add(app, installed)


def _read_max_hold(value: float | timedelta) -> float:
    seconds = seconds_in("max_hold", value)
    if seconds < 1:
        raise ConfigurationError(
            f"max_hold must be at least 1 s, not {value!r}: the worker would put tasks back all the time"
        )
    return seconds


def _add_check(task: Callable[..., Any], limits: TaskLimits) -> Callable[..., Any]:
    """Return `app.task` with a check of throttlekit's options, which Celery reads only later, in the worker."""

    @functools.wraps(task)
    @attribute_to_celery
    def task_with_check(*args: Any, **options: Any) -> Any:
        check_function = limits.check_declaration(options)
        declared = task(*args, **options)
        if args or check_function is None:
            return declared

        @attribute_to_celery
        def declare(function: Callable[..., Any]) -> Any:
            check_function(function)
            return declared(function)

        return declare

    return task_with_check


def _make_step(installed: Installation) -> type[Any]:
    class ThrottlekitHeld(StartStopStep):  # type: ignore[misc]
        """Checks the limits of all tasks when the worker starts, and puts held tasks back when it stops."""

        requires = ("celery.worker.consumer.tasks:Tasks",)

        def __init__(self, consumer: Any, **options: Any) -> None:
            installed.limits.check(consumer.app)
            super().__init__(consumer, **options)  # pyright: ignore[reportUnknownMemberType]
            self._admission = installed.admission_of(consumer)
            # After a lost connection, Celery would first lower the prefetch count, and then set it to the value of a
            # worker that holds no tasks.
            consumer.app.conf.worker_enable_prefetch_count_reduction = False

        def start(self, consumer: Any) -> None:
            self._admission.start()

        def stop(self, consumer: Any) -> None:
            # Celery 5.7 may also stop because the connection is lost. Then the worker cannot acknowledge the original,
            # so a copy would make the task run twice.
            if consumer.controller.blueprint.state == RUN or consumer.connection is None:
                self._admission.on_disconnect()
            else:
                self._admission.stop()

        terminate = stop

    return ThrottlekitHeld
