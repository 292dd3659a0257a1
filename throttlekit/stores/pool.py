"""Connections of our own to one server: the last that came back is the next to go, and no pool is asked in between."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from redis.exceptions import ConnectionError, ResponseError, TimeoutError

from throttlekit._util.fork_safety import renew_lock_after_fork

__all__ = ["Connections"]

_TRUSTED = 1.0
"""Seconds. One that lay idle for longer may have been closed by the server, so it is looked at before it is used."""


class Connections:
    """
    As many connections as there are questions under way at once. Safe to share between threads, and across a fork.

    A connection carries one question at a time. It is kept only after a whole answer was read: whatever
    else happens, an interrupt in between included, it is closed, so that no answer is ever read for another's.

    Args:
        make: Makes a connection of redis-py that is not connected yet.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._idle: deque[tuple[Any, float]] = deque()
        renew_lock_after_fork(self, "_idle", deque)

    def ask(self, frame: bytes) -> Any:
        """
        Send one command, and read its answer. It is sent once, whatever happens. Raises what redis-py does.
        """
        idle = self._idle  # in a child of a fork it is another: a question that the fork cut in two ends up nowhere
        connection = self._taken(idle)
        try:
            connection.send_packed_command((frame,), False)
            answer = connection.read_response()
        except ResponseError:
            idle.append((connection, monotonic()))
            raise
        except BaseException:
            connection.disconnect()
            raise
        idle.append((connection, monotonic()))
        return answer

    def ask_all(self, frames: Sequence[bytes]) -> list[Any]:
        """
        Send several commands in one go, and read all their answers. One that is an error of that command alone stands
        in its place; any other fault is everybody's, and none of the answers counts.
        """
        idle = self._idle
        connection = self._taken(idle)
        try:
            connection.send_packed_command((b"".join(frames),), False)
            answers = [_answer(connection) for _ in frames]
        except BaseException:
            connection.disconnect()
            raise
        idle.append((connection, monotonic()))
        return answers

    def drop(self) -> None:
        """Close what lies idle: it may be as dead as the one that has just failed. What is in use ends with its use."""
        idle, self._idle = self._idle, deque()
        while idle:
            try:
                connection, _ = idle.pop()
            except IndexError:  # another thread was faster
                return
            connection.disconnect()

    def _taken(self, idle: deque[tuple[Any, float]]) -> Any:
        try:
            connection, since = idle.pop()
        except IndexError:
            return self._connected(self._make())
        if connection.pid != os.getpid():  # where a fork tells nobody
            return self._connected(self._make())
        if monotonic() - since > _TRUSTED and _is_over(connection):
            connection.disconnect()
            return self._connected(connection)
        return connection

    def _connected(self, connection: Any) -> Any:
        connection.connect()  # a Sentinel's connection asks for the master here, and not where it sends
        return connection


def _answer(connection: Any) -> Any:
    try:
        return connection.read_response()
    except ResponseError as error:
        return error


def _is_over(connection: Any) -> bool:
    """Whether there is something to read, which can only be the end."""
    try:
        return bool(connection.can_read())
    except (ConnectionError, TimeoutError, OSError):
        return True
