"""Watch an actor's function, so that a `RateLimited` of its body reaches Throttle before any other middleware."""

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
        rate_limited: A function that takes the message and the error.
    """

    def __init__(self, rate_limited: Callable[[Any, RateLimited], None]) -> None:
        self._rate_limited = rate_limited
        self._here = threading.local()

    def expect(self, message: Any) -> None:
        """Record the *message* of the next body in this thread, or None for a message without limits."""
        self._here.message = message

    def watch(self, actor: Any) -> None:
        """Wrap the function of *actor*. A direct call of the function, also in another body, works as before."""
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
