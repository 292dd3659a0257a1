"""
Hold the denied jobs of one worker of throttlekit. They are scheduled jobs of their queue until the store wakes them.

A woken job is moved to the front of its queue, where any worker takes it and checks its limits again. If the holding
worker is killed, RQ or another worker enqueues its jobs `GRACE_S` after their turn.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from throttlekit import Limiter
from throttlekit.adapter import Deferred, Waiting, Waker
from throttlekit_rq._admission import Check
from throttlekit_rq._host import UNAVAILABLE
from throttlekit_rq._promoter import wake
from throttlekit_rq._waiting import others_are_idle, schedule_sooner

__all__ = ["AT_FRONT", "GRACE_S", "Holding", "Item", "PlannedReturn", "plan_return"]

GRACE_S = 10.0
"""The seconds after its turn at which a denied job is enqueued if the store has not woken it."""

AT_FRONT = 32
"""
The number of woken jobs of one worker that may wait at the front of the queue, where any worker takes them. Jobs are
woken up to 30 ms before their units are available: at 500/s, that is 15 jobs. With a value of 1, the store woke the
jobs of two workers in turn, although one worker held more jobs: at 50/s with shares, light jobs waited 2.7 s (p99).
With 32 they waited 0.05 s.
"""

_SHORT_BODY_S = 0.1
"""If the last body was shorter than this, the next job is moved to the front of the queue before this body ends."""

_CHECK_IDLE_S = 0.25
"""The seconds between two checks of a busy worker whether another worker is idle."""

_AHEAD_US = 5_000
"""
The time before its turn at which a woken job is moved to its queue, because a worker then has to take it and send its
request. At 20/s, burst 1, on two cores that were busy with other work, a value of 2 ms used only 0.86 of the limit.
"""

_AT_ONCE = 100

_RETRY_US = 500_000
"""The time until a woken job is started again, if RQ's Redis did not answer."""

_STARTED_S = 0.3
"""A woken job that no worker has taken within this time no longer blocks the other jobs of its worker."""


@dataclass(eq=False, slots=True)
class Item:
    """
    A job that may wait.

    Attributes:
        grace: The seconds after its turn at which the job is enqueued if it was not woken.
        scheduled: Whether the job is among the scheduled jobs.
        woken: Whether the store has woken the job.
    """

    id: str
    queue: str
    grace: float = GRACE_S
    scheduled: bool = False
    woken: bool = False


class PlannedReturn(NamedTuple):
    """
    The time at which a held job is enqueued if the store does not wake it.

    Attributes:
        delay: The seconds until the job is enqueued.
        grace: The part of that delay after the job's turn, in seconds.
        ends_in_us: The time until the job must not wait any longer; None if its wait has no limit.
    """

    delay: float
    grace: float
    ends_in_us: int | None


def plan_return(check: Check, outcome: Deferred) -> PlannedReturn:
    """Plan when a job is enqueued if the store does not wake it: after its turn, or when its wait must end."""
    delivery = check.delivery(check.rq_job, check.declared.options.max_wait)
    waited = 0.0 if outcome.decision is None else outcome.decision.waited
    turn_in = max(0.0, min(outcome.delay, delivery.longest, delivery.max_wait - waited, check.lives))
    delay = max(0.0, min(turn_in + GRACE_S, check.lives))
    return PlannedReturn(delay, delay - turn_in, delivery.ends_in_us(round(waited * 1_000_000)))


