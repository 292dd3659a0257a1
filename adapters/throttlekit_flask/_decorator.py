"""The decorator that applies limits to a Flask view."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from flask import Response, abort, after_this_request, current_app, g, make_response, request

from throttlekit import Limit, Limiter
from throttlekit.adapter import RequestLimits

__all__ = ["throttled"]

_F = TypeVar("_F", bound=Callable[..., Any])


def throttled(limiter: Limiter, /, *limits: Limit, **arguments: Callable[[], Any]) -> Callable[[_F], _F]:
    """
    Apply *limits* to a view. Write the decorator below the route:

        @app.get("/search")
        @throttled(limiter, search)
        def find(): ...

    To limit all views of an app, decorate a `before_request` function that returns None. In this case, slots are
    released when that function returns.

    A request over a limit is ended by `abort(429)`, or by `abort(503)` if the store is unavailable and the limit fails
    closed. Every response has the headers of `Decision.headers()`, whether the request is admitted or denied, and also
    if the app has its own handler for 429. The decision is in `flask.g.throttled`.

    A request does not wait. It is admitted only if no job waits, and a denied request gets no position. It holds slots
    of a `Concurrency` limit until the view has returned or raised an error, or until a streamed response is closed.

    Args:
        limiter: The limiter that decides.
        limits: The limits, which are charged all together or not at all.
        arguments: The values for names in the limits' templates that are not arguments of the view, `remote_addr`,
            `path` or `method`. Each value is a function that is called for each request:
            `account_id=lambda: g.user.account_id`.

    Raises:
        ConfigurationError: An argument can never work, or a template contains a name without a value.
    """
    held_to = RequestLimits(limiter, limits, arguments, example="@throttled(limiter, limit)")

    def decorate(view: _F) -> _F:
        arguments_of = held_to.of(view)

        @functools.wraps(view)
        def view_with_limits(*args: Any, **kwargs: Any) -> Any:
            given = {name: find() for name, find in arguments.items()}
            of_view, of_request = arguments_of(*args, **kwargs), (request.remote_addr, request.path, request.method)
            g.throttled = decision = held_to.acquire(held_to.job(request.endpoint or "", of_view, given, *of_request))

            @after_this_request
            def _(response: Response) -> Response:
                held_to.write_headers(decision, response.headers)
                return response

            if not decision.allowed:
                abort(held_to.status(decision))
            streamed = None
            try:
                answer = current_app.ensure_sync(view)(*args, **kwargs)
                if decision.leases and answer is not None:
                    answer = make_response(answer)
                    if answer.is_streamed:
                        streamed = answer
            finally:
                if streamed is None:
                    held_to.release(decision)
            if streamed is not None:
                streamed.call_on_close(held_to.release_with(streamed, decision))
            return answer

        return cast(_F, view_with_limits)

    return decorate
