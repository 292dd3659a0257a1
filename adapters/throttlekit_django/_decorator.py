"""The decorator that applies limits to a Django view."""

from __future__ import annotations

import functools
from collections.abc import Callable
from inspect import isawaitable
from typing import Any, TypeVar, cast

from asgiref.sync import iscoroutinefunction
from django.http import HttpResponse  # type: ignore[import-untyped]

from throttlekit import Decision, Job, Limit, Limiter
from throttlekit.adapter import RequestLimits

__all__ = ["throttled"]

_F = TypeVar("_F", bound=Callable[..., Any])


def throttled(limiter: Limiter, /, *limits: Limit, **arguments: Callable[[Any], Any]) -> Callable[[_F], _F]:
    """
    Apply *limits* to a view:

        @throttled(limiter, search)
        def find(request): ...

    The view may also be a coroutine function, and the event loop is not blocked. For a class, write
    `throttled(limiter, search)(Search.as_view())`. To limit all views, use the decorator in a middleware factory.

    A request over a limit gets the status 429, or 503 if the store is unavailable and the limit fails closed. Every
    response has the headers of `Decision.headers()`, whether the request is admitted or denied. The decision is in
    `request.throttled`.

    A request does not wait. It is admitted only if no job waits, and a denied request gets no position. It holds slots
    of a `Concurrency` limit until the view has returned or raised an error, or until a streamed response is closed.

    Args:
        limiter: The limiter that decides.
        limits: The limits, which are charged all together or not at all.
        arguments: The values for names in the limits' templates that are not arguments of the view, `remote_addr`,
            `path` or `method`. Each value is a function of the request: `account_id=lambda request: request.user.pk`.
            For a coroutine view, it may be a coroutine function.

    Raises:
        ConfigurationError: An argument can never work, or a template contains a name without a value.
    """
    held_to = RequestLimits(limiter, limits, arguments, example="@throttled(limiter, limit)")

    def decorate(view: _F) -> _F:
        arguments_of = held_to.of(view)
        name = getattr(view, "__qualname__", type(view).__name__)

        def job(request: Any, of_view: dict[str, Any], given: dict[str, Any]) -> Job:
            return held_to.job(name, of_view, given, request.META.get("REMOTE_ADDR"), request.path, request.method)

        @functools.wraps(view)
        def view_with_limits(request: Any, *args: Any, **kwargs: Any) -> Any:
            found = {each: find(request) for each, find in arguments.items()}
            request.throttled = decision = held_to.acquire(job(request, arguments_of(request, *args, **kwargs), found))
            response = None
            try:
                response = view(request, *args, **kwargs) if decision.allowed else _denial(held_to, decision)
            finally:
                if not getattr(response, "streaming", False):
                    held_to.release(decision)
            return _answer(held_to, decision, response)

        @functools.wraps(view)
        async def view_with_limits_async(request: Any, *args: Any, **kwargs: Any) -> Any:
            found = {each: find(request) for each, find in arguments.items()}
            found = {each: await value if isawaitable(value) else value for each, value in found.items()}
            request_job = job(request, arguments_of(request, *args, **kwargs), found)
            request.throttled = decision = await held_to.acquire_async(request_job)
            response = None
            try:
                response = await view(request, *args, **kwargs) if decision.allowed else _denial(held_to, decision)
            finally:
                if not getattr(response, "streaming", False):
                    await held_to.release_async(decision)
            return _answer(held_to, decision, response)

        return cast(_F, view_with_limits_async if iscoroutinefunction(view) else view_with_limits)

    return decorate


def _denial(held_to: RequestLimits, denied: Decision) -> HttpResponse:
    return HttpResponse(b"Too many requests.\n", status=held_to.status(denied), content_type="text/plain")


def _answer(held_to: RequestLimits, decision: Decision, response: Any) -> Any:
    """Add the headers of *decision* to *response*. If it is streamed, release the slots when it is closed."""
    if response is not None:  # otherwise Django raises an error with the name of the view
        held_to.write_headers(decision, response.headers)
        if response.streaming and decision.leases:
            response._resource_closers.append(held_to.release_with(response, decision))
    return response