class Holding:
    """
    The jobs that one worker holds, with one waker for each limiter.

    Args:
        connection: The client of the Redis of the queues.
        queues: A function that returns the names of the queues.
        free: A function that returns the number of jobs that may start now. By default, that is `AT_FRONT` if this or
            another worker is about to take a job, and otherwise 0.
        relays: Whether the jobs make their requests in other processes: see `Waker`.
    """

    def __init__(
        self,
        connection: Any,
        queues: Callable[[], Sequence[str]],
        *,
        free: Callable[[], int] | None = None,
        relays: bool = False,
    ) -> None:
        self._connection, self._queues = connection, queues
        self._free, self._relays = free or self._free_now, relays
        self._wakers: dict[Limiter, Waker[Item]] = {}
        self._lock = threading.Lock()
        self._started: dict[str, tuple[float, Waker[Item]]] = {}
        self._last: dict[str, str] = {}
        self._since: float | None = None
        self._is_short, self._others_idle, self._checked_at = True, False, 0.0

    def waker_of(self, limiter: Limiter) -> Waker[Item]:
        """Return the waker for the jobs of *limiter*."""
        waker = self._wakers.get(limiter)
        if waker is None:
            waker = self._wakers[limiter] = limiter.make_waker(
                self._free, partial(self._start, limiter), ahead_us=_AHEAD_US, roams=True, relays=self._relays
            )
        return waker

    def waiting_of(self, id_: str, queue: str, limiter: Limiter) -> Waiting:
        """Return the `Waiting` of a job of *queue*, for a request to *limiter*."""
        with self._lock:
            self._started.pop(id_, None)
        return Waiting(self.waker_of(limiter), Item(id_, queue), id_)

    def on_scheduled(self, waiting: Waiting) -> None:
        """Record that a denied job is now a scheduled job. If the store woke it before it was scheduled, start it."""
        waiting.item.scheduled = True
        if waiting.item.woken:
            waiting.waker.hold(waiting.id, waiting.item, 0)

    # Called by the worker

    def mark_busy(self) -> None:
        """Record that the worker has taken a job."""
        self._since = time.monotonic()

    def mark_idle(self) -> None:
        """Record that the worker looks for a job."""
        self._since = None
        for waker in self._wakers.values():
            waker.report_free()

    def finish(self, job: Any) -> None:
        """Record that the worker has run *job*, or has let it fail."""
        if self._since is not None:
            self._is_short = time.monotonic() - self._since < _SHORT_BODY_S
        for waker in self._wakers.values():
            waker.done(job.id)

    def drop_late(self) -> None:
        """Drop jobs that were woken over `_STARTED_S` ago: another process has taken them, or no worker is free."""
        before = time.monotonic() - _STARTED_S
        with self._lock:  # so that `pass_on` cannot drop a job that is denied, and held again, in the meantime
            late = [each for each in islice(self._started.items(), 2 * _AT_ONCE) if each[1][0] < before]
            for id_, (_, waker) in late:
                del self._started[id_]
                waker.pass_on(id_)

    def close(self, *, in_queue: Callable[[str], bool]) -> None:
        """
        Return all held jobs, and send the last reports to the stores, because the worker ends.

        Args:
            in_queue: A function that returns whether the held jobs of a queue are moved to its front, where other
                workers take them at once. Otherwise each job is enqueued at its turn.
        """
        queues: dict[str, list[Item]] = {}
        for waker in self._wakers.values():
            for item in waker.close():
                queues.setdefault(item.queue, []).append(item)
        for limiter in self._wakers:
            limiter.flush()
        with suppress(Exception):  # otherwise the jobs are enqueued `GRACE_S` later
            for queue, items in queues.items():
                to_front = in_queue(queue)
                for n in reversed(range(0, len(items), _AT_ONCE)):  # each part is put before the previous part
                    part = {item.id: item.grace for item in items[n : n + _AT_ONCE]}
                    if to_front:
                        wake(self._connection, queue, [*part])
                    else:
                        schedule_sooner(self._connection, queue, part)

    # Called in any thread

    def _free_now(self) -> int:
        return AT_FRONT if self._is_free() else 0

    def _is_free(self) -> bool:
        """Return whether this worker, or another one, is about to take a job."""
        since, now = self._since, time.monotonic()
        if since is None:
            return True
        if now - since < _SHORT_BODY_S:
            return self._is_short
        if now - self._checked_at > _CHECK_IDLE_S:
            self._checked_at = now
            with suppress(Exception):
                self._others_idle = others_are_idle(self._connection, self._queues())
        return self._others_idle

    def _start(self, limiter: Limiter, id_: str, item: Item) -> bool:
        """Move *item*, which the store has woken, to the front of its queue. Return whether a worker will take it."""
        item.woken = True
        if not item.scheduled:
            return True  # `on_scheduled` continues
        waker = self._wakers[limiter]
        with self._lock:
            before, self._last[item.queue] = self._last.get(item.queue, "-"), item.id
            self._started[id_] = time.monotonic(), waker
        self.drop_late()
        try:
            return not wake(self._connection, item.queue, [id_], before)
        except UNAVAILABLE:
            with self._lock:
                self._started.pop(id_, None)  # `drop_late` must not drop it before the next attempt
            waker.hold(id_, item, _RETRY_US)
            return True
