"""
The waker of stock workers: `throttlekit wake --rq`.

A stock worker checks the limits of a job in the process that it forks for the job. If the job is denied, that process
ends, so it cannot receive the job's wake message. Therefore the job waits under the name of another process, the waker,
which runs no jobs. The waker announces itself in RQ's Redis, and the jobs' processes write notes to the waker there.
The waker moves each job that the store wakes to the front of its queue, where the next free worker takes the job.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from rq.queue import Queue
from rq.worker_registration import WORKERS_BY_QUEUE_KEY

from throttlekit import ConfigurationError, Limiter, TokenBucket
from throttlekit.adapter import Every, Relay, read_note
from throttlekit_rq._holding import AT_FRONT, Holding
from throttlekit_rq._host import lock_key, untyped
from throttlekit_rq._promoter import Promoter
from throttlekit_rq._wire import notes_key, promoter_key, waker_key

__all__ = ["Announcement", "WakerProcess", "read_announcement", "relay_to", "send_note"]

_VERSION = 1
_LIVES_MS = 5_000
"""The milliseconds after which the announcement of a killed waker expires, so that another waker takes over."""
_NOTES_LIVE_S = 60
_TICK_S = 1.0
_RETRY_S = 0.5
_ANY = TokenBucket("throttlekit-wake", "1/s")
_log = logging.getLogger("throttlekit.rq")


@dataclass(frozen=True, slots=True)
class Announcement:
    """
    The announcement of a waker.

    Attributes:
        owner: The waker's owner name on the waitlists.
        store: The store from which the waker receives wake messages: `Limiter.store_address`.
    """

    owner: str
    store: str

    def write(self) -> str:
        return json.dumps({"v": _VERSION, "owner": self.owner, "store": self.store})

    @classmethod
    def read(cls, text: bytes | None) -> Announcement | None:
        """Read the text that `write` has written. Return None for another text, or another version."""
        with suppress(KeyError, TypeError, ValueError):
            data = json.loads(text or b"{}")
            if data["v"] == _VERSION:
                return cls(str(data["owner"]), str(data["store"]))
        return None


def read_announcement(connection: Any, queue: str) -> Announcement | None:
    """Return the announcement of the waker of *queue*, or None if the queue has no waker."""
    return Announcement.read(connection.get(waker_key(queue)))


def relay_to(waker: Announcement, job: Any, limiter: Limiter) -> Relay:
    """Return the relay of *job*, which a stock worker runs, to *waker*."""

    def send_at_once(note: dict[str, Any]) -> None:
        try:
            with job.connection.pipeline(transaction=False) as pipeline:
                send_note(waker, job.origin, note, pipeline=pipeline)
                pipeline.execute()
        except Exception as error:  # the job may have been granted; the waker finds woken jobs at its next poll
            _log.debug("A note to the waker was lost: %r", error)

    return limiter.make_relay(waker.owner, AT_FRONT, send_at_once)


def send_note(
    waker: Announcement,
    queue: str,
    note: dict[str, Any],
    *,
    pipeline: Any,
    grace: float = 0.0,
    ends_in_us: int | None = None,
) -> None:
    """
    Send *note*, which the relay of a job of *queue* has made, to *waker*.

    Args:
        grace, ends_in_us: If the job waits, those of its `PlannedReturn`.
    """
    data = {"v": _VERSION, "queue": queue, "grace": grace, "ends_in_us": ends_in_us, "note": note}
    pipeline.rpush(notes_key(waker.owner), json.dumps(data))
    pipeline.expire(notes_key(waker.owner), _NOTES_LIVE_S)


class WakerProcess:
    """
    Wakes the jobs of stock workers, and enqueues due jobs of queues without a scheduler of RQ.

    Several wakers may run: for each queue, the first one is used. If that waker is killed, another one takes over after
    `_LIVES_MS`, and RQ or a worker enqueues the killed waker's jobs `GRACE_S` after their turn.

    Args:
        connection: The client of the Redis of the queues.
        limiter: A limiter with the store of the workers.
        queues: The names of the queues. If empty, all queues of this Redis are used.
    """

    def __init__(self, connection: Any, limiter: Limiter, queues: Sequence[str] = ()) -> None:
        self._connection, self._limiter, self._only = connection, limiter, [*queues]
        self._queues: list[str] | None = None
        self._free = 0
        self._holding = Holding(connection, lambda: self._queues or (), free=lambda: self._free, relays=True)
        self._waker = self._holding.waker_of(limiter)
        self._promoter = Promoter(connection, promoter_key)
        self._tick_at = 0.0
        self._failed, self._unread = Every(), Every()

    def run(self, stopped: threading.Event, on_change: Callable[[Sequence[str]], None] = lambda _: None) -> None:
        """
        Wake jobs until *stopped*. After an error, such as an outage of RQ's Redis, log it and try again.

        Args:
            on_change: A function that is called with the names of the queues whenever these have changed.
        """
        self._waker.begin()
        while not stopped.is_set():
            with self._log_failures():
                self._run_once(on_change)
                continue
            stopped.wait(_RETRY_S)
        self._close()

    def check_store(self) -> None:
        """
        Check that the store answers.

        Raises:
            StoreUnavailable: The store does not answer.
        """
        self._limiter.peek(_ANY)

    @contextmanager
    def _log_failures(self) -> Generator[None, None, None]:
        """Log errors in this context and continue: due jobs are enqueued even while the store is unavailable."""
        try:
            yield
        except Exception as error:
            if self._failed.due():
                _log.warning("The waker failed (%s: %s); it tries again.", type(error).__name__, error)

    def _run_once(self, on_change: Callable[[Sequence[str]], None]) -> None:
        now = time.monotonic()
        if now >= self._tick_at:
            self._tick_at = now + _TICK_S
            with self._log_failures():
                self._tick(on_change)
        if self._queues and now >= self._promoter.next_check_at:
            self._promoter.next_check_at = now + _RETRY_S
            with self._log_failures():
                self._promoter.promote_due(self._queues, now)
        self._holding.drop_late()
        due = min(self._tick_at, self._promoter.next_check_at) if self._queues else self._tick_at
        found = self._connection.blpop([notes_key(self._waker.owner)], timeout=max(0.01, due - now))
        if found is not None:
            self._read(found[1])

    def _tick(self, on_change: Callable[[Sequence[str]], None]) -> None:
        """
        Find the queues and their workers, and announce that this process wakes their jobs, unless another waker does.
        A waker that cannot reach the store announces nothing, so another waker takes over after `_LIVES_MS`.
        """
        names = self._only or sorted(each.name for each in untyped(Queue).all(connection=self._connection))
        if names != self._queues:
            self._queues = names
            on_change(names)
        if not names:
            return
        self._free = AT_FRONT if self._connection.exists(*(WORKERS_BY_QUEUE_KEY % name for name in names)) else 0
        self._waker.report_free()
        if not self._waker.listens:
            return
        self.check_store()
        text = Announcement(self._waker.owner, self._limiter.store_address).write()
        others = map(Announcement.read, self._connection.mget([waker_key(name) for name in names]))
        with self._connection.pipeline(transaction=False) as pipeline:
            for name, other in zip(names, others, strict=True):
                if other is None or other.owner == self._waker.owner:
                    pipeline.set(waker_key(name), text, px=_LIVES_MS)
            pipeline.execute()

    def _read(self, text: bytes) -> None:
        try:
            data = json.loads(text)
            if data["v"] != _VERSION:
                raise ValueError(f"version {data['v']!r}")
            id_, queue = str(data["note"]["id"]), str(data["queue"])
            grace, ends_in_us = float(data["grace"]), data["ends_in_us"]
            item = None
            if data["note"]["kept"] is not None:
                item = self._holding.waiting_of(id_, queue, self._limiter).item
                item.grace, item.scheduled = grace, True
            read_note(self._waker, data["note"], item, ends_in_us)
        except (KeyError, TypeError, ValueError, ConfigurationError) as error:
            if self._unread.due():
                _log.warning("The waker cannot read a note; its job returns at its scheduled time: %s", error)

    def _close(self) -> None:
        """
        Withdraw the announcement, and return the held jobs. If RQ's scheduler serves the queue, the scheduler enqueues
        the jobs at their turn. Otherwise they are moved to the front of the queue: no other process may enqueue them.
        """
        with suppress(Exception):  # otherwise the announcement expires, and the jobs are enqueued `GRACE_S` later
            for name in self._queues or ():
                other = read_announcement(self._connection, name)
                if other is not None and other.owner == self._waker.owner:
                    self._connection.delete(waker_key(name), promoter_key(name))
            while (text := self._connection.lpop(notes_key(self._waker.owner))) is not None:
                self._read(text)
            self._holding.close(in_queue=lambda queue: not self._connection.exists(lock_key(queue)))
