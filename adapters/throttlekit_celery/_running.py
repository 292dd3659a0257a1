"""
Follow the admitted tasks of a worker, in its main process, from the grant until the body has ended.

Until the body begins, the main process renews the task's leases. While the body runs, the pool process renews them, and
releases them at its end. If the pool process is killed, or the body never begins, the main process releases the leases.
If the limiter's store is in memory, the main process keeps the slots, because no other process has that memory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from throttlekit import Decision, Limiter
from throttlekit.adapter import Run
from throttlekit_celery._body import RunAgain
from throttlekit_celery._held_task import HeldTask, State

__all__ = ["RunningTasks"]

_CALLBACKS = ("on_accepted", "on_success", "on_failure", "on_timeout")
_EXECUTE = "execute_using_pool"
_CHECK_EVERY = 0.005
_LONGEST_DEATH = 10.0


class RunningTasks:
    """
    Follows the tasks of one worker to the end of their bodies.

    Args:
        on_end: A function that is called with each task whose body has ended, in any thread.
        on_rate_limited: A function that is called with each task whose body has raised `RateLimited`, in any thread.
    """

    def __init__(
        self,
        consumer: Any,
        limiter: Limiter,
        on_end: Callable[[HeldTask], None],
        on_rate_limited: Callable[[HeldTask, RunAgain], None],
    ) -> None:
        self._consumer = consumer
        self._limiter = limiter
        self._on_end = on_end
        self._on_rate_limited = on_rate_limited
        self._tasks: set[HeldTask] = set()

    def execute(self, held: HeldTask, run: Run, pool: Any, **options: Any) -> Any:
        """Pass *held* to the pool. If that fails before its body begins, its units are returned."""
        request = held.request
        request.on_accepted = partial(self._on_accepted, held, request.on_accepted)
        request.on_success = partial(self._on_success, held, request.on_success)
        request.on_failure = partial(self._on_failure, held, request.on_failure)
        request.on_timeout = partial(self._on_timeout, held, request.on_timeout)
        held.slots = held.own_slots = run.decision if run.decision is not None and run.decision.leases else None
        held.set_state(State.RUNNING)
        self._tasks.add(held)
        if held.slots is not None:
            self._limiter.keep(held.slots, lambda: None)  # before the body begins, no body has to be interrupted
        try:
            return held.execute(pool, **options)
        except BaseException as error:
            # A pool of threads that could not start a thread raises RuntimeError, and runs the task later.
            if run.decision is not None and request.time_start is None and not isinstance(error, RuntimeError):
                held.slots = held.own_slots = None
                self._limiter.cancel(run.decision)
            self._release(held.slots)
            self._end(held)
            raise

    def on_disconnect(self) -> list[HeldTask]:
        """
        Mark all tasks as abandoned after a lost connection: the broker redelivers the unacknowledged tasks. Forget the
        tasks that the pool discards, and return them.
        """
        pool, discarded = self._consumer.pool, list[HeldTask]()
        discards = getattr(pool, "uses_semaphore", False) and getattr(pool, "flush", None)
        for held in list(self._tasks):
            held.set_state(State.ABANDONED)
            if discards and held.request.time_start is None:
                # A pool of processes discards a task that no process has accepted, and never calls its callbacks. A
                # process may have received the task, so its slots are not released: their leases end.
                self._forget(held)
                if held.own_slots is not None:
                    self._limiter.hand_over(held.own_slots, os.getpid())
                held.set_state(State.GONE)
                discarded.append(held)
        return discarded

    def close(self) -> None:
        """Release the slots of the pool's processes, which have ended."""
        for held in list(self._tasks):
            if held.request.worker_pid != os.getpid():  # a thread may still be running, and releases its own slots
                self._release(held.slots)
                self._end(held)

    # Callbacks of Celery's pools, some in other threads

    def _on_accepted(self, held: HeldTask, original: Any, pid: int, *args: Any, **options: Any) -> None:
        """Hand the slots over to process *pid*, in which the body begins."""
        if held in self._tasks and held.own_slots is not None:
            held.own_slots = self._limiter.hand_over(held.own_slots, pid)
        original(pid, *args, **options)

    def _on_success(self, held: HeldTask, original: Any, outcome: Any, *args: Any, **options: Any) -> None:
        """
        End *held*. Its body has returned or raised an error, and its process has released the slots.

        With `worker_deduplicate_successful_tasks`, the body of a redelivered task does not run if the task has already
        succeeded. Then Celery reports no run time, and no signal releases the slots in the pool process.
        """
        failed, _, run_time = outcome
        if not failed and run_time is None:
            held.own_slots = held.slots
        try:
            original(outcome, *args, **options)
        finally:
            self._end(held)

    def _on_failure(self, held: HeldTask, original: Any, info: Any, *args: Any, **options: Any) -> None:
        error = getattr(info.exception, "exc", None) or info.exception  # errors of another process are wrapped
        if isinstance(error, RunAgain) and held in self._tasks:
            self._end(held, error)
            return
        try:
            original(info, *args, **options)
        finally:
            if not options.get("return_ok"):
                self._end_after_death(held, time.monotonic() + _LONGEST_DEATH)

    def _on_timeout(self, held: HeldTask, original: Any, soft: bool, timeout: float) -> None:
        try:
            original(soft, timeout)
        finally:
            if not soft:
                self._end_after_death(held, time.monotonic() + _LONGEST_DEATH)

    # The end of a task

    def _end_after_death(self, held: HeldTask, until: float) -> None:
        """End *held* when its process is dead, or at *until*. While the process lives, the body may be running."""
        if held not in self._tasks:
            return
        if held.slots is not None and _is_alive(held.request.worker_pid) and time.monotonic() < until:
            self._consumer.timer.call_after(_CHECK_EVERY, self._end_after_death, (held, until))
            return
        self._release(held.slots)
        self._end(held)

    def _end(self, held: HeldTask, back: RunAgain | None = None) -> None:
        if held not in self._tasks:
            return
        self._forget(held)
        self._release(held.own_slots)
        if back is not None:
            self._on_rate_limited(held, back)
            return
        held.set_state(State.ENDED)
        # Break a reference cycle: otherwise message and arguments stay in memory until Python's collector runs.
        held.request.__dict__.pop(_EXECUTE, None)
        self._on_end(held)

    def _forget(self, held: HeldTask) -> None:
        self._tasks.discard(held)
        for name in _CALLBACKS:
            held.request.__dict__.pop(name, None)

    def _release(self, slots: Decision | None) -> None:
        if slots is not None:
            self._limiter.release(slots)


def _is_alive(pid: int | None) -> bool:
    if pid is None or pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # with gevent and eventlet, it is the id of a greenlet
        return False
    except PermissionError:
        return True
    return True
