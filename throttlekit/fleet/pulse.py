"""What each process does once a second beside its decisions, in its own thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from throttlekit._util.fork_safety import renew_lock_after_fork
from throttlekit._util.log_limiter import Every
from throttlekit.errors import StoreUnavailable

__all__ = ["Pulse"]

_log = logging.getLogger("throttlekit")


@dataclass(slots=True, eq=False)
class _Beating:
    """The thread of this process; a forked child begins with none."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    stop: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None


class Pulse:
    """
    Calls each of *beats* every second, one after the other, from the first `felt` on until it is stopped.

    A beat that fails is called again the next time. An outage of the store is logged by the breaker.

    Args:
        every: Seconds from one beat to the next.
    """

    def __init__(self, beats: list[Callable[[], None]], *, every: float = 1.0) -> None:
        self._beats = beats
        self._every = every
        self._beating = _Beating()
        renew_lock_after_fork(self, "_beating", _Beating)
        self._failed = Every()

    @property
    def beats(self) -> bool:
        """Whether it does, in this process."""
        return self._beating.thread is not None

    def felt(self) -> None:
        """
        Make sure that it beats. The first in each process, a forked one too, beats once before it returns, in the
        caller's own thread: what is decided next knows what the fleet knows.
        """
        beating = self._beating
        if beating.thread is not None:
            return
        with beating.lock:
            if beating.thread is not None:
                return
            self._beat()
            thread = threading.Thread(target=self._run, args=(beating,), name="throttlekit-pulse", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the process may have no more threads, or ends: each decision beats for itself
                if self._failed.due():
                    _log.warning(
                        "No thread could be started: each decision reads the rules of live control from the store."
                    )
                return
            beating.thread = thread

    def stop(self) -> None:
        """Beat once more, and then no more until it is felt again. Does nothing if it does not beat."""
        beating = self._beating
        with beating.lock:
            thread, beating.thread = beating.thread, None
            if thread is None:
                return
            beating.stop.set()
            thread.join()
            beating.stop = threading.Event()
            self._beat()

    def abandon(self) -> None:
        """Beat no more; does not wait for the thread."""
        self._beating.stop.set()

    def _run(self, beating: _Beating) -> None:
        stop = beating.stop
        while not stop.wait(self._every):
            self._beat()

    def _beat(self) -> None:
        for beat in self._beats:
            try:
                beat()
            except StoreUnavailable:
                continue
            except Exception:
                if self._failed.due():
                    _log.exception("A beat of the pulse failed; everything goes on all the same.")
