"""The thread of a worker process that wakes the jobs that the process holds."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from throttlekit._core.claim import StoreClaim
from throttlekit._core.decide import Answer, Look
from throttlekit._core.verdict import Reason
from throttlekit._core.waitlist import Wake
from throttlekit._engine.room import Room
from throttlekit.errors import StoreUnavailable

__all__ = ["WaitlistStore", "Waker"]

_T = TypeVar("_T")

_RETRY_US = 500_000
"""So long after a look failed the process looks again."""

_LOG = logging.getLogger("throttlekit")


class WaitlistStore(Protocol):
    """What a waker needs of a store."""

    def look(self, claim: StoreClaim, owner: str, free: int, ids: Sequence[str] = ()) -> Look: ...

    def forget(self, claims: Sequence[StoreClaim], ids: Sequence[str], owner: str) -> None: ...


class Waker(Generic[_T]):
    """
    Holds the jobs of one process that wait, and starts those that were woken. Its methods are for any thread.

    Args:
        owner: The process, by the name of its channel.
        free: How many threads have nothing to do.
        start: Called in the waker's thread with a job that may ask now. It returns at once. If it raises, the job is
            tried again.
    """

    def __init__(
        self, store: WaitlistStore, owner: str, free: Callable[[], int], start: Callable[[str, _T], None]
    ) -> None:
        self._store, self._owner, self._free, self._start = store, owner, free, start
        self._room: Room[_T] = Room()
        self._told_full: set[str] = set()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="throttlekit-waker", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def close(self) -> list[_T]:
        """Stop. Returns the jobs that wait."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()
        with self._changed:
            return self._room.release_all()

    def asks(self, id: str, buckets: Sequence[str], free: int) -> None:
        """Note that a job asks, and how many free threads that told the store of."""
        with self._changed:
            self._room.asks(id)
            if not free:
                self._told_full.update(buckets)

    def answered(self, id: str, item: _T, units: Sequence[StoreClaim], answer: Answer) -> list[_T]:
        """
        Note the answer to a job's question. A job that waits, and is not parked, is held from now on.

        Args:
            units: The job's claims, of one unit each.

        Returns:
            What is not held though it waits: an older copy of the message, or *item* itself after `close`. The caller
            gives it back to its framework.
        """
        now_us, back = _now_us(), list[_T]()
        with self._changed:
            if answer.kept is not None and not answer.kept.parked:
                if self._closed:
                    back.append(item)
                else:
                    before = self._room.hold(id, item, units[answer.kept.claim], answer.kept.epoch, now_us)
                    back += [before] if before is not None else []
            elif answer.reason is not Reason.ALLOWED:
                self._room.done(id)
            unknown = [(units[number], self._room.woken([wake], now_us)) for number, wake in answer.wakes]
            for number, in_us in answer.looks:
                self._room.look_in(units[number], in_us, now_us)
            self._changed.notify()
        for unit, ids in unknown:
            self._remove(unit, ids)
        return back

    def unanswered(self, units: Sequence[StoreClaim]) -> None:
        """Note that the store did not answer: its answer may have had wakes of other jobs."""
        with self._changed:
            for unit in units:
                self._room.look_in(unit, 0, _now_us())
            self._changed.notify()

    def done(self, id: str) -> None:
        """Note that a job has ended."""
        with self._changed:
            self._room.done(id)
        self.freed()

    def freed(self) -> None:
        """Note that a thread is free: to be called whenever one is, also by jobs without limits."""
        with self._changed:
            for bucket in self._told_full:
                unit = self._room.unit_of(bucket)
                if unit is not None and self._room.waits_on(bucket):
                    self._room.look_in(unit, 0, _now_us())
            self._told_full.clear()
            self._changed.notify()

    def heard(self, bucket: str, wakes: Sequence[Wake]) -> None:
        """Note wakes that another process made."""
        with self._changed:
            unknown = self._room.woken(wakes, _now_us())
            unit = self._room.unit_of(bucket)
            self._changed.notify()
        if unit is not None:
            self._remove(unit, unknown)

    def missed(self) -> None:
        """Note that wakes may have been missed: the connection to the store was lost."""
        with self._changed:
            self._room.look_at_all(_now_us())
            self._changed.notify()

    def release(self, id: str) -> _T | None:
        """Let go of a job that waits no longer; the caller removes it from the store."""
        with self._changed:
            return self._room.release(id)

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                now_us, ready = _now_us(), list[tuple[str, _T]]()
                free = self._free()
                while len(ready) < free and (one := self._room.take_ready(now_us)) is not None:
                    ready.append(one)
                due = self._room.due(now_us)
                if not ready and not due:
                    self._changed.wait(self._pause_s(free, now_us))
            for id, item in ready:
                self._start_one(id, item)
            for each in due:
                self._look(each.claim, each.ids)

    def _start_one(self, id: str, item: _T) -> None:
        try:
            self._start(id, item)
        except Exception:
            _LOG.exception("Job %s could not be started; it is tried again.", id)
            with self._changed:
                self._room.hold_ready(id, item, _now_us() + _RETRY_US)

    def _pause_s(self, free: int, now_us: int) -> float | None:
        next_us = self._room.next_us(with_ready=free > 0)
        return None if next_us is None else max(0.0, (next_us - now_us) / 1e6)

    def _look(self, claim: StoreClaim, ids: Sequence[str]) -> None:
        free = self._free()
        try:
            found = self._store.look(claim, self._owner, free, ids)
        except Exception as error:
            if not isinstance(error, StoreUnavailable):
                _LOG.exception("The jobs that wait for %s could not be looked at.", claim.bucket)
            with self._changed:
                self._room.look_in(claim, _RETRY_US, _now_us())
            return
        with self._changed:
            if not free:
                self._told_full.add(claim.bucket)
            unknown = self._room.looked(claim, found, _now_us())
        self._remove(claim, unknown)

    def _remove(self, claim: StoreClaim, ids: Sequence[str]) -> None:
        if not ids:
            return
        with suppress(StoreUnavailable):  # they are removed once they are woken again
            self._store.forget([claim], ids, self._owner)


def _now_us() -> int:
    return time.monotonic_ns() // 1000
