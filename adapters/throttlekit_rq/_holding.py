"""
The jobs that one of our workers holds: denied, among the scheduled jobs of their queue, until the store wakes them.

A woken job goes to the front of its queue, where any worker takes it and checks its limits again. If this worker is
killed, RQ or another worker enqueues its jobs `GRACE_S` after their turn.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, cast

from throttlekit import Limiter
from throttlekit.adapter import Deferred, Waited, Waiting, Waker
from throttlekit_rq._admission import BY_WORKER
from throttlekit_rq._settings import settings
from throttlekit_rq._waiting import come_back_sooner, others_are_idle, wake

__all__ = ["AT_FRONT", "GRACE_S", "Holding", "Item", "Return", "returns"]

GRACE_S = 10.0
"""Seconds after its turn at which a denied job comes back that nobody has woken."""

AT_FRONT = 32
"""
How many jobs of one worker may be woken and wait at the front of the queue, where any worker takes them. They are woken
up to 30 ms before their units come: at 500/s, that is 15 jobs. With 1, two workers were woken in turns, and the one
with more jobs fell behind: at 50/s with shares, light jobs waited 2.7 s (p99), and .05 s with 32.
"""

_SHORT_S = 0.1
"""Of a worker whose bodies are shorter the next job may be at the front of the queue before the last one has ended."""

_ASK_S = 0.25
"""How often a busy worker asks whether another one is idle."""

_AHEAD_US = 5_000
"""
A job is started so long before the time for which it was woken: a worker has to take it from its queue, and to ask. At
20/s, burst 1, on two cores that were busy with other work, 2 ms used .86 of the limit.
"""

_FREED_S = 1.0
"""So long after a worker was full its wakers look again whenever it is idle: the store's answer may come later."""

_AT_ONCE = 100

_ASKED_S = 0.3
"""A job that was woken, and has not been asked for within so long, does not keep the others of its worker waiting."""


@dataclass(eq=False, slots=True)
class Item:
    """
    A job that may wait.

    Attributes:
        grace: How many seconds after its turn it comes back.
        scheduled: Whether it is among the scheduled jobs.
        woken: Whether the store has woken it.
    """

    id: str
    queue: str
    grace: float = GRACE_S
    scheduled: bool = False
    woken: bool = False


class Return(NamedTuple):
    """
    When a job comes back by itself that was denied and is held.

    Attributes:
        outcome: With the delay after which it comes back.
        grace: How many seconds after its turn that is.
        ends_in: In how many seconds it is to wait no longer; infinity: never.
    """

    outcome: Deferred
    grace: float
    ends_in: float


def returns(outcome: Deferred, waited: Waited, max_wait: float | None, lives: float) -> Return:
    """
    When a job comes back by itself: some time after its turn, or once it is to wait no longer.

    Args:
        max_wait: The job's own; None: as configured. In seconds.
        lives: In how many seconds its ttl ends.
    """
    delivery = settings().rules.delivery(BY_WORKER, max_wait)
    ends_in = min(delivery.max_wait - waited.for_us / 1_000_000, lives)
    turn_in = max(0.0, min(outcome.delay, delivery.longest, ends_in))
    delay = max(0.0, min(turn_in + GRACE_S, lives))
    return Return(replace(outcome, delay=delay), delay - turn_in, ends_in)


