"""Wait for the limits of one request of an HTTP client, and apply its response to them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple, TypeAlias, TypedDict

from throttlekit._core.algorithms.concurrency import Concurrency
from throttlekit._core.decision import Decision
from throttlekit._core.limit.base import Limit
from throttlekit._engine.rate_limited import RateLimited
from throttlekit._engine.running import Running, current
from throttlekit.errors import ConfigurationError, StoreUnavailable
from throttlekit.limiter import Limiter

__all__ = ["CallLimits", "Calls", "OfRequest", "Tokens"]

OfRequest: TypeAlias = "str | int | Callable[[Any], str | int] | None"


class Tokens(TypedDict):
    """The limits that count tokens, by the kind of tokens."""

    tokens: Limit | None
    input_tokens: Limit | None
    output_tokens: Limit | None


class CallLimits(NamedTuple):
    """
    The limits of one HTTP request, and the job that makes it.

    Attributes:
        running: The job that makes the request.
        limits: The limits to wait for. Limits under which the job was charged already are left out.
        key: The key of the request, for those limits that have one; see `key_of`.
        cost: The cost for *limits*.
    """

    running: Running
    limits: tuple[Limit, ...]
    key: str | int | None
    cost: int | None

    def key_of(self, *limits: Limit | None) -> str | int | None:
        """Return the key for a call about *limits*; None if none of them has a key."""
        return self.key if any(each is not None and each.key is not None for each in limits) else None


@dataclass(frozen=True, slots=True)
class Calls:
    """
    The limits of one client.

    A request in a job's body does not wait for the limits under which the job was charged already. For other limits,
    and outside a job, each request waits in its thread or task.

    Args:
        limits: The limits of each request. The partner's responses are applied to the first one.
        tokens: The limits that count tokens, as `Limiter.apply_response` takes them.
        key, cost: As for `Limiter.wait`, or a function of the request.
        timeout: As for `Limiter.wait`.

    Raises:
        ConfigurationError: No limit was given, or one that has no rate.
    """

    limits: tuple[Limit, ...]
    tokens: Tokens
    key: OfRequest = None
    cost: int | Callable[[Any], int] | None = None
    timeout: float | timedelta | None = None

    def __post_init__(self) -> None:
        if not self.limits:
            raise ConfigurationError("a client needs at least one limit: name one")
        for each in self._all_limits:
            if each is not None and not isinstance(each, Limit):
                raise ConfigurationError(f"a client takes limits, not {each!r}")
            if isinstance(each, Concurrency):
                raise ConfigurationError(
                    f"limit {each.name!r} grants slots, which a client cannot hold until a response is read: "
                    "write `with limiter.hold(slots):` around the call"
                )
        if self.key is not None and all(each is None or each.key is None for each in self._all_limits):
            raise ConfigurationError(f"limit {self.limits[0].name!r} has no key: drop key=, or give the limit one")

    @property
    def _all_limits(self) -> tuple[Limit | None, ...]:
        return *self.limits, *self.limits_of_responses

    @property
    def limits_of_responses(self) -> tuple[Limit | None, ...]:
        """The limits to which responses are applied."""
        return self.limits[0], self.tokens["tokens"], self.tokens["input_tokens"], self.tokens["output_tokens"]

    def for_request(self, request: object) -> CallLimits:
        """Return the limits for which *request* waits, given the job that runs in this thread or task."""
        running = current()
        mine = _charged_names(running)
        key = self.key(request) if callable(self.key) else self.key
        cost = self.cost(request) if callable(self.cost) else self.cost
        return CallLimits(running, tuple([each for each in self.limits if each.name not in mine]), key, cost)

    def in_job(self, needed: CallLimits) -> bool:
        """Whether the response is about a limit under which the job was charged."""
        return self.limits[0] not in needed.limits

    def wait(self, limiter: Limiter, needed: CallLimits) -> Decision | None:
        """Wait for the limits of *needed*. Return the grant, or None if the job was charged under all of them."""
        if not needed.limits:
            return None
        return limiter.wait(*needed.limits, key=needed.key_of(*needed.limits), cost=needed.cost, timeout=self.timeout)

    def handle_response(self, limiter: Limiter, needed: CallLimits, response: Any) -> None:
        """
        Apply the rate-limit headers of *response*.

        Raises:
            RateLimited: The partner denied the request, and *response* is closed. Outside a job, the fleet is paused
                already; in a job, the error does that.
        """
        denial = self.denial(response)
        if denial is not None:
            response.close()
            if not self.in_job(needed):
                with suppress(StoreUnavailable):
                    limiter.pause(self.limits[0], denial.retry_after, key=needed.key_of(self.limits[0]), refused=True)
            raise denial
        if self.in_job(needed):
            self.apply_in_job(needed, response)
        else:
            key = needed.key_of(*self.limits_of_responses)
            limiter.apply_response(response, self.limits[0], **self.tokens, key=key)

    def apply_in_job(self, needed: CallLimits, response: object) -> None:
        """Apply the rate-limit headers of *response* to the job's own limits."""
        mine, tokens = _charged_names(needed.running), self.tokens.copy()
        for unit in ("tokens", "input_tokens", "output_tokens"):
            limit = tokens[unit]
            tokens[unit] = limit if limit is not None and limit.name in mine else None
        needed.running.apply_response(response, self.limits[0], **tokens)

    def denial(self, response: Any) -> RateLimited | None:
        """Return the error to raise for a 429, or for a 503 or GitHub's 403 with a retry time; None otherwise."""
        status = response.status_code
        if status == 429 or (status in (403, 503) and "Retry-After" in response.headers):
            return RateLimited.from_response(response, limit=self.limits[0])
        return None


def _charged_names(running: Running) -> set[str]:
    decision = running.decision
    return set() if decision is None else {each.limit.name for each in decision.charged}
