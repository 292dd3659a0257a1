"""
The tasks that a worker holds: delivered, denied, and waiting in its memory until the store wakes them.

A held task stays unacknowledged, so a killed worker loses no task. The worker's prefetch count is one higher for each,
so that other tasks are fetched past them, however many they are.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import islice
from typing import Any
from uuid import uuid4

from throttlekit import Limiter
from throttlekit.adapter import Waiting, Waker
from throttlekit_celery._held_task import HeldTask, State
from throttlekit_celery._host import consume_again, has_fixed_windows, worker_state
from throttlekit_celery._loop_calls import LoopCalls
from throttlekit_celery._pool_capacity import PoolCapacity

__all__ = ["HeldTasks"]

_log = logging.getLogger("throttlekit.celery")

_CHECK_EVERY, _FREED_WITHIN = 0.5, 0.01
"""Seconds between checks of what is held, and between checks of a pool that was full."""
_MOST_AT_ONCE = 100
"""Tasks that one check ends or puts back, as the worker's loop waits meanwhile. The others follow at once."""

_UNLIMITED = 65_535  # kombu takes a higher prefetch count for no limit at all


class HeldTasks:
    """
    Holds the denied tasks of one worker until the store wakes them, and then lets Celery take them up again.

    Args:
        max_held: With more than this many held, the prefetch count rises no further: the worker fetches nothing new
            until some have run.
        check: Called with each held task now and then, in the worker's own thread. Returns whether it did something.
    """

    def __init__(
        self, consumer: Any, limiter: Limiter, capacity: PoolCapacity, max_held: int, check: Callable[[HeldTask], bool]
    ) -> None:
        self.consumer = consumer
        self.loop = LoopCalls(consumer)
        self.waker: Waker[HeldTask] = limiter.make_waker(self._free, self._start, give_back=self._given_back)
        self._capacity, self._max_held, self._check = capacity, max_held, check
        self._tasks: set[HeldTask] = set()
        self._coming: set[HeldTask] = set()  # woken, and not at the pool yet
        self._was_full = False
        self._turn: object = None
        self._checked_at = 0.0
        self._window, self._widens_at = 0, 0
        """The prefetch count of each consumer, if that is fixed, and with how many held tasks it is to be greater."""
        self._lock = threading.Lock()  # the waker has a thread of its own
        self.is_closed = False

    def __iter__(self) -> Iterator[HeldTask]:
        with self._lock:
            return iter(list(self._tasks))

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self) -> None:
        """The worker has connected: it may have forgotten its timers."""
        self.loop.start()
        self._turn, self._window, self._widens_at = None, 0, 0
        least = self.consumer.initial_prefetch_count
        if least and has_fixed_windows(self.consumer):
            self._window, self._widens_at = least, max(1, least // 2)
        if self._tasks:
            self._check_later()

    def waits(self, held: HeldTask) -> Waiting:
        """How *held* waits if it is denied."""
        return Waiting(self.waker, held, held.id)

    def requests(self) -> list[Any]:
        """Celery's requests of what is held."""
        return [held.request for held in self]

    def close(self) -> list[HeldTask]:
        """The worker stops. Returns what it held, or was about to take up."""
        self.is_closed = True
        waiting = self.waker.close()
        with self._lock:
            coming, self._coming = self._coming, set()
            self._tasks.clear()
        self.loop.close()
        return [*waiting, *(held for held in coming if held not in waiting)]

    # Called in the worker's own thread

    def hold(self, held: HeldTask, delay: float) -> None:
        """*held* was denied, and its waker has it. `inspect scheduled` lists it, with *delay* as a guess of its ETA."""
        with self._lock:
            if held.woken:
                return  # meanwhile: it is about to be taken up
            self._keep(held, State.HELD)
        held.request._eta = datetime.now(timezone.utc) + timedelta(seconds=delay)
        if task_scheduled := getattr(worker_state(), "task_scheduled", None):  # Celery 5.7
            task_scheduled(held.request)
        if self._turn is None:
            self._check_later()

    def requeue(self, held: HeldTask) -> bool:
        """Take *held* from its waker; False: it was woken meanwhile. It stays here until `forget`."""
        if self.waker.pass_on(held.id) is not held:
            return False
        with self._lock:
            self._keep(held, State.REQUEUEING)
        return True

    def hold_again(self, held: HeldTask, delay: float) -> None:
        """Let *held*, which its waker does not have, ask in *delay* seconds."""
        with self._lock:
            held.woken = False
            self._coming.discard(held)
            self._keep(held, State.HELD)
        self.waker.hold(held.id, held, round(delay * 1_000_000))

    def arrived(self, held: HeldTask) -> None:
        """*held* has come to the pool, and asks now, or waits there until it can."""
        held.woken = False
        with self._lock:
            self._coming.discard(held)

    def forget(self, held: HeldTask) -> None:
        """*held* is held here no longer."""
        with self._lock:
            self._tasks.discard(held)
            self._coming.discard(held)
            raised, held.raised = held.raised, False
        if raised:
            self.consumer.qos.decrement_eventually()

    def take_all(self) -> list[HeldTask]:
        """The connection is lost: forget all tasks, and return them; the waker keeps those that are acknowledged."""
        with self._lock:
            taken = [*self._tasks, *(held for held in self._coming if held not in self._tasks)]
            self._tasks.clear()
            self._coming.clear()
        taken.sort(key=lambda held: held.received_at)  # sets know no order
        for held in taken:
            held.raised = False  # the next connection has a prefetch count of its own
            if not held.request.acknowledged:
                self.waker.pass_on(held.id)
        return taken

    def _fetches_on(self) -> bool:
        """Whether the prefetch count rises with one more task that is held: up to `worker_eta_task_limit`."""
        qos = self.consumer.qos
        most = min(getattr(qos, "max_prefetch", None) or _UNLIMITED, _UNLIMITED)
        return not self._window and len(self._tasks) < self._max_held and bool(qos.value < most)

    def _keep(self, held: HeldTask, state: State) -> None:
        if held not in self._tasks:
            held.raised = self._fetches_on() and self.consumer.qos.value > 0
            self._tasks.add(held)
            if held.raised:
                self.consumer.qos.increment_eventually()
            if len(self._tasks) == self._widens_at:
                self.loop.call(self._fit_window)
        held.becomes(state)

    def _fit_window(self) -> None:
        """
        Where RabbitMQ does not change the prefetch count of a consumer, begin to consume again, so that other tasks are
        fetched past those that are held.
        """
        held, least = len(self._tasks), self.consumer.initial_prefetch_count
        window = min(least + held, max(least, self._max_held - held), _UNLIMITED)
        consume_again(self.consumer, window)
        self._window, self._widens_at = window, held + window - least // 2

    def _take_up(self, held: HeldTask) -> None:
        with self._lock:
            if held not in self._coming:
                return  # the connection was lost meanwhile
            self._tasks.discard(held)
            raised, held.raised = held.raised, False
            held.becomes(State.RESERVED)
        try:
            self.consumer.on_task_request(held.request)
        except Exception:
            _log.exception("Task %s could not be started again; the broker keeps it.", held.request.id)
            self.arrived(held)
            if held.state is State.RESERVED:
                held.becomes(State.GONE)
        if raised:
            self.consumer.qos.decrement_eventually()

    def _check_later(self) -> None:
        self._turn = turn = object()
        delay = _CHECK_EVERY if self._checked_at and not self._was_full else _FREED_WITHIN
        self.consumer.timer.call_after(delay, self._check_all, (turn,))

    def _check_all(self, turn: object) -> None:
        if turn is not self._turn:
            return
        self._turn = None
        try:
            if self._was_full and self._free():
                self._was_full = False
                self.waker.freed()
            now = time.monotonic()
            if now - self._checked_at >= _CHECK_EVERY:
                self._checked_at = now
                if sum(islice((1 for task in self if self._check(task)), _MOST_AT_ONCE)) == _MOST_AT_ONCE:
                    self._checked_at = 0.0
                if self._window > 2 * (self.consumer.initial_prefetch_count + len(self._tasks)):
                    self._fit_window()
        finally:
            if self._tasks:
                self._check_later()

    # Called in any thread

    def _free(self) -> int:
        free = self._capacity.free(self.consumer, len(self._coming))
        self._was_full = self._was_full or not free
        return free

    def _start(self, _: str, held: HeldTask) -> None:
        """The waker has woken *held*."""
        with self._lock:
            held.woken = True
            self._coming.add(held)
        self.loop.call(partial(self._take_up, held))

    def _given_back(self, held: HeldTask) -> None:
        """The waker does not hold *held* any longer: it holds another message with the same id, or the worker stops."""
        self.loop.call(partial(self._ask_apart, held))

    def _ask_apart(self, held: HeldTask) -> None:
        """Let *held* wait with an id of its own, unless the broker has delivered the same message once more."""
        tag = held.request.message.delivery_tag
        if any(
            other.id == held.id and other.request.message.delivery_tag == tag for other in self if other is not held
        ):
            self.forget(held)
            held.becomes(State.GONE)
            return
        held.apart = f"{held.id}:{uuid4().hex}"
        self._start(held.id, held)
