"""What a message in this worker's hands is marked with: who holds it, how it goes back, what it was granted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from throttlekit import Decision, Delivery, Job, Limit

__all__ = ["DEFERRAL", "GRANT", "HOLDER", "Deferral", "Grant", "Holder", "consumer_of", "holder_of", "take_mark"]

DEFERRAL = "_throttlekit_deferral"
"""The attribute that marks a message as denied, and holds how it goes back."""

HOLDER = "_throttlekit_holder"
GRANT = "_throttlekit_grant"


@dataclass(slots=True)
class Deferral:
    """A denied message on its way back: the copy to put into the delay queue, and when. No copy: it never left."""

    copy: Any
    delay_ms: int
    consumer: Any
    sent: bool = False


@dataclass(frozen=True, slots=True)
class Holder:
    """
    Who a released message is to be acknowledged by: a thread, and the connection it came on. With the item of its
    delay queue that it was, when that is due, and whether it was brought up only to ask.
    """

    thread: Any
    consumer: Any
    queue: Any
    item: Any
    due: int
    probe: bool


@dataclass(frozen=True, slots=True)
class Grant:
    """
    A message that runs: the decision on it, and what it takes to defer it all the same. Its job is as it was asked
    for, its consumer the one that it came from.
    """

    decision: Decision
    limits: Sequence[Limit]
    job: Job
    delivery: Delivery
    broker: Any
    consumer: Any


def holder_of(message: Any) -> Holder | None:
    """Who holds a released *message*; None for any other."""
    holder: Holder | None = getattr(message, HOLDER, None)
    return holder


def consumer_of(worker: Any, message: Any) -> Any:
    """The broker's consumer that *message* is to be acknowledged on, as it is now."""
    if worker is None:
        return None
    holder = holder_of(message)
    thread = holder.thread if holder else worker.consumers.get(message.queue_name)
    return getattr(thread, "consumer", None)


def take_mark(message: Any, mark: str) -> Any:
    """The *mark* of a message, which it then has no more; None if it had none."""
    return message.__dict__.pop(mark, None)
