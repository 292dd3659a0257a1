"""A pool of connections to one server, without the locks of redis-py's pool. The last used connection is used next."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

from redis.exceptions import ConnectionError, ResponseError, TimeoutError

from throttlekit._util.fork_safety import renew_lock_after_fork

__all__ = ["ConnectionPool"]

_CHECKED_AFTER_S = 1.0
"""A connection that was idle for longer is checked before it is used, because the server may have closed it."""


class ConnectionPool:
    """
    A pool with as many connections as there are calls at the same time. Threads can share it, also across a fork.

    A connection is used for one call at a time, and returns to the pool only after its whole reply was read.
    After any error, including an interrupt, it is closed. So no call ever reads the reply to another call.

    Args:
        make: Creates a connection of redis-py that is not connected yet.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._idle: deque[tuple[Any, float]] = deque()
        renew_lock_after_fork(self, "_idle", deque)

    def execute(self, frame: bytes) -> Any:
        """
        Send one command, at most once, and return its reply. Raise errors of redis-py unchanged.
        """
        idle = self._idle  # a forked child has another deque: a call that spans the fork returns nothing to it
        connection = self._take(idle)
        try:
            connection.send_packed_command((frame,), False)
            reply = connection.read_response()
        except ResponseError:
            self._give_back(connection, idle)
            raise
        except BaseException:
            connection.disconnect()
            raise
        self._give_back(connection, idle)
        return reply

    def execute_all(self, frames: Sequence[bytes]) -> list[Any]:
        """
        Send several commands at once and return their replies, in order. An error of one command
        replaces its reply. Any other error fails the whole call.
        """
        idle = self._idle
        connection = self._take(idle)
        try:
            connection.send_packed_command((b"".join(frames),), False)
            replies = [_read_reply(connection) for _ in frames]
        except BaseException:
            connection.disconnect()
            raise
        self._give_back(connection, idle)
        return replies

    def close_idle(self) -> None:
        """Close the idle connections. Those in use are closed after their calls."""
        idle, self._idle = self._idle, deque()
        _close_all(idle)

    def _give_back(self, connection: Any, idle: deque[tuple[Any, float]]) -> None:
        idle.append((connection, monotonic()))
        if idle is not self._idle:  # the idle connections were closed in the meantime
            _close_all(idle)

    def _take(self, idle: deque[tuple[Any, float]]) -> Any:
        try:
            connection, since = idle.pop()
        except IndexError:
            return _connect(self._make())
        if monotonic() - since > _CHECKED_AFTER_S and _is_closed(connection):
            connection.disconnect()
            return _connect(connection)
        return connection


def _close_all(idle: deque[tuple[Any, float]]) -> None:
    with suppress(IndexError):  # another thread may be faster
        while idle:
            idle.pop()[0].disconnect()


def _connect(connection: Any) -> Any:
    connection.connect()  # a Sentinel's connection looks up the master here, not when it sends
    return connection


def _read_reply(connection: Any) -> Any:
    try:
        return connection.read_response()
    except ResponseError as error:
        return error


def _is_closed(connection: Any) -> bool:
    """Whether the server has closed an idle connection. Only then does such a connection have data to read."""
    try:
        return bool(connection.can_read())
    except (ConnectionError, TimeoutError, OSError):
        return True
