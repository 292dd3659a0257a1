"""Transports that apply limits to the requests of httpx clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import httpx

from throttlekit import AsyncLimiter, Limit, Limiter, StoreUnavailable
from throttlekit.adapter import Calls, OfRequest, Tokens

__all__ = ["AsyncLimitedTransport", "LimitedTransport"]

_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)


class _Options:
    """The options of both transports."""

    def __init__(
        self,
        *limits: Limit,
        key: OfRequest = None,
        cost: int | Callable[[Any], int] | None = None,
        timeout: float | timedelta | None = None,
        tokens: Limit | None = None,
        input_tokens: Limit | None = None,
        output_tokens: Limit | None = None,
    ) -> None:
        by_unit = Tokens(tokens=tokens, input_tokens=input_tokens, output_tokens=output_tokens)
        self._calls = Calls(limits, by_unit, key, cost, timeout)


class LimitedTransport(_Options, httpx.BaseTransport):
    """
    A transport for `httpx.Client`. Each request waits until the limits admit it:

        client = httpx.Client(transport=LimitedTransport(limiter, partner))

    The rate-limit headers of each response are applied. A response with the status 429, or with 403 or 503 and
    Retry-After, raises `RateLimited`.

    In the body of a job that was charged for a limit, the request is covered by this charge, and does not wait for the
    limit again. In such a body, `RateLimited` defers the job and pauses the limit. Elsewhere, it is an error for the
    caller, and also pauses the limit.

    If a request has reached no server, its units are returned. Each redirect counts as a request. Retries by the inner
    transport do not count.

    Args:
        limiter: The limiter that decides.
        limits: The rate limits. The partner's responses update the first limit.
        transport: The inner transport, which sends the requests. Default: `httpx.HTTPTransport()`.
        key, cost: The arguments of `Limiter.wait`, or a function of the request. They are not used for limits for which
            the job was charged.
        timeout: The argument of `Limiter.wait`.
        tokens, input_tokens, output_tokens: The arguments of `Limiter.apply_response`.

    Raises:
        ConfigurationError: There is no limit, or a limit is a concurrency limit. For a concurrency limit, use
            `with limiter.hold(slots):` around the call instead.
    """

    def __init__(
        self, limiter: Limiter, *limits: Limit, transport: httpx.BaseTransport | None = None, **options: Any
    ) -> None:
        super().__init__(*limits, **options)
        self._limiter = limiter
        self._inner = httpx.HTTPTransport() if transport is None else transport

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Wait for the limits, and send *request*. httpx calls this method."""
        calls, limiter = self._calls, self._limiter
        needed = calls.for_request(request)
        granted = calls.wait(limiter, needed)
        try:
            response = self._inner.handle_request(request)
        except _NEVER_SENT:
            if granted is not None:
                limiter.cancel(granted)
            raise
        calls.handle_response(limiter, needed, response)
        return response

    def close(self) -> None:
        """Close the inner transport."""
        self._inner.close()


class AsyncLimitedTransport(_Options, httpx.AsyncBaseTransport):
    """
    The `LimitedTransport` for `httpx.AsyncClient(transport=…)`, in asyncio. It has the same other arguments.

    Args:
        limiter: An `AsyncLimiter`, or the `Limiter` of this process.
        transport: The inner transport, which sends the requests. Default: `httpx.AsyncHTTPTransport()`.
    """

    def __init__(
        self,
        limiter: AsyncLimiter | Limiter,
        *limits: Limit,
        transport: httpx.AsyncBaseTransport | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*limits, **options)
        self._limiter = AsyncLimiter(limiter) if isinstance(limiter, Limiter) else limiter
        self._inner = httpx.AsyncHTTPTransport() if transport is None else transport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Wait for the limits, and send *request*. httpx calls this method."""
        calls, limiter = self._calls, self._limiter
        needed, granted = calls.for_request(request), None
        if needed.limits:
            key = needed.key_of(*needed.limits)
            granted = await limiter.wait(*needed.limits, key=key, cost=needed.cost, timeout=calls.timeout)
        try:
            response = await self._inner.handle_async_request(request)
        except _NEVER_SENT:
            if granted is not None:
                await limiter.cancel(granted)
            raise
        denial = calls.denial(response)
        if denial is not None:
            await response.aclose()
            if not calls.in_job(needed):
                with suppress(StoreUnavailable):
                    key = needed.key_of(calls.limits[0])
                    await limiter.pause(calls.limits[0], denial.retry_after, key=key, refused=True)
            raise denial
        if calls.in_job(needed):
            await asyncio.to_thread(calls.apply_in_job, needed, response)
        else:
            key = needed.key_of(*calls.limits_of_responses)
            await limiter.apply_response(response, calls.limits[0], **calls.tokens, key=key)
        return response

    async def aclose(self) -> None:
        """Close the inner transport."""
        await self._inner.aclose()
