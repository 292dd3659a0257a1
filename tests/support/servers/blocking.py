"""An `AsyncLimiter` with the interface of a `Limiter`, so that one test is for both."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections.abc import Iterator
from typing import Any, cast

from throttlekit import Limiter
from throttlekit.aio import AsyncLimiter

__all__ = ["either"]


class _Blocking:
    def __init__(self, limiter: AsyncLimiter, loop: asyncio.AbstractEventLoop) -> None:
        self._limiter, self._loop = limiter, loop

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._limiter, name)
        if not inspect.iscoroutinefunction(verb):
            return verb
        return functools.wraps(verb)(lambda *args, **kwargs: self._loop.run_until_complete(verb(*args, **kwargs)))


@contextlib.contextmanager
def either(kind: str, *args: Any, **options: Any) -> Iterator[Limiter]:
    """A blocking limiter of *kind*, "sync" or "async", which is closed at the end."""
    if kind == "sync":
        with contextlib.closing(Limiter(*args, **options)) as limiter:
            yield limiter
        return
    loop = asyncio.new_event_loop()
    try:
        blocking = cast(Any, _Blocking(AsyncLimiter(*args, **options), loop))
        yield blocking
        blocking.close()
    finally:
        loop.close()
