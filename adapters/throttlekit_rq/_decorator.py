"""Limits on a function: `@throttled(partner)`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from throttlekit import ConfigurationError, Limit, Limiter
from throttlekit.adapter.options import limits_in
from throttlekit.adapter.rate_limited import check_on_429
from throttlekit_rq._in_worker_process import throttled_call
from throttlekit_rq._options import THROTTLE, OfFunction, name_of

__all__ = ["throttled"]

_F = TypeVar("_F", bound=Callable[..., Any])


def throttled(*limits: Limit, limiter: Limiter | None = None, on_429: Limit | str | None = None) -> Callable[[_F], _F]:
    """
    Hold every job of a function to *limits*, in every worker, stock ones too.

    Write it above all other decorators but `@job`, which may stand on either side. Works for plain and
    async functions. Called directly, outside of a job or by the body of another, the function just runs.

    Args:
        limiter: Asks the store. Default: what `configure` was told, else the Redis of
            $THROTTLEKIT_URL, else the one that the job came from.
        on_429: Which of *limits* is paused when the body raises `throttlekit.RateLimited` and does not say.
            Default: all but those of concurrency.

    Raises:
        ConfigurationError: No limit was given, or what was given is none, or a key names an argument
            that the function does not take, or *on_429* is none of the limits.
    """
    if limiter is not None and not isinstance(limiter, Limiter):
        raise ConfigurationError(f'limiter= takes a limiter: Limiter("redis://…"), not {limiter!r}')
    if not limits or callable(limits[0]):
        raise ConfigurationError("throttled takes limits: write @throttled(partner), not @throttled")
    known = limits_in(list(limits))
    check_on_429(on_429, known)
    terms = OfFunction(known, limiter, name_of(on_429))
    if limiter is not None:
        limiter.declare(*terms.limits)

    def decorate(function: _F) -> _F:
        try:
            for limit in terms.limits:
                limit.check_function(function)
        except ConfigurationError as error:
            raise ConfigurationError(f"function {function.__qualname__!r}: {error}") from None

        wrapper: Any
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def async_wrapper(*args: Any, **kwargs: Any) -> Any:
                return await throttled_call(async_wrapper, function)(*args, **kwargs)

            wrapper = async_wrapper
        else:

            @functools.wraps(function)
            def plain_wrapper(*args: Any, **kwargs: Any) -> Any:
                return throttled_call(plain_wrapper, function)(*args, **kwargs)

            wrapper = plain_wrapper
        setattr(wrapper, THROTTLE, terms)
        result: _F = wrapper
        return result

    return decorate
