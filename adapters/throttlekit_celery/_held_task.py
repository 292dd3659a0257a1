"""One delivery of a throttled task, and which part of the worker has it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from throttlekit_celery._host import worker_state

__all__ = ["HeldTask", "State"]


class State(Enum):
    """Which part of the worker has a throttled task."""

    RESERVED = "Celery: until the ETA, for rate_limit, for a free process"
    WAITING_FOR_POOL = "PoolCapacity"
    HELD = "HeldTasks: until it is woken"
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
        queue: The queue it came from, if that is known: read at receipt, as the worker may stop to consume it.
        asks_at: When it asks first, by the monotonic clock. A task whose body met a 429 was denied in another delivery.
        apart: Its id on waitlists if the worker has two messages with its task's id; "": the task's id.
        woken: Whether it was woken since it last asked.
        raised: Whether the prefetch count is one higher for it.
        stays_until: Until then it is not put back into its queue, since the last copy was in vain.
    """

    consumer: Any
    request: Any
    execute: Any
    received_at: float
    queue: str | None = None
    apart: str = ""
    asks_at: float = 0.0
    state: State = State.RESERVED
    woken: bool = False
    raised: bool = False
    stays_until: float = 0.0

    @property
    def id(self) -> str:
        """Its id on waitlists."""
        return self.apart or str(self.request.id)

    def becomes(self, state: State) -> None:
        """Change the state: the only place that does. Celery's list of reserved tasks follows."""
        before, self.state = self.state, state
        if state in _RELEASED:
            worker_state().task_ready(self.request)
        elif state is State.RESERVED and before in _RELEASED:
            worker_state().task_reserved(self.request)
