"""A worker process that kills itself at a certain command to Redis: before it, or before or after its answer."""

from __future__ import annotations

import itertools
import os
import signal
from typing import Any

from redis.connection import AbstractConnection

__all__ = ["MOMENTS", "MORTAL", "arm"]

MORTAL = "TK_MORTAL"
"""The environment variable "number moment" that says at which command, of all that the process sends, and when."""

MOMENTS = ("before it is sent", "before its answer", "after its answer")


def arm(gap: bytes = b"\0", until: bytes = b"\0") -> None:
    """
    Let this process die as $TK_MORTAL says; if that is not set, live.

    Args:
        gap: Not while a command that holds this is unanswered, nor then until one that holds *until* is answered, if
            its own answer was not empty: there the framework itself would lose a job. At the next command then,
            in whatever thread.
    """
    told = os.environ.get(MORTAL)
    if told is None:
        return
    number, moment = map(int, told.split())
    numbers = itertools.count(1)
    state: dict[str, Any] = {"number": 0, "open": None, "closes": None}
    kind: Any = AbstractConnection
    send, read = kind.send_packed_command, kind.read_response

    def die_if(reached: int) -> None:
        if state["number"] >= number and moment == reached and state["open"] is None:
            os.kill(os.getpid(), signal.SIGKILL)

    def sending(self: Any, command: Any, *args: Any, **kwargs: Any) -> Any:
        parts = command if isinstance(command, (list, tuple)) else [command]
        sent = b"".join(bytes(part) for part in parts if isinstance(part, (bytes, bytearray, memoryview)))
        state["number"] = next(numbers)
        if gap in sent:
            state["open"] = self
        elif until in sent:
            state["closes"] = self
        die_if(0)
        return send(self, command, *args, **kwargs)

    def reading(self: Any, *args: Any, **kwargs: Any) -> Any:
        die_if(1)
        answer = read(self, *args, **kwargs)
        if state["closes"] is self or (state["open"] is self and not answer):
            state["open"] = state["closes"] = None
        die_if(2)
        return answer

    kind.send_packed_command, kind.read_response = sending, reading
