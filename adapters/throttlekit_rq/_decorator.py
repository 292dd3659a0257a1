"""The decorator that applies limits to a function: `@throttled(partner)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from throttlekit import ConfigurationError, Limit, Limiter
from throttlekit.adapter import JobOptions, check_function, check_limiter
from throttlekit_rq._body import wrap_call
from throttlekit_rq._in_worker_process import call_of
from throttlekit_rq._options import DECLARED, Declared

__all__ = ["throttled"]

_F = TypeVar("_F", bound=Callable[..., Any])


def throttled(*limits: Limit, limiter: Limiter | None = None, on_429: Limit | str | None = None) -> Callable[[_F], _F]:
    """
    Apply *limits* to every job of a plain or async function, in every worker, including stock workers of RQ.

        @throttled(TokenBucket("partner", "10/s"))
        def push(contact_id): ...

    Write `@throttled` above all other decorators except `@job`, which may be above or below it. A direct call of the
    function, outside of a job or in the body of another job, is not limited.

    Args:
        limits: The limits that must all admit a job before it runs.
        limiter: The limiter that decides. Default: the limiter of `configure`, otherwise the Redis of $THROTTLEKIT_URL,
            otherwise the Redis of the job's queue.
        on_429: The one of *limits* that is paused when the body raises `throttlekit.RateLimited` without naming a
            limit. Default: all limits except concurrency limits.

    Raises:
        ConfigurationError: *limits* is empty or has an element that is not a limit, a key names an argument that the
            function does not have, or *on_429* is not one of the limits.
    """
    if limiter is not None:
        check_limiter(limiter, 'limiter= takes a limiter: Limiter("redis://…")')
    if not limits or callable(limits[0]):
        raise ConfigurationError("throttled takes limits: write @throttled(partner), not @throttled")
    declared = Declared(JobOptions.read(limits, on_429=on_429, limiter=limiter), limiter)

    def decorate(function: _F) -> _F:
        try:
            check_function(declared.options.limits, function)
        except ConfigurationError as error:
            raise ConfigurationError(f"function {function.__qualname__!r}: {error}") from None
        wrapper: Any = wrap_call(function, lambda: call_of(wrapper, function))
        setattr(wrapper, DECLARED, declared)
        result: _F = wrapper
        return result

    return decorate
