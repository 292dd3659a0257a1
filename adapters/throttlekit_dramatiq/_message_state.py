"""The marks that a worker puts on the messages that it handles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from throttlekit.adapter import Run

__all__ = ["DEFERRAL", "GRANT", "Deferral", "Grant", "take_mark"]

DEFERRAL = "_throttlekit_deferral"
"""The attribute of a denied message that holds its `Deferral`."""

GRANT = "_throttlekit_grant"


@dataclass(slots=True)
class Deferral:
    """
    The deferral of a message, which stays unacknowledged in this process, or is replaced by a copy.

    Attributes:
        item: The held message.
        copy: The copy to enqueue. None if the message is held.
        delay_ms: The delay of the copy. None if it has no delay.
        sent: Whether the copy was enqueued.
    """

    item: Any
    copy: Any = None
    delay_ms: int | None = None
    sent: bool = False


@dataclass(frozen=True, slots=True)
class Grant:
    """An admitted message, and the item to hold if its body raises `RateLimited`."""

    run: Run
    item: Any


def take_mark(message: Any, mark: str) -> Any:
    """Remove and return the attribute *mark* of a message. Return None if the message does not have it."""
    return message.__dict__.pop(mark, None)
