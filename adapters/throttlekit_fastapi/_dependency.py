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
    A dependency that holds path operations to *limits*: `Depends(Throttled(limiter, search))`, of one operation, a
    router or the app. Of operations that are plain functions too; no event loop is blocked. Not of WebSockets.

    A request over a limit is answered with `HTTPException(429)`; with 503 while the store is unavailable, if the limit
    fails closed. The answer has the headers of `Decision.headers()`. So has that of a request that passes, unless the
    operation returns a `Response` of its own or raises: FastAPI gives these no headers of a dependency. There write
    `headers=decision.headers()`: the decision is the dependency's value.

    A request does not wait: it passes only where no job waits, and keeps no position. Slots of a `Concurrency`
    limit are its own until the response is sent, a streamed one too, and background tasks have run.

    Args:
        limiter: Decides. `AsyncLimiter(limiter)` shares its counts.
        limits: All of them are charged, or none.
        arguments: What the limits' templates name and neither the path's parameters nor `remote_addr`, `path` and
            `method` have: for each name a dependency, `account_id=current_account`.

    Raises:
        ConfigurationError: An argument can never work. A template that names what the request does not have is an error
            at the first request: the dependency does not know its path before.
    """

    def __init__(self, limiter: Limiter, /, *limits: Limit, **arguments: Callable[..., Any]) -> None:
        self._limits = RequestLimits(limiter, limits, arguments, example=_EXAMPLE)
        own = {"request": Request, "response": Response}
        if taken := own.keys() & arguments.keys():
            raise ConfigurationError(f"{min(taken)}= is a name that FastAPI's own argument has: choose another")
        parameters = [Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind) for name, kind in own.items()]
        for name, find in arguments.items():
            parameters.append(Parameter(name, Parameter.KEYWORD_ONLY, default=Depends(find)))
        self.__signature__ = Signature(parameters)  # FastAPI resolves the arguments, as for any dependency

    async def __call__(self, *, request: Request, response: Response, **given: Any) -> AsyncGenerator[Decision]:
        """Decide, and hold the slots until the response is sent. Called by FastAPI."""
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
