"""The threads of a limiter that wait for sockets, so that event loops do not wait."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from throttlekit._util.fork_safety import renew_lock_after_fork

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future, ThreadPoolExecutor

__all__ = ["Threads", "in_context", "in_running_loop", "set_in_loop", "warn_in_loop"]

_MOST = 4
_T = TypeVar("_T")
_P = ParamSpec("_P")


class Threads:
    """
    At most four threads, which start with the first call. Calls in them wait for the store only, so each call gets its
    turn, even if the application fills the default executor of its event loop.
    """

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        renew_lock_after_fork(self, "_executor", lambda: None)

    def start(self, function: Callable[[], _T]) -> Future[_T]:
        """
        Call *function* in a thread.

        Raises:
            RuntimeError: No thread can start, or the interpreter is shutting down. *function* is not called later.
        """
        from concurrent.futures import ThreadPoolExecutor  # costly to import, and only event loops need it

        refused = False

        def call() -> _T:
            if refused:  # the executor queues the call before it starts a thread for it
                raise RuntimeError("no thread could start")
            return function()

        while True:
            executor = self._executor
            if executor is None:
                executor = self._executor = ThreadPoolExecutor(_MOST, thread_name_prefix="throttlekit")
            try:
                return executor.submit(call)
            except RuntimeError:
                if self._executor is executor:
                    refused = True
                    raise
                # another loop has closed it just now

    def run_to_end(self, function: Callable[[], _T]) -> asyncio.Future[_T]:
        """Schedule *function* in a thread at once. It runs to its end even if its caller is cancelled."""
        return self.wait_for(self.start(in_context(function)))

    def wait_for(self, called: Future[_T]) -> asyncio.Future[_T]:
        """Return a future for *called*, a result of `start`. Cancelling the future does not cancel the call."""
        import asyncio  # at module level, it would take a third of the time of `import throttlekit`

        inner = asyncio.wrap_future(called)
        inner.add_done_callback(_read_error)
        return asyncio.shield(inner)

    def close(self) -> None:
        """End the threads. The next call starts new ones."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False)


def in_context(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Return *function* in the context of this thread or task: a key or a hook may read a `ContextVar`."""
    return partial(copy_context().run, function)


def in_running_loop() -> bool:
    """Whether an event loop runs in this thread. Does not import asyncio."""
    # While another thread imports asyncio, no loop runs yet, and the function may be missing. `get_running_loop` raises
    # an error if no loop runs, which takes longer.
    running_loop = getattr(sys.modules.get("asyncio.events"), "_get_running_loop", None)
    return running_loop is not None and running_loop() is not None


def set_in_loop(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> bool:
    """Set *event* of *loop* from another thread. Return False if the loop was closed."""
    try:
        loop.call_soon_threadsafe(event.set)
    except RuntimeError:
        return False
    return True


def warn_in_loop(verb: str) -> None:
    """
    Warn the caller of `Limiter.acquire`, or of another *verb* of one round trip, that it blocks the event loop. This is
    not an error, because a notebook also runs a loop, where one round trip delays no other task.
    """
    warnings.warn(
        f"Limiter.{verb} was called where an event loop runs: it blocks the loop until the store answers. Write "
        f"`await limiter.{verb}(…)` with an AsyncLimiter",
        RuntimeWarning,
        stacklevel=4,  # the caller of the limiter, which calls `_check_loop`, which calls this
    )


def _read_error(future: asyncio.Future[Any]) -> None:
    """Read the error of a call whose caller was cancelled, so that asyncio does not log it."""
    if not future.cancelled():
        future.exception()
