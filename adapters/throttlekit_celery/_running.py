"""
The tasks that were let pass, as the worker's main process sees them: from the grant until the body has ended.

The body's own process renews and releases its leases. This one does until the body begins, and releases them
if that process cannot: it was killed, or the body never began. Slots that are counted in this process alone stay
its own: no other knows of them.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from throttlekit import Decision, Limiter
from throttlekit._engine.running import lanes
from throttlekit._engine.ticket import lane_of
from throttlekit_celery._rate_limited import GoesBack
from throttlekit_celery._waiting import Held, HeldTask

__all__ = ["RunningTasks"]

_CALLBACKS = ("on_accepted", "on_success", "on_failure", "on_timeout")
_LOOK_EVERY = 0.005
_LONGEST_DEATH = 10.0


class RunningTasks:
    """
    Follows tasks to the end of their bodies.

    Args:
        held: Where those wait that are woken when a slot comes free.
        come_back: Called with a task whose body has heard "429", and the denial, in the worker's own thread.
        vacant: Called with the consumer when a body has ended, in a thread of the pool.
    """

    def __init__(
        self,
        limiter: Limiter,
        held: Held,
        come_back: Callable[[HeldTask, Decision], None],
        vacant: Callable[[Any], None],
    ) -> None:
        self._limiter = limiter
        self._held = held
        self._come_back = come_back
        self._vacant = vacant
        self._tasks: dict[HeldTask, Decision] = {}
        self._ours: dict[HeldTask, Decision] = {}  # what is released here at the end
        self._ends: deque[Callable[[], None]] = deque()
        self._looking = False
        self._running = False
        self._connection = 0

    def execute(self, gated: HeldTask, decision: Decision, pool: Any, **options: Any) -> Any:
        """Give *gated* to the pool."""
        request = gated.request
        request.on_accepted = partial(self._accepted, gated, request.on_accepted)
        request.on_success = partial(self._succeeded, gated, request.on_success)
        request.on_failure = partial(self._failed, gated, request.on_failure)
        request.on_timeout = partial(self._timed_out, gated, request.on_timeout)
        gated.in_loop = bool(getattr(pool, "uses_semaphore", False)) and gated.consumer.hub is not None
        self._tasks[gated] = decision
        leases = decision.leases
        if leases:
            self._ours[gated] = decision
            self._limiter.keep(decision, _nobody_minds)
        if not gated.in_loop and not self._looking:
            self._look_later(gated.consumer)
        try:
            return gated.execute(pool, **options)
        except BaseException:
            self._limiter.release(decision)
            self._over(gated)
            raise
        finally:
            if leases:
                self._wake_more(gated, decision)

    def start(self, consumer: Any) -> None:
        """The worker is connected, maybe anew."""
        if self._tasks or self._ends:
            self._look_later(consumer)

    def disconnected(self) -> None:
        """What has not been acknowledged the broker gives to somebody else."""
        self._looking, self._connection = False, self._connection + 1  # some Celerys forget their timers now
        for gated in list(self._tasks):
            gated.gone = True

    def close(self) -> None:
        """The pool has ended. What some process of it held is free for the next."""
        self._run_ends()
        for gated, decision in list(self._tasks.items()):
            if gated.request.worker_pid != os.getpid():  # a thread may still run, and will release its own
                self._limiter.release(decision)
                self._over(gated)

    # What Celery's pools tell, some in threads of their own

    def _accepted(self, gated: HeldTask, original: Any, pid: int, *args: Any, **options: Any) -> None:
        """The body begins, in its own process."""
        decision = self._ours.get(gated)
        if decision is not None:
            self._ours[gated] = self._limiter.hand_over(decision, pid)
        original(pid, *args, **options)

    def _succeeded(self, gated: HeldTask, original: Any, *args: Any, **options: Any) -> None:
        """The body has come to its end, good or bad. It has released what it held."""
        try:
            original(*args, **options)
        finally:
            self._over(gated)

    def _failed(self, gated: HeldTask, original: Any, told: Any, *args: Any, **options: Any) -> None:
        error = getattr(told.exception, "exc", None) or told.exception  # pickled, it is wrapped up
        decision = self._tasks.get(gated)
        if isinstance(error, GoesBack) and decision is not None:
            denial = error.denial(decision, gated.limits)
            self._over(gated, partial(self._come_back, gated, denial))
            return
        try:
            original(told, *args, **options)
        finally:
            if not options.get("return_ok"):
                self._killed(gated, time.monotonic() + _LONGEST_DEATH)

    def _timed_out(self, gated: HeldTask, original: Any, soft: bool, timeout: float) -> None:
        try:
            original(soft, timeout)
        finally:
            if not soft:
                self._killed(gated, time.monotonic() + _LONGEST_DEATH)

    # What becomes of it

    def _killed(self, gated: HeldTask, until: float) -> None:
        """The body's process dies, now or in a moment: as long as it lives its body may be at work."""
        decision = self._tasks.get(gated)
        if decision is None:
            return
        if decision.leases:
            if _lives(gated.request.worker_pid) and time.monotonic() < until:
                gated.consumer.timer.call_after(_LOOK_EVERY, self._killed, (gated, until))
                return
            self._limiter.release(decision)
        self._over(gated)

    def _over(self, gated: HeldTask, *then: Callable[[], None]) -> None:
        decision = self._tasks.get(gated)
        if decision is None:
            return
        for name in _CALLBACKS:
            gated.request.__dict__.pop(name, None)
        if (ours := self._ours.pop(gated, None)) is not None:
            self._limiter.release(ours)
        # Looked for as long as there are tasks, so this one goes last.
        self._ends.extend(then)
        if decision.leases:
            self._ends.extend([partial(self._held.wake, lane) for lane in lanes(decision)])
        del self._tasks[gated]
        if not gated.in_loop:
            self._vacant(gated.consumer)
        if not self._ends:
            return
        if gated.in_loop:
            self._run_ends()
        elif gated.consumer.hub is not None:
            gated.consumer.hub.call_soon(self._run_ends)  # with some kombus that is sooner than the next look

    def _wake_more(self, gated: HeldTask, decision: Decision) -> None:
        """Fill what is free: a grant that leaves slots wakes one more, who may wait for a slot that is far off."""
        for each in decision.leases:
            if each.limit is decision.limit and decision.remaining:
                self._ends.append(partial(self._held.wake, lane_of(each.bucket)))
        if gated.in_loop:
            self._run_ends()

    def _look_later(self, consumer: Any) -> None:
        self._looking = True
        consumer.timer.call_after(_LOOK_EVERY, self._look, (consumer, self._connection))

    def _look(self, consumer: Any, connection: int) -> None:
        if connection != self._connection:
            return
        try:
            self._run_ends()
        finally:
            self._looking = False
        if self._tasks or self._ends:
            self._look_later(consumer)

    def _run_ends(self) -> None:
        """
        In the worker's own thread.

        One after the other, never one within another: what is woken may run, or wake another, at once.
        """
        if self._running:
            return
        self._running = True
        try:
            while self._ends:
                self._ends.popleft()()
        finally:
            self._running = False


def _nobody_minds() -> None:
    """A lease that is lost before the body begins: nobody is there to be told."""


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
