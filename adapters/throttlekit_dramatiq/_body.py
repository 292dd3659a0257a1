"""Watch an actor's function: a `RateLimited` from its body reaches Throttle before any other middleware."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from throttlekit import RateLimited

__all__ = ["Bodies"]


class Bodies:
    """
    Calls *rate_limited* if the body of an admitted message raises `RateLimited`. If *rate_limited* returns, the error
    is raised again.

    The error is caught directly around the body. Throttle's own hook would be too late: by then, the worker has logged
    the error, and other middleware has counted it, retried the message, or sent callbacks.

    Args:
        rate_limited: Takes the message and the error.
    """

    def __init__(self, rate_limited: Callable[[Any, RateLimited], None]) -> None:
        self._rate_limited = rate_limited
        self._here = threading.local()

    def expect(self, message: Any) -> None:
        """Record that the next body in this thread belongs to *message*; None: to a message without limits."""
        self._here.message = message

    def watch(self, actor: Any) -> None:
        """Wrap *actor*'s function. A direct call of it, also in another body, works as before."""
        function = actor.fn

        @functools.wraps(function)
        def body(*args: Any, **kwargs: Any) -> Any:
            message, self._here.message = getattr(self._here, "message", None), None
            try:
                return function(*args, **kwargs)
            except RateLimited as error:
                if message is not None:
                    self._rate_limited(message, error)
                raise

        actor.fn = body
