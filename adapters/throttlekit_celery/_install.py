"""
The one call: it checks options, finds the tasks, and makes workers put back the tasks that they hold.

It keeps the app lazy: it reads neither `app.tasks` nor `app.conf`, which would bind all tasks and evaluate the
configuration before the user has completed it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Literal

from throttlekit import ConfigurationError, Limit, Limiter
from throttlekit.adapter import OnWaitedTooLong, WaitRules, check_limiter, seconds_in
from throttlekit_celery._admission import Admission
from throttlekit_celery._body import Bodies
from throttlekit_celery._eager import waits_in_place
from throttlekit_celery._host import (
    RUN,
    StartStopStep,
    as_celery,
    has_delayed_delivery,
    in_pool_process,
    real_app,
    whenever_made,
)
from throttlekit_celery._installed import Installed, add, installed_in
from throttlekit_celery._log import show_log
from throttlekit_celery._options import TaskLimits
from throttlekit_celery._worker import Settings

__all__ = ["admission_of", "install"]

_DELAYED_DELIVERY = ("celery.worker.consumer.delayed_delivery:DelayedDelivery",) if has_delayed_delivery() else ()
_STEPS_BEFORE = ("celery.worker.consumer.tasks:Tasks", *_DELAYED_DELIVERY)


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

    A denied task waits in the worker's main process, unacknowledged, and runs when it is its turn, with the same id,
    arguments, options, retries, result, chain and chord. Call `install` once, where the app is made; tasks and settings
    may come before or after it. A process that only sends tasks does not need it.

    Args:
        limiter: The limiter that decides. Make it at import; it connects on first use.
        throttle: Limits by task name, for tasks of other packages. They replace the task's own option `throttle`; None
            or an empty list frees a task from that option.
        max_wait: How long a task may wait in all, in seconds, from its first denial. The option
            `throttle_max_wait` of a task replaces it. Default: no limit.
        max_deferrals: How often a task may be denied. Default: any number of times.
        on_waited_too_long: What happens to a task that exceeds one of them, or that a full `queue=` refuses: "fail"
            ends it as FAILURE with `WaitedTooLong`, "drop" as REVOKED, "run" runs it uncharged, **beyond the limit**.
        max_hold: The longest that a worker holds a task unacknowledged, in seconds. Default: 10 minutes, or
            a third of `visibility_timeout` or of a queue's `x-consumer-timeout` if that is less. Set it to a
            third of RabbitMQ's `consumer_timeout` if that is less than 30 minutes on your server.
        max_held: With more than this many tasks held, a worker fetches nothing new until some have run.
        eager: With `task_always_eager`: "ignore" limits, or "wait" for them in place.

    Raises:
        ConfigurationError: An argument can never work, it was called before for this app, or this is a
            process of a worker's pool.
    """
    app = _app(app)
    check_limiter(limiter, 'install takes a limiter: install(app, Limiter("redis://…"))')
    if in_pool_process():
        raise ConfigurationError("install(app, …) in a pool process comes too late: call it where the app is made")
    if installed_in(app) is not None:
        raise ConfigurationError("install(app, …) was called before for this app: each task would be charged twice")
    if eager not in ("ignore", "wait"):
        raise ConfigurationError(f'eager must be "ignore" or "wait", not {eager!r}')
    limits = TaskLimits(limiter, throttle)
    settings = Settings(
        rules=WaitRules.read(max_wait, max_deferrals, on_waited_too_long),
        max_hold=None if max_hold is None else _hold(max_hold),
        max_held=_whole("max_held", max_held, 1),
    )
    admission = Admission(app, limiter, limits, settings)
    if app.finalized:
        admission.check()
    waits = waits_in_place(limiter, limits) if eager == "wait" else None
    installed = Installed(admission, Bodies(admission.throttling, limits), limits, waits)
    app.task = _checking(app.task, limits)
    app.steps["consumer"].add(_step(installed))
    whenever_made(app, installed.listen)  # a process without a worker may never finalize the app
    if app.finalized:
        installed.listen_all(app)
    add(app, installed)
    show_log()


def admission_of(app: Any) -> Admission | None:
    """The `Admission` of *app*; None if `install` was not called for it."""
    installed = installed_in(_app(app))
    return installed.admission if installed is not None else None


def _app(app: Any) -> Any:
    real = real_app(app)
    if real is None:
        raise ConfigurationError(f"install takes a Celery app: install(app, limiter), not {app!r}")
    return real


def _hold(value: float | timedelta) -> float:
    seconds = seconds_in("max_hold", value)
    if seconds < 1:
        raise ConfigurationError(f"max_hold must be at least 1 s, not {value!r}: tasks would go round and round")
    return seconds


def _whole(option: str, value: object, least: int) -> int:
    if type(value) is not int or value < least:
        raise ConfigurationError(f"{option} must be a whole number of at least {least}, not {value!r}")
    return value


def _checking(task: Callable[..., Any], limits: TaskLimits) -> Callable[..., Any]:
    """`app.task`, with a check of our options: Celery itself reads them later, in the worker."""

    @functools.wraps(task)
    @as_celery
    def checked(*args: Any, **options: Any) -> Any:
        check_function = limits.check_declaration(options)
        declared = task(*args, **options)
        if args or check_function is None:
            return declared

        @as_celery
        def declare(function: Callable[..., Any]) -> Any:
            check_function(function)
            return declared(function)

        return declare

    return checked


def _step(installed: Installed) -> type[Any]:
    admission = installed.admission

    class ThrottlekitHeld(StartStopStep):  # type: ignore[misc]
        """Checks the limits of all tasks as the worker starts, and puts back what it holds as it stops."""

        requires = _STEPS_BEFORE

        def __init__(self, consumer: Any, **options: Any) -> None:
            admission.check()
            super().__init__(consumer, **options)  # pyright: ignore[reportUnknownMemberType]

        def start(self, consumer: Any) -> None:
            admission.start(consumer)

        def stop(self, consumer: Any) -> None:
            # Celery 5.7 may end because its connection is lost: then too nothing can be acknowledged any more, and a
            # copy would be one too many.
            if consumer.controller.blueprint.state == RUN or consumer.connection is None:
                admission.disconnected(consumer)
            else:
                admission.stop(consumer)

        terminate = stop

    return ThrottlekitHeld