class Holding:
    """
    What one worker holds, with one waker for each limiter.

    Args:
        connection: The Redis of the queues.
        queues: Their names.
        free: How many jobs may be started now. None: `AT_FRONT`, if this worker or another one is about to take a job.
    """

    def __init__(
        self, connection: Any, queues: Callable[[], Sequence[str]], *, free: Callable[[], int] | None = None
    ) -> None:
        self._connection, self._queues = connection, queues
        self._free = free or self._free_now
        self._wakers: dict[Limiter, Waker[Item]] = {}
        self._lock = threading.Lock()
        self._started: dict[str, tuple[float, Waker[Item]]] = {}
        self._last: dict[str, str] = {}
        self._since: float | None = None
        self._is_short, self._was_full_until = True, 0.0
        self._others_idle, self._asked_at = False, 0.0

    def waker_of(self, limiter: Limiter) -> Waker[Item]:
        """What wakes the jobs for which *limiter* is asked."""
        waker = self._wakers.get(limiter)
        if waker is None:
            waker = self._wakers[limiter] = limiter.make_waker(
                self._free, partial(self._start, limiter), ahead_us=_AHEAD_US, roams=True
            )
        return waker

    def waits(self, id_: str, queue: str, limiter: Limiter) -> Waiting:
        """How a job of *queue*, for which *limiter* is asked, waits if it is denied."""
        with self._lock:
            self._started.pop(id_, None)
        return Waiting(self.waker_of(limiter), Item(id_, queue), id_)

    def scheduled(self, waiting: Waiting) -> None:
        """A job was denied, and is among the scheduled jobs now."""
        item: Item = waiting.item
        with self._lock:
            item.scheduled, woken = True, item.woken
        if woken:
            self._put_first(cast("Waker[Item]", waiting.waker), item)

    # What the worker does

    def busy(self) -> None:
        """The worker has taken a job."""
        self._since = time.monotonic()

    def idle(self) -> None:
        """The worker looks for a job."""
        self._since = None
        if time.monotonic() < self._was_full_until:
            for waker in self._wakers.values():
                waker.freed()

    def ran(self, job: Any) -> None:
        """The worker has run *job*, or failed it."""
        if self._since is not None:
            self._is_short = time.monotonic() - self._since < _SHORT_S
        for waker in self._wakers.values():
            waker.done(job.id)

    def let_go(self) -> None:
        """Forget jobs that were woken a while ago: other processes have taken them, or no worker is free."""
        before = time.monotonic() - _ASKED_S
        with self._lock:  # until they are passed on: one that asks and is denied meanwhile is held again
            late = [each for each in islice(self._started.items(), 2 * _AT_ONCE) if each[1][0] < before]
            for id_, (_, waker) in late:
                del self._started[id_]
                waker.pass_on(id_)

    def close(self, *, in_queue: Callable[[str], bool]) -> None:
        """
        The worker ends.

        Args:
            in_queue: Whether what it holds of a queue goes to the front of that queue, where other workers ask for it
                at once. Otherwise it comes back at its turn.
        """
        queues: dict[str, list[Item]] = {}
        for waker in self._wakers.values():
            for item in waker.close():
                queues.setdefault(item.queue, []).append(item)
        for queue, items in queues.items():
            to_front = in_queue(queue)
            for n in reversed(range(0, len(items), _AT_ONCE)):  # each part goes before the last one
                part = {item.id: item.grace for item in items[n : n + _AT_ONCE]}
                if to_front:
                    wake(self._connection, queue, [*part])
                else:
                    come_back_sooner(self._connection, queue, part)

    # Called in any thread

    def _free_now(self) -> int:
        if self._is_free():
            return AT_FRONT
        self._was_full_until = time.monotonic() + _FREED_S
        return 0

    def _is_free(self) -> bool:
        """Whether this worker, or another one, is about to take a job."""
        since, now = self._since, time.monotonic()
        if since is None:
            return True
        if now - since < _SHORT_S:
            return self._is_short
        if now - self._asked_at > _ASK_S:
            self._asked_at = now
            with suppress(Exception):
                self._others_idle = others_are_idle(self._connection, self._queues())
        return self._others_idle

    def _start(self, limiter: Limiter, id_: str, item: Item) -> bool:
        """The store has woken *item*. Returns whether somebody is going to ask for it."""
        with self._lock:
            item.woken, scheduled = True, item.scheduled
        return not scheduled or self._put_first(self._wakers[limiter], item)

    def _put_first(self, waker: Waker[Item], item: Item) -> bool:
        """Put *item* to the front of its queue. Returns whether somebody is going to ask for it."""
        with self._lock:
            before, self._last[item.queue] = self._last.get(item.queue, "-"), item.id
            self._started[item.id] = time.monotonic(), waker
        self.let_go()
        try:
            return not wake(self._connection, item.queue, [item.id], before)
        except BaseException:
            with self._lock:
                self._started.pop(item.id, None)  # the waker tries again, and is not to let go of it before
            raise
