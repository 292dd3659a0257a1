"""
The tasks that a worker holds: delivered, denied, and waiting in its memory until they are due.

A held task stays unacknowledged, so a killed worker loses no task. The worker's prefetch count is one higher for each,
so that other tasks are fetched past them, however many they are.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import Any

from throttlekit.adapter import NO_LANE, Entry, Lane, Run, Waited, WaitingRoom, lane_behind, lane_in, lane_left
from throttlekit_celery._host import worker_state

__all__ = ["HeldTask", "HeldTasks", "State"]

_log = logging.getLogger("throttlekit.celery")
_ETA_PRIORITY = 6  # what Celery's own ETA timers have
_LOOK_EVERY = 0.5
_MOST_LOOKS = 20
_SHORTEST = 0.001
_UNLIMITED = 65_535  # kombu takes a higher prefetch count for no limit at all


class State(Enum):
    """Which part of the worker has a throttled task."""

    RESERVED = "Celery: until the ETA, for rate_limit, for a free process"
    WAITING_FOR_POOL = "PoolCapacity"
    HELD = "HeldTasks: until it is due"
    REQUEUEING = "HeldTasks: until the broker has confirmed the copy"
    RUNNING = "RunningTasks"
    ABANDONED = "RunningTasks; the connection is lost: if it is unacknowledged, the broker delivers it again"
    GONE = "the broker: a copy is in the queue, or it delivers the message again"
    ENDED = "no part: its body has ended, or it ended without one"


_RELEASED = (State.HELD, State.REQUEUEING, State.GONE)
"""Celery does not count these among the tasks that it has reserved."""


@dataclass(slots=True, eq=False)
class HeldTask:
    """
    One delivery of a throttled task, from its receipt until its body has ended, it ends without one, or it goes back.

    Attributes:
        execute: Celery's own way to give the request to the pool.
        received_at: By the monotonic clock.
        carried: The ticket as the message carries it.
        ticket: The ticket as it is now.
        queue: The queue it came from, if that is known: read at receipt, as the worker may stop to consume it.
        entry: Its last wait in `HeldTasks`.
        waited: Its last wait there for its turn, which has ended; None again after a 429 of its body.
        due: When that wait ends, or ended, by the monotonic clock; 0: it has not waited.
        unsure: Whether it may be parked already: its broker has not answered.
        lane: Where it waits after its last denial; None: in the lane of its ticket.
    """

    consumer: Any
    request: Any
    execute: Any
    received_at: float
    carried: Mapping[str, Any] | None = None
    ticket: Mapping[str, Any] | None = None
    queue: str | None = None
    state: State = State.RESERVED
    entry: Entry[_Wait] | None = None
    waited: Waited | None = None
    due: float = 0.0
    unsure: bool = False
    lane: Lane | None = None

    def ahead(self, run: Run) -> tuple[str, ...]:
        """The line in which it stood, if that moves faster than the task knew when it began to wait here."""
        if self.waited is None:
            return ()
        behind = lane_behind(run, early=self.waited.expected - time.monotonic(), waited=self.waited)
        return (behind,) if behind else ()

    @property
    def waits_for_pool(self) -> bool:
        """Whether it was taken up, and has not asked yet. Celery counts one that was revoked meanwhile no longer."""
        reserved = self.state in (State.RESERVED, State.WAITING_FOR_POOL)
        return reserved and self.request in worker_state().reserved_requests

    def becomes(self, state: State) -> None:
        """Change the state: the only place that does. Celery's list of reserved tasks follows."""
        before, self.state = self.state, state
        if state in _RELEASED:
            worker_state().task_ready(self.request)
        elif state is State.RESERVED and before in _RELEASED:
            worker_state().task_reserved(self.request)


@dataclass(slots=True, eq=False)
class _Wait:
    """One wait of one task. *raised*: the prefetch count is one higher for it."""

    held: HeldTask
    raised: bool
    timer: Any = None

    def cancel_timer(self) -> None:
        """Kombu keeps a cancelled timer until its time, and `inspect scheduled` would list its task until then."""
        consumer = self.held.consumer
        if self.timer is None:
            return  # another thread is about to start it
        consumer.timer.cancel(self.timer)
        if consumer.hub is not None:
            self.timer.args = ()


