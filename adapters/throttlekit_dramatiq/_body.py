"""An actor's function, watched: what it raises about downstream reaches the limiter first, and no other middleware."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from throttlekit import RateLimited

__all__ = ["Bodies"]


class Bodies:
    """
    Calls *limited* if the body of a granted message raises `RateLimited`; what that returns from, is raised on.

    Dramatiq tells its middleware of an error after the worker has logged it, and those that count, retry
    and call back are told before us. So it is caught where it leaves the body.

    Args:
        limited: Takes the message and the error.
    """

    def __init__(self, limited: Callable[[Any, RateLimited], None]) -> None:
        self._limited = limited
        self._here = threading.local()

    def expect(self, message: Any) -> None:
        """The next body in this thread is that of *message*; None: of none that was granted."""
        self._here.message = message

    def watch(self, actor: Any) -> None:
        """Have *actor*'s function watched. Called by hand, or within another body, it is as it was."""
        function = actor.fn

        @functools.wraps(function)
        def body(*args: Any, **kwargs: Any) -> Any:
            message, self._here.message = getattr(self._here, "message", None), None
            try:
                return function(*args, **kwargs)
            except RateLimited as error:
                if message is not None:
                    self._limited(message, error)
                raise

        actor.fn = body
