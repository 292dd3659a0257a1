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
    Calls *rate_limited* if the body of an admitted message raises `RateLimited`. If that returns, the error is raised
    again.

    Dramatiq calls its middleware after the worker has logged an error, and the middleware that count, retry
    and send callbacks are called before Throttle. So the error is caught where it leaves the body.

    Args:
        rate_limited: Takes the message and the error.
    """

    def __init__(self, rate_limited: Callable[[Any, RateLimited], None]) -> None:
        self._rate_limited = rate_limited
        self._here = threading.local()

    def expect(self, message: Any) -> None:
        """Record that the next body in this thread is that of *message*; None: of a message without limits."""
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
