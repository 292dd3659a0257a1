"""One delivery of a throttled task, and the part of the worker that has it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from throttlekit import Decision
from throttlekit.adapter import Dropped, Failed
from throttlekit_celery._host import worker_state

__all__ = ["HeldTask", "State"]


class State(Enum):
    """The part of the worker that has a throttled task."""

    RESERVED = "Celery: until the ETA, for rate_limit, for a free process; or PoolCapacity"
    HELD = "HeldTasks: until it is woken"
    REQUEUEING = "HeldTasks: until the broker has confirmed the copy"
    RUNNING = "RunningTasks"
    ABANDONED = "RunningTasks; the connection is lost, so the broker delivers an unacknowledged task again"
    GONE = "the broker: it has a copy in the queue, or delivers the message again"
    ENDED = "no part: the task has ended, with or without running its body"


_RELEASED = (State.HELD, State.REQUEUEING, State.GONE)
"""The states in which Celery does not count the task among the tasks that it has reserved."""


@dataclass(slots=True, eq=False)
class HeldTask:
    """
    One delivery of a throttled task, from its receipt until the task has ended or is put back into its queue.

    Attributes:
        request: Celery's request of the task.
        execute: Celery's own function that passes the request to the pool.
        received_at: The time of the receipt, by the monotonic clock.
        queue: The queue that delivered the task, if known. It is read at receipt, because the worker may cancel the
            consumer later.
        separate_id: The id on waitlists, if the worker has two messages with the same task id; otherwise "".
        first_request_at: The time of the first request for units, by the monotonic clock. If the task was put back
            after a 429, this time is later than the receipt.
        raised: Whether the prefetch count is one higher because of this task.
        stays_until: The time before which the task is not put back into its queue, because the last copy failed.
        check_failed: Whether the last check of the held task failed.
        slots: The decision that admitted the task, if it holds slots of concurrency limits.
        own_slots: The part of *slots* that the main process releases when the body has ended.
        end: How the task ends without its body, if that is decided. Celery may not have stored it yet.
        has_limits: False if the task only waits behind tasks that have limits.
    """

    request: Any
    execute: Any
    received_at: float
    queue: str | None = None
    separate_id: str = ""
    first_request_at: float = 0.0
    state: State = State.RESERVED
    raised: bool = False
    stays_until: float = 0.0
    check_failed: bool = False
    slots: Decision | None = None
    own_slots: Decision | None = None
    end: Failed | Dropped | None = None
    has_limits: bool = True

    @property
    def id(self) -> str:
        """The id of this task on waitlists."""
        return self.separate_id or str(self.request.id)

    def set_state(self, state: State) -> None:
        """Change the state, and update Celery's list of reserved tasks. Do not assign `state` directly."""
        before, self.state = self.state, state
        if state in _RELEASED:
            worker_state().task_ready(self.request)
        elif state is State.RESERVED and before in _RELEASED:
            worker_state().task_reserved(self.request)
