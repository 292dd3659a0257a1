"""Limit the requests to a web application. All adapters for web frameworks use this module."""

from __future__ import annotations

import _thread
import weakref
from collections.abc import Callable, Mapping
from functools import cached_property
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Any

from throttlekit._core.decision import Decision
from throttlekit._core.job import Job
from throttlekit._core.limit.base import Limit
from throttlekit._engine.call import Delivery
from throttlekit.adapter.options import check_limiter, read_limits
from throttlekit.errors import ConfigurationError
from throttlekit.limiter import Limiter

if TYPE_CHECKING:
    from throttlekit.aio import AsyncLimiter

__all__ = ["RequestLimits"]

_AT_ONCE = Delivery(comes_back=False)


class RequestLimits:
    """
    The limits of the requests to a web application.

    A request does not wait: it is granted or denied at once, is granted only if no job waits ahead of it, and gets no
    position. It holds its slots until `release`. Until then, their leases are renewed.

    For the limits, a request is a job. Its arguments are `remote_addr`, `path` and `method`, the arguments of the view,
    and those that the application names in *given*. The view's arguments have the lowest precedence, because a client
    may choose them.

    Args:
        limiter: The limiter that decides.
        limits: The limits of each request. A request is charged under all of them, or under none.
        given: A function for each argument that the application names. The framework's adapter calls it.
        example: An example of the call, for errors.

    Raises:
        ConfigurationError: An argument can never work.
    """

    def __init__(
        self, limiter: Limiter, limits: tuple[Limit, ...], given: Mapping[str, Callable[..., Any]], *, example: str
    ) -> None:
        self.limiter = check_limiter(limiter, f"the first argument is the Limiter of this process: {example}")
        self.limits, self.given = read_limits(limits), given
        if not self.limits:
            raise ConfigurationError(f"no limit was given, so nothing is limited: {example}")
        limiter.declare(*self.limits)
        for limit in self.limits:
            if limit.scope == "queue":
                raise ConfigurationError(f"limit {limit.name!r} counts per queue, and a request has no queue")
        for name, function in given.items():
            if not callable(function):
                raise ConfigurationError(f"{name}= must be a function that is called for each request: {example}")

    def of(self, view: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
        """
        Make sure that the limits' templates name only arguments of a request to *view*. Call this once for each view.

        Returns:
            A function that returns a call's arguments by name, including positional arguments and defaults.

        Raises:
            ConfigurationError: A template names anything else.
        """
        takes = signature(view)
        kinds: dict[str, Any] = dict.fromkeys((*_of_request("", "", ""), *self.given), Parameter.KEYWORD_ONLY)
        for each in takes.parameters.values():
            if each.kind is Parameter.VAR_KEYWORD:
                kinds.setdefault(each.name, each.kind)
            elif each.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY):
                kinds.setdefault(each.name, Parameter.KEYWORD_ONLY)

        def request() -> None:
            """Take the arguments of a request to the view."""

        parameters = [Parameter(name, kind) for name, kind in sorted(kinds.items(), key=lambda each: each[1])]
        request.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        request.__qualname__ = getattr(view, "__qualname__", type(view).__name__)
        for limit in self.limits:
            limit.check_function(request)

        def arguments(*args: Any, **kwargs: Any) -> dict[str, Any]:
            try:
                bound = takes.bind(*args, **kwargs)
            except TypeError:  # the view will raise it, or accepts more than its signature says
                return kwargs
            bound.apply_defaults()
            return {**bound.arguments, **kwargs}

        return arguments

    def job(self, view: str, of_view: Mapping[str, Any], given: Mapping[str, Any], *request: str | None) -> Job:
        """
        Return the request as a job, for the limits.

        Args:
            view: The view's name, for limits that count per job.
            of_view, given: The arguments of the view, and the values that the application's functions returned.
            request: The client's address as the server sees it, the path, and the method. Requests from a Unix socket,
                which have no address, are counted together.
        """
        return Job(name=view, kwargs={**of_view, **_of_request(*request), **given})

    @cached_property
    def in_loop(self) -> AsyncLimiter:
        """The limiter for event loops."""
        from throttlekit.aio import AsyncLimiter  # imports asyncio, which an application without a loop does not need

        return AsyncLimiter(self.limiter)

    def acquire(self, job: Job) -> Decision:
        """Decide whether to admit the request *job*, and renew its slots until `release`."""
        return self._keep(self.limiter.acquire(*self.limits, job=job, delivery=_AT_ONCE))

    async def acquire_async(self, job: Job) -> Decision:
        """Like `acquire`, in an event loop."""
        return self._keep(await self.in_loop.acquire(*self.limits, job=job, delivery=_AT_ONCE))

    def release(self, decision: Decision) -> None:
        """Release the slots of a request that has ended. Without slots there is no round trip."""
        self.limiter.release(decision)

    async def release_async(self, decision: Decision) -> None:
        """Like `release`, in an event loop. It completes even if the caller is cancelled."""
        if decision.leases:
            await self.in_loop.release(decision)

    def release_with(self, response: object, decision: Decision) -> Callable[[], object]:
        """Return a function that releases the slots when it is first called, or when *response* is dropped."""
        limiter = self.limiter

        # The garbage collector may drop the response in any thread, even in one with a lock that `release` needs.
        dropped = weakref.finalize(response, _thread.start_new_thread, limiter.release, (decision,))
        dropped.atexit = False  # a process that ends does not wait for the store, and the leases expire

        def release() -> None:
            if dropped.detach() is not None:
                limiter.release(decision)

        return release

    @staticmethod
    def status(denied: Decision) -> int:
        """
        Return the HTTP status for a request that was *denied*: 429, or 503 if the store is unavailable, because then
        the client has done nothing wrong.
        """
        return 503 if denied.reason == "store unavailable" else 429

    @staticmethod
    def write_headers(decision: Decision, headers: Any) -> None:
        """Add *decision* to the *headers* of a response. Headers of a nested view, which was decided later, stay."""
        if not (decision.allowed and "RateLimit" in headers):
            for name, value in decision.headers().items():
                headers[name] = value

    def _keep(self, decision: Decision) -> Decision:
        if decision.leases:
            self.limiter.keep(decision, _nothing)
        return decision


def _of_request(addr: str | None, path: str | None, method: str | None) -> dict[str, str]:
    return {"remote_addr": addr or "", "path": path or "", "method": method or ""}


def _nothing() -> None:
    """Do nothing when a slot is lost: the request continues, and the hook `throttlekit_slot_lost` reports the slot."""