class HeldTasks:
    """
    Holds tasks until they are due, and then lets Celery take them up again.

    Args:
        max_held: With more than this many held, the prefetch count rises no further: the worker fetches nothing new
            until some have run.
    """

    def __init__(self, max_held: int) -> None:
        self._max_held = max_held
        self._room: WaitingRoom[_Wait] = WaitingRoom()
        self._looking: Any = None  # the consumer whose timer looks at the lines
        self._asking: list[HeldTask] = []  # what the last look released
        self._lock = threading.Lock()  # without an event loop, timers run in a thread of their own

    def hold(
        self, held: HeldTask, delay: float, *, state: State = State.HELD, wakeable: bool = False, most: float = math.inf
    ) -> None:
        """
        Give *held* back to Celery in *delay* seconds. Until then `inspect scheduled` lists it, with its ETA.

        If it is *wakeable*, `wake` may give it back before, and so it is when it stands first in its line: twice a
        second, to ask how far the line has moved. Where its line falls behind, it is held for longer, up to *most*.
        """
        consumer, request = held.consumer, held.request
        held.becomes(state)
        with self._lock:
            raised = self._fetches_on(consumer) and consumer.qos.value > 0
            if raised:
                consumer.qos.increment_eventually()
            wait = _Wait(held, raised)
            now = time.monotonic()
            held.due = now + delay
            lane = (held.lane or lane_in(held.ticket)) if wakeable else NO_LANE
            left, latest = lane_left(held.waited, lane, delay) if wakeable else "", now + max(delay, most)
            entry = held.entry = self._room.put(wait, held.due, lane, now=now, latest=latest, before=held.waited)
        self._start_timer(entry, delay)
        if left:  # by a timer, not at once: each task of the lane may be denied and leave it, one inside the other
            consumer.timer.call_after(0, self.wake, (left,))
        if task_scheduled := getattr(worker_state(), "task_scheduled", None):  # Celery 5.7
            task_scheduled(request)
        if entry.lane.name and self._looking is not consumer:
            self._looking, self._asking = consumer, []
            consumer.timer.call_after(_LOOK_EVERY, self._look, (consumer,))

    def fetches_on(self, consumer: Any) -> bool:
        """Whether the worker fetches other tasks past one more that it holds."""
        with self._lock:
            return self._fetches_on(consumer)

    def wake(self, lane: str) -> bool:
        """A slot or a unit may be free: release the task that stands first in *lane*; return False if none does."""
        with self._lock:
            entry = self._room.first_in(lane)
        if entry is None:
            return False
        entry.item.cancel_timer()
        self._release(entry)
        return True

    def _look(self, consumer: Any) -> None:
        """
        Release the task that stands first in each line, in its turn, if it is due much later than now.

        Not while one of the last look waits for the pool still: a line would come to wait there, twice a second one.
        """
        if self._looking is not consumer:
            return
        now = time.monotonic()
        with self._lock:
            lanes = self._room.lanes
        self._asking = [held for held in self._asking if held.waits_for_pool]
        looks = 0 if self._asking else min(lanes, _MOST_LOOKS)
        for _ in range(looks):
            with self._lock:
                entry = self._room.to_look_at(now, _LOOK_EVERY / 2, now + _LOOK_EVERY / 2)
            if entry is not None and entry.item.held.consumer is consumer:
                self._asking.append(entry.item.held)
                entry.item.cancel_timer()
                self._release(entry)
        with self._lock:
            empty = not self._room.lanes
        self._looking = None if empty else consumer
        if not empty:
            consumer.timer.call_after(_LOOK_EVERY, self._look, (consumer,))

    def late(self, held: HeldTask) -> float:
        """By how many seconds the line of *held* is later than the answer to it said."""
        with self._lock:
            return 0.0 if held.entry is None or held.entry.gone else self._room.due(held.entry) - held.entry.own

    def drop(self, held: HeldTask) -> bool:
        """Stop holding one task; return whether it was held."""
        entry = held.entry
        if entry is None or not self._remove(entry):
            return False
        entry.item.cancel_timer()
        if entry.item.raised:
            held.consumer.qos.decrement_eventually()
        return True

    def take_all(self, consumer: Any) -> list[HeldTask]:
        """Stop holding the tasks that came to *consumer*, and return them in the order in which they are due."""
        with self._lock:
            taken = sorted(entry for entry in self._room if entry.item.held.consumer is consumer)
            for entry in taken:
                self._take_out(entry)
        for entry in taken:
            entry.item.cancel_timer()
        return [entry.item.held for entry in taken]

    def _on_timer(self, _: Any, entry: Entry[_Wait]) -> None:
        """Release one task, unless its line has fallen behind."""
        now, held = time.monotonic(), entry.item.held
        with self._lock:
            due = held.due if entry.gone else self._room.due(entry)
        if due > held.due + _SHORTEST:
            held.due = due
            self._start_timer(entry, due - now)
        else:
            self._release(entry)

    def _start_timer(self, entry: Entry[_Wait], delay: float) -> None:
        held = entry.item.held
        held.request._eta = datetime.now(timezone.utc) + timedelta(seconds=delay)
        entry.item.timer = held.consumer.timer.call_after(
            delay, self._on_timer, (held.request, entry), priority=_ETA_PRIORITY
        )

    def _release(self, entry: Entry[_Wait]) -> None:
        if not self._remove(entry):
            return
        held = entry.item.held
        held.becomes(State.RESERVED)
        try:
            held.consumer.on_task_request(held.request)
        except Exception:
            _log.exception("Task %s could not be taken up again; the broker keeps it.", held.request.id)
            if held.state is State.RESERVED:
                held.becomes(State.GONE)
        if entry.item.raised:
            held.consumer.qos.decrement_eventually()

    def _fetches_on(self, consumer: Any) -> bool:
        return len(self._room) < self._max_held and _prefetch_rises(consumer)

    def _remove(self, entry: Entry[_Wait]) -> bool:
        """
        Take *entry* out; return False if it was taken out before. The task that stands first in its line now may be due
        sooner than its timer says: the timer was set while the line was behind, as in a pause, and that has ended.
        """
        with self._lock:
            removed = self._take_out(entry)
            first = self._room.first_in(entry.lane.name) if removed and entry.lane.name else None
            due = 0.0 if first is None else self._room.due(first)
        if first is not None and due < first.item.held.due - _SHORTEST:
            first.item.held.due = due
            first.item.cancel_timer()
            self._start_timer(first, due - time.monotonic())
        return removed

    def _take_out(self, entry: Entry[_Wait]) -> bool:
        """As `WaitingRoom.remove`, within the lock; its task notes where it has waited."""
        removed = self._room.remove(entry)
        if removed and entry.lane.name:
            entry.item.held.waited = entry.waited
        return removed


def _prefetch_rises(consumer: Any) -> bool:
    """Whether the worker fetches a task more for each that it holds: up to `worker_eta_task_limit`."""
    qos = consumer.qos
    if getattr(consumer, "qos_global", None) is False and consumer.connection.transport.driver_type == "amqp":
        return False  # with a quorum queue, RabbitMQ keeps the count that a consumer began with
    most = min(getattr(qos, "max_prefetch", None) or _UNLIMITED, _UNLIMITED)
    return bool(qos.value < most)
