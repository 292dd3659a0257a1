"""The dependency of a path operation."""

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
    A dependency that applies *limits* to path operations: `Depends(Throttled(limiter, search))` for one operation, a
    router or the app. Operations may be plain or async functions; the event loop is not blocked. Not for WebSockets.

    A request over a limit gets an `HTTPException` with the status 429, or 503 if the store is unavailable and the limit
    fails closed. Every response has the headers of `Decision.headers()`, with one exception: if an operation returns
    its own `Response` or raises an error, FastAPI does not add headers of dependencies. There, write
    `headers=decision.headers()`: the decision is the dependency's value.

    A request does not wait: it passes only if no job waits, and gets no position. It holds slots of a `Concurrency`
    limit until the response is sent, even a streamed one, and background tasks have run.

    Args:
        limiter: The limiter that decides. `AsyncLimiter(limiter)` shares its counts.
        limits: All of them are charged, or none.
        arguments: Values for names in the limits' templates that are not parameters of the path, `remote_addr`, `path`
            or `method`. Each is a dependency: `account_id=current_account`.

    Raises:
        ConfigurationError: An argument can never work. If a template contains a name without a value, the first request
            raises it, because the dependency does not know its path before.
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
        """Decide, and hold the slots until the response is sent. FastAPI calls this."""
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
