"""The adapter that applies limits to a session of the package requests."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from requests import PreparedRequest, Response
from requests.adapters import HTTPAdapter
from requests.exceptions import ConnectionError as NoConnection
from requests.exceptions import ConnectTimeout
from urllib3.exceptions import NewConnectionError

from throttlekit import Decision, Limit, Limiter
from throttlekit.adapter import Calls, OfRequest, Tokens

__all__ = ["LimitedAdapter"]


class LimitedAdapter(HTTPAdapter):
    """
    An adapter for `session.mount`. Each request waits until the limits admit it:

        session.mount("https://api.partner.example", LimitedAdapter(limiter, partner))

    The rate-limit headers of each response are applied. A response with the status 429, or with 403 or 503 and
    Retry-After, raises `RateLimited`.

    In the body of a job that was charged for a limit, the request is covered by this charge, and does not wait for the
    limit again. In such a body, `RateLimited` defers the job and pauses the limit. Elsewhere, it is an error for the
    caller, and also pauses the limit.

    If a request has reached no server, its units are returned. Each redirect counts as a request. Retries by the
    adapter's own `max_retries` do not count.

    Args:
        limiter: The limiter that decides.
        limits: The rate limits. The partner's responses update the first limit.
        key, cost: The arguments of `Limiter.wait`, or a function of the prepared request. They are not used for limits
            for which the job was charged.
        timeout: The argument of `Limiter.wait`.
        tokens, input_tokens, output_tokens: The arguments of `Limiter.apply_response`.
        options: The options of requests' `HTTPAdapter`.

    Raises:
        ConfigurationError: There is no limit, or a limit is a concurrency limit. For a concurrency limit, use
            `with limiter.hold(slots):` around the call instead.
    """

    def __init__(
        self,
        limiter: Limiter,
        *limits: Limit,
        key: OfRequest = None,
        cost: int | Callable[[Any], int] | None = None,
        timeout: float | timedelta | None = None,
        tokens: Limit | None = None,
        input_tokens: Limit | None = None,
        output_tokens: Limit | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._limiter = limiter
        by_unit = Tokens(tokens=tokens, input_tokens=input_tokens, output_tokens=output_tokens)
        self._calls = Calls(limits, by_unit, key, cost, timeout)

    def send(self, request: PreparedRequest, *args: Any, **options: Any) -> Response:
        """
        Wait for the limits, and send *request* like `HTTPAdapter`.

        Raises:
            RateLimited: The partner denied the request.
            WaitedTooLong, ConfigurationError, CostExceedsLimit: The errors of `Limiter.wait`.
        """
        calls, limiter = self._calls, self._limiter
        needed = calls.for_request(request)
        granted = calls.wait(limiter, needed)
        try:
            response = super().send(request, *args, **options)
        except NoConnection as error:
            _give_back(limiter, granted, error)
            raise
        calls.handle_response(limiter, needed, response)
        return response


def _give_back(limiter: Limiter, granted: Decision | None, error: NoConnection) -> None:
    cause = getattr(error.args[0], "reason", None) if error.args else None
    if granted is not None and (isinstance(error, ConnectTimeout) or isinstance(cause, NewConnectionError)):
        limiter.cancel(granted)
