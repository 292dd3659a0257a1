"""The decorator that applies limits to a task's function: `@throttled(partner)`. It requires `install`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from throttlekit import ConfigurationError, Limit
from throttlekit.adapter import JobOptions, check_function
from throttlekit_celery._host import current_task
from throttlekit_celery._installation import installation_for
from throttlekit_celery._options import DECLARED

__all__ = ["throttled"]

_F = TypeVar("_F", bound=Callable[..., Any])


def throttled(*limits: Limit, on_429: Limit | str | None = None) -> Callable[[_F], _F]:
    """
    Apply *limits* to every task of a function. Write `@throttled` under `@app.task`:

        @app.task
        @throttled(partner)
        def call_partner(account_id): ...

    The effect is the same as that of `@app.task(throttle=[partner])`, with one difference: if `install(app, limiter)`
    was not called, a task with this decorator fails with `ConfigurationError`. A task with `throttle=` would run
    without a limit, because Celery ignores unknown options. A direct call of the function is not limited.

    Args:
        limits: The limits that must all admit a task before it runs.
        on_429: The one of *limits* that is paused when the body raises `throttlekit.RateLimited` without naming a
            limit. Default: all limits except concurrency limits.

    Raises:
        ConfigurationError: *limits* is empty or has an element that is not a limit, a key names an argument that the
            function does not have, or *on_429* is not one of the limits.
    """
    if not limits or callable(limits[0]):
        raise ConfigurationError("throttled takes limits: write @throttled(partner), not @throttled")
    options = JobOptions.read(limits, on_429=on_429)

    def decorate(function: _F) -> _F:
        if not callable(function) or hasattr(function, "apply_async"):
            raise ConfigurationError("write @throttled(…) under @app.task, not above it")
        try:
            check_function(options.limits, function)
        except ConfigurationError as error:
            raise ConfigurationError(f"function {function.__qualname__!r}: {error}") from None

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            task = current_task()
            if task is not None and not task.request.called_directly and installation_for(task.app) is None:
                raise ConfigurationError(
                    f"task {task.name!r} has limits, and no worker applies them: call install(app, limiter) "
                    "where the app is made"
                )
            return function(*args, **kwargs)

        setattr(guarded, DECLARED, options)
        result: Any = guarded
        return result  # type: ignore[no-any-return]

    return decorate
