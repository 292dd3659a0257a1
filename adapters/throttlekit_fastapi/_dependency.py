"""The dependency that applies limits to a path operation."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from inspect import Parameter, Signature
from typing import Any

from fastapi import Depends, HTTPException, Request, Response

from throttlekit import ConfigurationError, Decision, Limit, Limiter
from throttlekit.adapter import RequestLimits

__all__ = ["Throttled"]

_EXAMPLE = "Depends(Throttled(limiter, limit))"


class Throttled:
    """
    A dependency that applies *limits* to one path operation, a router or the app:

        @app.get("/search", dependencies=[Depends(Throttled(limiter, search))])
        def find(): ...

    Operations may be plain or async functions, and the event loop is not blocked. WebSockets are not supported.

    A request over a limit raises an `HTTPException` with the status 429, or 503 if the store is unavailable and the
    limit fails closed. Every response has the headers of `Decision.headers()`, with one exception: if an operation
    returns its own `Response` or raises an error, FastAPI does not add headers of dependencies. In such an operation,
    write `headers=decision.headers()`, where *decision* is the value of the dependency.

    A request does not wait. It is admitted only if no job waits, and a denied request gets no position. It holds slots
    of a `Concurrency` limit until the response, also a streamed one, is sent, and background tasks have run.

    Args:
        limiter: The limiter that decides. `AsyncLimiter(limiter)` shares its counts.
        limits: The limits, which are charged all together or not at all.
        arguments: The values for names in the limits' templates that are not parameters of the path, `remote_addr`,
            `path` or `method`. Each value is a dependency: `account_id=current_account`.

    Raises:
        ConfigurationError: An argument can never work. If a template contains a name without a value, the first request
            raises this error, because the dependency's path is not known earlier.
    """

    def __init__(self, limiter: Limiter, /, *limits: Limit, **arguments: Callable[..., Any]) -> None:
        self._limits = RequestLimits(limiter, limits, arguments, example=_EXAMPLE)
        own = {"request": Request, "response": Response}
        if taken := own.keys() & arguments.keys():
            raise ConfigurationError(f"{min(taken)}= is the name of an argument from FastAPI: choose another name")
        parameters = [Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind) for name, kind in own.items()]
        for name, find in arguments.items():
            parameters.append(Parameter(name, Parameter.KEYWORD_ONLY, default=Depends(find)))
        self.__signature__ = Signature(parameters)  # FastAPI resolves the arguments, as for any dependency

    async def __call__(self, *, request: Request, response: Response, **given: Any) -> AsyncGenerator[Decision]:
        """Decide the request, and hold its slots until the response is sent. FastAPI calls this method."""
        held_to, path = self._limits, request.url.path
        view = getattr(request.scope.get("route"), "path", path)
        addr = None if request.client is None else request.client.host
        job = held_to.job(view, request.path_params, given, addr, path, request.method)
        decision = await held_to.acquire_async(job)
        if not decision.allowed:
            raise HTTPException(held_to.status(decision), headers=decision.headers())
        held_to.write_headers(decision, response.headers)
        try:
            yield decision
        finally:
            await held_to.release_async(decision)
