"""
The tasks that a worker holds: delivered, denied, and waiting in its memory for their slots.

A held task stays unacknowledged, so a killed worker loses none. The worker's prefetch count is one higher
for each, so that other tasks are fetched past them, however many they are.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from throttlekit import Limit
from throttlekit_celery._host import worker_state

__all__ = ["Held", "HeldTask"]

_log = logging.getLogger("throttlekit.celery")
_ETA_PRIORITY = 6  # what Celery's own ETA timers have
_UNLIMITED = 65_535  # kombu takes a higher prefetch count for none at all


@dataclass(slots=True, eq=False)
class HeldTask:
    """
    One delivery of a throttled task, from its receipt until its body begins, it ends, or it goes back.

    Attributes:
        execute: Celery's own way of giving the request to the pool.
        received_at: By the monotonic clock.
        carried: The ticket as the message carries it.
        waited: The ticket as it is now.
        queue: The queue it came from, if it can be told: at receipt, as the worker may stop to consume it.
        in_loop: Whether the worker's event loop tells of its body's end; else a thread of the pool may.
        gone: A copy is in its queue, or the broker has taken it back: it is not this worker's any more.
    """

    consumer: Any
    request: Any
    limits: tuple[Limit, ...]
    execute: Any
    received_at: float
    carried: Mapping[str, Any] | None = None
    ticket: Mapping[str, Any] | None = None
    queue: str | None = None
    in_loop: bool = False
    gone: bool = False


@dataclass(slots=True, eq=False)
class _Hold:
    """One wait of one task. *raised*: the prefetch count is one higher for it."""

    gated: HeldTask
    due: float
    raised: bool
    lane: str | None
    timer_entry: Any = None

    def __lt__(self, other: _Hold) -> bool:
        return self.due < other.due


class Held:
    """
    Holds tasks until their time has come, and then lets Celery take them up again.

    Args:
        most: With more than this many held, the prefetch count rises no further: the worker fetches
            nothing new until some have run.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._holds: dict[HeldTask, _Hold] = {}
        self._line: list[_Hold] = []
        self._lanes: dict[str, list[_Hold]] = {}
        self._lock = threading.Lock()  # without an event loop, timers run in a thread of their own

    def __len__(self) -> int:
        return len(self._holds)

    def hold(self, gated: HeldTask, delay: float, lane: str | None = None) -> None:
        """
        Give *gated* back to Celery in *delay* seconds. Meanwhile `inspect scheduled` lists it, with its slot.

        With a *lane* it may be woken before.
        """
        consumer, request, state = gated.consumer, gated.request, worker_state()
        state.task_ready(request)
        request._eta = datetime.now(timezone.utc) + timedelta(seconds=delay)
        with self._lock:
            raised = len(self._holds) < self._most and _raise_prefetch(consumer)
            hold = self._holds[gated] = _Hold(gated, time.monotonic() + delay, raised, lane)
            if lane:
                heapq.heappush(self._lanes.setdefault(lane, []), hold)
            if consumer.hub is not None:
                heapq.heappush(self._line, hold)
        if task_scheduled := getattr(state, "task_scheduled", None):  # Celery 5.7
            task_scheduled(request)
        hold.timer_entry = consumer.timer.call_after(delay, self._wake, (request, hold), priority=_ETA_PRIORITY)

    def wake(self, lane: str) -> None:
        """Let go of the first that waits in *lane*, if any does: a slot has come free."""
        with self._lock:
            hold = self._first(lane)
        if hold is not None:
            _cancel(hold.gated.consumer, hold)
            self._let_go(hold)

    def drop(self, gated: HeldTask) -> None:
        """Stop holding one task, if it is held."""
        with self._lock:
            hold = self._holds.pop(gated, None)
            if hold is not None and hold.lane:
                self._first(hold.lane)
        if hold is not None:
            _cancel(gated.consumer, hold)
            if hold.raised:
                gated.consumer.qos.decrement_eventually()

    def take_all(self, consumer: Any) -> list[HeldTask]:
        """Stop holding what came to *consumer*, and return it in the order of its slots."""
        with self._lock:
            taken = sorted(hold for gated, hold in self._holds.items() if gated.consumer is consumer)
            for hold in taken:
                del self._holds[hold.gated]
            for lane in {hold.lane for hold in taken if hold.lane}:
                self._first(lane)
        for hold in taken:
            _cancel(consumer, hold)
        return [hold.gated for hold in taken]

    def _wake(self, _: Any, hold: _Hold) -> None:
        """
        Let go of one task, and of every other whose time has come.

        Of all, because kombu's loop fires ten timers a turn, and may then sleep for a second. Timers that are
        threads or greenlets have no such turns, and must not cancel each other.
        """
        consumer, now = hold.gated.consumer, time.monotonic()
        self._let_go(hold)
        if consumer.hub is not None:
            while (due := self._next_due(now)) is not None:
                _cancel(consumer, due)
                self._let_go(due)

    def _let_go(self, hold: _Hold) -> None:
        with self._lock:
            if self._holds.get(hold.gated) is not hold:
                return
            del self._holds[hold.gated]
            if hold.lane:
                self._first(hold.lane)  # forgets those that are gone
        consumer, request = hold.gated.consumer, hold.gated.request
        worker_state().task_reserved(request)
        try:
            consumer.on_task_request(request)
        except Exception:
            _log.exception("Task %s could not be taken up again; the broker keeps it.", request.id)
        if hold.raised:
            consumer.qos.decrement_eventually()

    def _first(self, lane: str) -> _Hold | None:
        line = self._lanes.get(lane, [])
        while line and self._holds.get(line[0].gated) is not line[0]:
            heapq.heappop(line)
        if not line:
            self._lanes.pop(lane, None)
        return line[0] if line else None

    def _next_due(self, now: float) -> _Hold | None:
        with self._lock:
            while self._line:
                gone = self._holds.get(self._line[0].gated) is not self._line[0]
                if not gone and self._line[0].due > now:
                    return None
                hold = heapq.heappop(self._line)
                if not gone:
                    return hold
        return None


def _cancel(consumer: Any, hold: _Hold) -> None:
    """Kombu keeps a cancelled timer until its time, and `inspect scheduled` would list its task all the while."""
    consumer.timer.cancel(hold.timer_entry)
    if consumer.hub is not None:
        hold.timer_entry.args = ()


def _raise_prefetch(consumer: Any) -> bool:
    """
    Let the worker fetch one task more.

    Not past `worker_eta_task_limit`.
    """
    qos = consumer.qos
    most = min(getattr(qos, "max_prefetch", None) or _UNLIMITED, _UNLIMITED)
    if not 0 < qos.value < most:
        return False
    qos.increment_eventually()
    return True
