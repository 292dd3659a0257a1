"""Threads of a limiter's own, for event loops: what waits for a socket waits there."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from throttlekit._util.fork_safety import renew_lock_after_fork

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future, ThreadPoolExecutor

__all__ = ["Threads", "in_running_loop", "warn_in_loop"]

_MOST = 4
_T = TypeVar("_T")


class Threads:
    """
    At most four threads, which start with the first call. No call waits in them for anything but the store, so each
    call gets its turn, whatever the application does with the default executor of its event loop.
    """

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        renew_lock_after_fork(self, "_executor", lambda: None)

    def start(self, function: Callable[[], _T]) -> Future[_T]:
        """
        Have a thread call *function*.

        Raises:
            RuntimeError: The interpreter ends.
        """
        from concurrent.futures import ThreadPoolExecutor  # costly to import, and only event loops need it

        while True:
            executor = self._executor
            if executor is None:
                executor = self._executor = ThreadPoolExecutor(_MOST, thread_name_prefix="throttlekit")
            try:
                return executor.submit(function)
            except RuntimeError:
                if self._executor is executor:
                    raise
                # another loop has closed it just now

    def run_to_end(self, function: Callable[[], _T]) -> asyncio.Future[_T]:
        """*function* is on its way to a thread once this returns; it runs to its end though its caller is cancelled."""
        import asyncio  # a third of what `import throttlekit` would cost

        inner = asyncio.wrap_future(self.start(function))
        inner.add_done_callback(_seen)
        return asyncio.shield(inner)

    def close(self) -> None:
        """Let the threads end. The next call starts others."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False)


def in_running_loop() -> bool:
    """Whether an event loop runs in this thread. Costs a microsecond, and does not import asyncio."""
    # Another thread may be importing asyncio: then no loop runs yet, and the function may be missing.
    get_running_loop = getattr(sys.modules.get("asyncio.events"), "get_running_loop", None)
    if get_running_loop is None:
        return False
    try:
        get_running_loop()
    except RuntimeError:
        return False
    return True


def warn_in_loop(verb: str) -> None:
    """
    Warn the caller of `Limiter.acquire`, or another *verb* of one round trip, that it blocks the event loop. This is
    not an error: a notebook runs a loop too, and one round trip harms no other task there.
    """
    warnings.warn(
        f"Limiter.{verb} was called where an event loop runs: it blocks the loop until the store answers. Write "
        f"`await limiter.{verb}(…)` with an AsyncLimiter",
        RuntimeWarning,
        stacklevel=4,  # the caller of the limiter, which calls `_check_loop`, which calls this
    )


def _seen(future: asyncio.Future[Any]) -> None:
    """The error of a call whose caller was cancelled concerns no caller: asyncio shall not log it."""
    if not future.cancelled():
        future.exception()
