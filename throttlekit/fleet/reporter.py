"""Run tasks once a second in a separate thread. The tasks follow operators' rules, and report decisions."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from throttlekit._util.fork_safety import renew_lock_after_fork
from throttlekit._util.log_limiter import Every
from throttlekit.errors import StoreUnavailable

__all__ = ["Reporter"]

_log = logging.getLogger("throttlekit")


@dataclass(slots=True, eq=False)
class _Started:
    """The thread of this process; a forked child begins with none."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    stop: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None


class Reporter:
    """
    Runs all *tasks* in order, every second, from the first `ensure_started` until `stop`.

    A task that fails runs again in the next round. The circuit breaker logs an outage of the store.

    Args:
        every: The seconds from one run to the next.
    """

    def __init__(self, tasks: list[Callable[[], None]], *, every: float = 1.0) -> None:
        self._tasks = tasks
        self._every = every
        self._started = _Started()
        renew_lock_after_fork(self, "_started", _Started)
        self._failed = Every()

    @property
    def is_running(self) -> bool:
        """Whether the thread of this process runs."""
        return self._started.thread is not None

    def ensure_started(self) -> None:
        """
        Start the thread, if it does not run. The first call in each process, also after a fork, first runs the tasks
        once in the caller's thread, so that the next decision uses the rules in force.
        """
        started = self._started
        if started.thread is not None:
            return
        with started.lock:
            if started.thread is not None:
                return
            self._run_once()
            thread = threading.Thread(target=self._run, args=(started,), name="throttlekit-reporter", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads are allowed, or the process ends: each decision runs the tasks
                if self._failed.due():
                    _log.warning(
                        "No thread could be started: each decision reads the rules of live control from the store."
                    )
                return
            started.thread = thread

    def stop(self) -> None:
        """Run the tasks once more, and end the thread. Does nothing if the thread does not run."""
        started = self._started
        with started.lock:
            thread, started.thread = started.thread, None
            if thread is None:
                return
            started.stop.set()
            thread.join()
            started.stop = threading.Event()
            self._run_once()

    def abandon(self) -> None:
        """End the thread, without waiting for it."""
        self._started.stop.set()

    def _run(self, started: _Started) -> None:
        stop = started.stop
        while not stop.wait(self._every):
            self._run_once()

    def _run_once(self) -> None:
        for task in self._tasks:
            try:
                task()
            except StoreUnavailable:
                continue
            except Exception:
                if self._failed.due():
                    _log.exception("A task of the reporter failed; it runs again in a second.")
