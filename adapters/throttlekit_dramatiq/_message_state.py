"""The state that a message carries: its ticket while it waits, and the marks of the worker that handles it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from throttlekit.adapter import NO_LANE, Delivery, Lane, Run, Waited

__all__ = [
    "DEFERRAL", "GRANT", "HOLDER", "TICKET", "Deferral", "Grant", "Holder", "consumer_of", "holder_of", "take_mark",
]  # fmt: skip

TICKET = "throttlekit"
"""The message option in which a denied message carries its ticket."""

DEFERRAL = "_throttlekit_deferral"
"""The attribute of a denied message: its `Deferral`."""

HOLDER = "_throttlekit_holder"
GRANT = "_throttlekit_grant"


@dataclass(slots=True)
class Deferral:
    """
    A denied message on its way back: the copy to put into the delay queue, and its delay. No copy: the message never
    left that queue, and goes on waiting there, with *ticket* and in *lane*. *parks*: the copy is parked, and may wait
    for so long. *left*: the lane that the message has left, whose next message is woken (`lane_left`).
    """

    copy: Any
    delay_ms: int
    consumer: Any
    sent: bool = False
    ticket: Any = None
    parks: Delivery | None = None
    lane: Lane = NO_LANE
    left: str = ""


@dataclass(frozen=True, slots=True)
class Holder:
    """
    The consumer thread that acknowledges a released message, and the connection that it came on; with what its delay
    queue held, where it waited, and whether it was released before its time, to ask how far its line has moved.
    """

    thread: Any
    consumer: Any
    queue: Any
    held: Any
    waited: Waited
    probe: bool


@dataclass(slots=True)
class Grant:
    """
    A message that was admitted, and the consumer that it came from.

    Attributes:
        behind: The line in which it stood, if its next message is to ask, and has not been handed over (`lane_behind`).
    """

    run: Run
    consumer: Any
    behind: str = ""

    @property
    def lanes(self) -> tuple[str, ...]:
        """Where the next message may be admitted once the body has ended."""
        return (*self.run.lanes, self.behind) if self.behind else self.run.lanes


def holder_of(message: Any) -> Holder | None:
    """The holder of a released *message*; None for any other."""
    holder: Holder | None = getattr(message, HOLDER, None)
    return holder


def consumer_of(worker: Any, message: Any) -> Any:
    """The broker's consumer on which *message* is acknowledged, as of now."""
    if worker is None:
        return None
    holder = holder_of(message)
    thread = holder.thread if holder else worker.consumers.get(message.queue_name)
    return getattr(thread, "consumer", None)


def take_mark(message: Any, mark: str) -> Any:
    """Remove and return the *mark* of a message; None if it has none."""
    return message.__dict__.pop(mark, None)
