"""The decorator of a Flask view."""

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
    Hold a view to *limits*: `@throttled(limiter, search)`, below the route. For all views of an app, on a
    `before_request` function that returns None; slots come free when that returns.

    A request over a limit is answered with `abort(429)`; with `abort(503)` while the store is unavailable, if the limit
    fails closed. The answer has the headers of `Decision.headers()`, whatever handler for 429 the app has; so has that
    of a request that passes. The decision is in `flask.g.throttled`.

    A request does not wait: it passes only where no job waits, and keeps no position. Slots of a `Concurrency`
    limit are its own until the view has returned or raised; where the response is streamed, until it is closed.

    Args:
        limiter: Decides.
        limits: All of them are charged, or none.
        arguments: What the limits' templates name and neither the view's arguments nor `remote_addr`, `path` and
            `method` have: for each name a function, called for each request: `account_id=lambda: g.user.account_id`.

    Raises:
        ConfigurationError: An argument can never work, or a template names what the request does not have.
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
