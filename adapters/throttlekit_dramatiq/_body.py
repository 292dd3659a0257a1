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
    Calls *rate_limited* if the body of an admitted message raises `RateLimited`; if that returns, the error is raised
    on.

    Dramatiq calls its middleware after the worker has logged an error, and the middleware that count, retry
    and call back come before Throttle. So the error is caught where it leaves the body.

    Args:
        rate_limited: Takes the message and the error.
    """

    def __init__(self, rate_limited: Callable[[Any, RateLimited], None]) -> None:
        self._rate_limited = rate_limited
        self._here = threading.local()

    def expect(self, message: Any) -> None:
        """The next body in this thread is that of *message*; None: of a message without limits."""
        self._here.message = message

    def watch(self, actor: Any) -> None:
        """Watch *actor*'s function. Called by hand, or in another body, it does what it did."""
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
