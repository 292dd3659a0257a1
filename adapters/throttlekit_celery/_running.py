"""
The tasks that were admitted, as the worker's main process sees them: from the grant until the body has ended.

The body's own process renews and releases its leases. This process renews them until the body begins, and releases
them if the other cannot: it was killed, or the body never began. Slots that are counted in this process alone stay its
own: no other process knows of them.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from throttlekit import Decision, Limiter
from throttlekit.adapter import Run, lane_of
from throttlekit_celery._body import GoesBack
from throttlekit_celery._waiting import HeldTask, State

__all__ = ["RunningTasks"]

_CALLBACKS = ("on_accepted", "on_success", "on_failure", "on_timeout")
_GATE = "execute_using_pool"
_CHECK_EVERY = 0.005
_LONGEST_DEATH = 10.0


@dataclass(slots=True, eq=False)
class _Grant:
    """
    One task that was admitted.

    Attributes:
        lanes: Where tasks wait for the slots that it holds.
        slots: The decision, if it holds slots of concurrency limits.
        ours: Of those, what this process releases when the body has ended.
        in_loop: Whether the end of the body is reported in the worker's event loop; else a thread of the pool may
            report it.
    """

    lanes: tuple[str, ...]
    slots: Decision | None
    ours: Decision | None
    in_loop: bool


class RunningTasks:
    """
    Follows tasks to the end of their bodies.

    Args:
        wake: Called with a lane when a slot or a unit may be free for its tasks, in the worker's own thread.
        come_back: Called with a task whose body has raised `RateLimited`, in the worker's own thread.
        freed: Called with the consumer when a body has ended, in a thread of the pool.
    """

    def __init__(
        self,
        limiter: Limiter,
        wake: Callable[[str], None],
        come_back: Callable[[HeldTask, GoesBack], None],
        freed: Callable[[Any], None],
    ) -> None:
        self._limiter = limiter
        self._wake = wake
        self._come_back = come_back
        self._freed = freed
        self._grants: dict[HeldTask, _Grant] = {}
        self._after: deque[Callable[[], None]] = deque()  # what is to be done after bodies that have ended
        self._checking = False
        self._draining = False
        self._connection = 0

    def execute(self, held: HeldTask, run: Run, pool: Any, **options: Any) -> Any:
        """Give *held* to the pool."""
        request = held.request
        request.on_accepted = partial(self._accepted, held, request.on_accepted)
        request.on_success = partial(self._succeeded, held, request.on_success)
        request.on_failure = partial(self._failed, held, request.on_failure)
        request.on_timeout = partial(self._timed_out, held, request.on_timeout)
        in_loop = bool(getattr(pool, "uses_semaphore", False)) and held.consumer.hub is not None
        lanes, ahead = run.lanes, held.ahead(run)
        slots = run.decision if lanes else None
        held.becomes(State.RUNNING)
        grant = self._grants[held] = _Grant(lanes, slots, slots, in_loop)
        if slots is not None:
            self._limiter.keep(slots, _ignore_loss)
        if not in_loop and not self._checking:
            self._check_later(held.consumer)
        try:
            return held.execute(pool, **options)
        except BaseException:
            self._release(slots)
            self._end(held)
            raise
        finally:
            if slots is not None or ahead:
                self._wake_more(grant, slots, ahead)

    def start(self, consumer: Any) -> None:
        """The worker is connected, for the first time or again."""
        if self._grants or self._after:
            self._check_later(consumer)

    def disconnected(self) -> None:
        """The connection is lost: the broker delivers again what was not acknowledged."""
        self._checking, self._connection = False, self._connection + 1  # some versions of Celery forget their timers
        for held in list(self._grants):
            held.becomes(State.ABANDONED)

    def close(self) -> None:
        """The pool has ended: release what its processes held."""
        self._drain()
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
            self._end(held, partial(self._come_back, held, error))
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

    def _end(self, held: HeldTask, come_back: Callable[[], None] | None = None) -> None:
        grant = self._grants.get(held)
        if grant is None:
            return
        for name in _CALLBACKS:
            held.request.__dict__.pop(name, None)
        ours, grant.ours = grant.ours, None
        self._release(ours)
        if come_back is None:
            held.becomes(State.ENDED)
            # It holds *held*, and so itself: only Python's collector would find them, message and arguments and all.
            held.request.__dict__.pop(_GATE, None)
        else:
            self._after.append(come_back)
        self._after.extend([partial(self._wake, lane) for lane in grant.lanes])
        del self._grants[held]  # last: `_check` goes on for as long as there are grants
        if not grant.in_loop:
            self._freed(held.consumer)
        if not self._after:
            return
        if grant.in_loop:
            self._drain()
        elif held.consumer.hub is not None:
            held.consumer.hub.call_soon(self._drain)  # with some versions of kombu that is before the next check

    def _release(self, slots: Decision | None) -> None:
        if slots is not None:
            self._limiter.release(slots)

    def _wake_more(self, grant: _Grant, slots: Decision | None, ahead: tuple[str, ...]) -> None:
        """
        A grant that leaves slots free, or came before it was due, wakes one task more: it may be due much later than
        it can run.
        """
        self._after.extend([partial(self._wake, lane) for lane in ahead])
        for each in slots.leases if slots is not None else ():
            if slots is not None and each.limit is slots.limit and slots.remaining:
                self._after.append(partial(self._wake, lane_of(each.bucket)))
        if grant.in_loop:
            self._drain()

    def _check_later(self, consumer: Any) -> None:
        self._checking = True
        consumer.timer.call_after(_CHECK_EVERY, self._check, (consumer, self._connection))

    def _check(self, consumer: Any, connection: int) -> None:
        if connection != self._connection:
            return
        try:
            self._drain()
        finally:
            self._checking = False
        if self._grants or self._after:
            self._check_later(consumer)

    def _drain(self) -> None:
        """
        Do what is to be done after bodies that have ended; in the worker's own thread.

        One call after the other, never one within another: a task that is woken may run, or wake another, at once.
        """
        if self._draining:
            return
        self._draining = True
        try:
            while self._after:
                self._after.popleft()()
        finally:
            self._draining = False


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
