"""
The tasks that were admitted, as the worker's main process sees them: from the grant until the body has ended.

The body's own process renews and releases its leases. This process renews them until the body begins, and releases
them if the other cannot: it was killed, or the body never began. Slots that are counted in this process alone stay its
own: no other process knows of them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from throttlekit import Decision, Limiter
from throttlekit.adapter import Run
from throttlekit_celery._body import GoesBack
from throttlekit_celery._held_task import HeldTask, State

__all__ = ["RunningTasks"]

_CALLBACKS = ("on_accepted", "on_success", "on_failure", "on_timeout")
_EXECUTE = "execute_using_pool"
_CHECK_EVERY = 0.005
_LONGEST_DEATH = 10.0


@dataclass(slots=True, eq=False)
class _Grant:
    """
    One task that was admitted.

    Attributes:
        slots: The decision, if it holds slots of concurrency limits.
        ours: Of those, what this process releases when the body has ended.
    """

    slots: Decision | None
    ours: Decision | None


class RunningTasks:
    """
    Follows tasks to the end of their bodies.

    Args:
        ended: Called with a task whose body has ended, in any thread.
        come_back: Called with a task whose body has raised `RateLimited`, in any thread.
    """

    def __init__(
        self,
        limiter: Limiter,
        ended: Callable[[HeldTask], None],
        come_back: Callable[[HeldTask, GoesBack], None],
    ) -> None:
        self._limiter = limiter
        self._ended = ended
        self._come_back = come_back
        self._grants: dict[HeldTask, _Grant] = {}

    def execute(self, held: HeldTask, run: Run, pool: Any, **options: Any) -> Any:
        """Give *held* to the pool."""
        request = held.request
        request.on_accepted = partial(self._accepted, held, request.on_accepted)
        request.on_success = partial(self._succeeded, held, request.on_success)
        request.on_failure = partial(self._failed, held, request.on_failure)
        request.on_timeout = partial(self._timed_out, held, request.on_timeout)
        slots = run.decision if run.decision is not None and run.decision.leases else None
        held.becomes(State.RUNNING)
        self._grants[held] = _Grant(slots, slots)
        if slots is not None:
            self._limiter.keep(slots, _ignore_loss)
        try:
            return held.execute(pool, **options)
        except BaseException:
            self._release(slots)
            self._end(held)
            raise

    def disconnected(self) -> None:
        """The connection is lost: the broker delivers again what was not acknowledged."""
        for held in list(self._grants):
            held.becomes(State.ABANDONED)

    def close(self) -> None:
        """The pool has ended: release what its processes held."""
        for held, grant in list(self._grants.items()):
            if held.request.worker_pid != os.getpid():  # a thread may still run, and will release its own
                self._release(grant.slots)
                self._end(held)

    # What Celery's pools report, some in threads of their own

    def _accepted(self, held: HeldTask, original: Any, pid: int, *args: Any, **options: Any) -> None:
        """The body begins, in process *pid*."""
        grant = self._grants.get(held)
        if grant is not None and grant.ours is not None:
            grant.ours = self._limiter.hand_over(grant.ours, pid)
        original(pid, *args, **options)

    def _succeeded(self, held: HeldTask, original: Any, *args: Any, **options: Any) -> None:
        """The body has ended, well or badly, and has released what it held."""
        try:
            original(*args, **options)
        finally:
            self._end(held)

    def _failed(self, held: HeldTask, original: Any, info: Any, *args: Any, **options: Any) -> None:
        error = getattr(info.exception, "exc", None) or info.exception  # pickled, it is wrapped
        if isinstance(error, GoesBack) and held in self._grants:
            self._end(held, error)
            return
        try:
            original(info, *args, **options)
        finally:
            if not options.get("return_ok"):
                self._killed(held, time.monotonic() + _LONGEST_DEATH)

    def _timed_out(self, held: HeldTask, original: Any, soft: bool, timeout: float) -> None:
        try:
            original(soft, timeout)
        finally:
            if not soft:
                self._killed(held, time.monotonic() + _LONGEST_DEATH)

    # The end of a task

    def _killed(self, held: HeldTask, until: float) -> None:
        """The body's process dies, now or in a moment: as long as it lives its body may be at work."""
        grant = self._grants.get(held)
        if grant is None:
            return
        if grant.slots is not None and _lives(held.request.worker_pid) and time.monotonic() < until:
            held.consumer.timer.call_after(_CHECK_EVERY, self._killed, (held, until))
            return
        self._release(grant.slots)
        self._end(held)

    def _end(self, held: HeldTask, back: GoesBack | None = None) -> None:
        grant = self._grants.pop(held, None)
        if grant is None:
            return
        for name in _CALLBACKS:
            held.request.__dict__.pop(name, None)
        self._release(grant.ours)
        if back is not None:
            self._come_back(held, back)
            return
        held.becomes(State.ENDED)
        # It holds *held*, and so itself: only Python's collector would find them, message and arguments and all.
        held.request.__dict__.pop(_EXECUTE, None)
        self._ended(held)

    def _release(self, slots: Decision | None) -> None:
        if slots is not None:
            self._limiter.release(slots)


def _ignore_loss() -> None:
    """A lease is lost before the body begins: no body is there yet that `lost` could warn."""


def _lives(pid: int | None) -> bool:
    if pid is None or pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
