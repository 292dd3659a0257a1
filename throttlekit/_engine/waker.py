"""
The waiting jobs of one worker process, and the thread that starts them.

Example: the store denies a job, so `apply_answer` puts it into the `Room`. Later the store wakes it: the wake arrives
with the answer to another request, or on the channel (`on_wakes`). At its time, when a worker thread is free, the
waker's thread calls *start*, and the job repeats its request. Wakes may be lost, so the waker also looks periodically.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from itertools import islice
from typing import Generic, TypeVar

from throttlekit._core.answer import NOT_WAITED, Answer, Caller, Reason, Requester, Waited
from throttlekit._core.claim import StoreClaim
from throttlekit._core.storage_keys import parts_of
from throttlekit._core.waitlist import LEAD_US, Wake
from throttlekit._engine.call import WaitlistStore
from throttlekit._engine.room import AHEAD_US, Room, Stops
from throttlekit._util.fork_safety import renew_lock_after_fork
from throttlekit.errors import StoreUnavailable

__all__ = ["Waker"]

_T = TypeVar("_T")

_RETRY_US = 500_000
"""The time after which the process repeats a failed look, or a failed attempt to listen."""

_PASSED_ON_US = 60_000_000
"""The time for which a process remembers a job that it returned to its framework."""

_LOG = logging.getLogger("throttlekit")


class _Here(Generic[_T]):
    """The state of a waker in one process. A forked child begins with an empty one."""

    def __init__(self, ahead_us: int, early_us: int) -> None:
        self.owner = os.urandom(6).hex()
        self.room: Room[_T] = Room(ahead_us, early_us)
        self.full_lists: set[str] = set()
        self.attempts: dict[str, str] = {}
        """The attempts of jobs whose request got no answer, and whose next request repeats the attempt."""
        self.waited: dict[str, tuple[int, Waited]] = {}
        """The time when each job of this process began to wait, and how it has waited, until it ends."""
        self.stops = Stops()
        self.passed_on: dict[str, int] = {}
        """The jobs that were returned to their framework, in order, and the time until which they are remembered."""
        self.calls: list[Callable[[], None]] = []
        """Calls of the store that follow from wakes and answers. The waker's thread makes them."""
        self.changed = threading.Condition()
        self.thread: threading.Thread | None = None
        self.unlisten: Callable[[], None] | None = None
        self.closed = False

    def note(self, id: str, waited: Waited, now_us: int) -> None:
        self.waited[id] = (now_us - waited.for_us, waited)

    def waited_of(self, id: str) -> Waited:
        now_us = _now_us()
        since_us, waited = self.waited.get(id, (now_us, NOT_WAITED))
        return waited._replace(for_us=now_us - since_us)

    def forget(self, id: str) -> None:
        """Forget a job that neither makes a request, nor runs, nor is held."""
        self.room.done(id)
        self.attempts.pop(id, None)
        self.waited.pop(id, None)
        self.passed_on.pop(id, None)
        self.stops.remove(id)

    def resume(self, bucket: str) -> None:
        """End the stop of a list, so that its jobs make their requests, in order."""
        ids = self.stops.end(bucket)
        if not ids:
            return
        self.room.apply_wakes([Wake(id, 0) for id in ids], _now_us())
        if (unit := self.room.unit_of(bucket)) is not None:
            self.room.look_in(unit, 0, _now_us())

    def pass_on(self, id: str, now_us: int, *, at_once: bool) -> _T | None:
        item = self.room.release(id)
        if at_once:
            self.room.begin_request(id)
        else:
            self.room.done(id)
        self.stops.remove(id)
        for other, until_us in list(islice(self.passed_on.items(), 2)):  # one is added below, so they do not accumulate
            if until_us <= now_us:
                self.forget(other)
        self.passed_on.pop(id, None)  # the job moves to the end
        self.passed_on[id] = now_us + _PASSED_ON_US
        return item


class Waker(Generic[_T]):
    """
    Holds the waiting jobs of one process, and starts those that were woken. Any thread may call its methods. Its own
    thread, and the thread that listens, start with the first job that waits.

    Args:
        free: Returns the number of free worker threads.
        start: Called in the waker's thread with a job that may request its units now. It must return at once, with
            False if the job no longer exists. If it raises, the job is started again later.
        give_back: Returns a message to its framework. Called with a message that the waker does not hold: an older copy
            of a message, or any message after `close`.
        ahead_us: A woken job is started this long before its time: about the time from its start to its request. At
            most `EARLY_US`.
        roams: Whether any process may take a job that this process holds. If so, this process may not know that a job
            has waited before, and the job's entries may have another owner.
        relays: Whether the jobs make their requests in other processes, by a `Relay`. Such a job is started as soon as
            it is woken, `LEAD_US` before its time, if its request may be granted early.
    """

    def __init__(
        self,
        store: WaitlistStore,
        free: Callable[[], int],
        start: Callable[[str, _T], object],
        *,
        give_back: Callable[[_T], object] = lambda _: None,
        ahead_us: int = AHEAD_US,
        roams: bool = False,
        relays: bool = False,
    ) -> None:
        early_us = LEAD_US if relays else 0
        self._store, self._free, self._start, self._give_back, self._roams = store, free, start, give_back, roams
        self._here: _Here[_T] = _Here(ahead_us, early_us)
        renew_lock_after_fork(self, "_here", lambda: _Here[_T](ahead_us, early_us))

    def __len__(self) -> int:
        """Return the number of jobs that the process holds."""
        return len(self._here.room)

    @property
    def owner(self) -> str:
        """The name of the process, which is also that of its channel."""
        return self._here.owner

    @property
    def listens(self) -> bool:
        """Whether the waker receives the wakes of other processes, and its thread is alive."""
        here = self._here
        return here.unlisten is not None and here.thread is not None and here.thread.is_alive()

    def begin(self) -> None:
        """Begin to listen, and to start woken jobs, if it has not begun. Raise RuntimeError if no thread can start."""
        here = self._here
        with here.changed:
            if here.thread is None and not here.closed:
                thread = threading.Thread(target=self._run, args=(here,), name="throttlekit-waker", daemon=True)
                thread.start()
                here.thread = thread

    def close(self) -> list[_T]:
        """Stop the waker. Return the waiting jobs."""
        here = self._here
        with here.changed:
            here.closed = True
            here.changed.notify()
        if here.thread is not None and here.thread.is_alive() and threading.current_thread() is not here.thread:
            here.thread.join()
        if here.unlisten is not None:
            here.unlisten()
        with here.changed:
            return here.room.release_all()

    def begin_request(
        self,
        id: str,
        buckets: Sequence[str],
        caller: Caller = Caller.JOB,
        ends_in_us: Callable[[int], int | None] = lambda waited_us: None,
    ) -> tuple[Requester, str]:
        """
        Record that a job makes a request. Return the caller, and the attempt's id: the last one if its answer was lost.

        Args:
            ends_in_us: Takes how long the job has waited, and returns how much longer it may wait; None if unbounded.
        """
        here, free = self._here, self._free()
        with here.changed:
            here.room.begin_request(id)
            if here.stops.lists:
                here.stops.remove(id)
                for bucket in buckets:
                    here.resume(bucket)
            here.passed_on.pop(id, None)
            if not free:
                here.full_lists.update(buckets)
            attempt = here.attempts.pop(id, "") or os.urandom(4).hex()
            waited = here.waited_of(id)
        return Requester(caller, id, here.owner, free, ends_in_us(waited.for_us), waited), attempt

    def waited_of(self, id: str) -> Waited:
        """Return how long a job of this process has waited, or zeros if no wait is known."""
        with self._here.changed:
            return self._here.waited_of(id)

    def apply_answer(
        self, id: str, item: _T, units: Sequence[StoreClaim], answer: Answer, ends_in_us: int | None = None
    ) -> None:
        """
        Apply the answer to a job's request. If the job waits, hold it from now on. This sends no request to the store,
        because the caller may be an event loop.

        Args:
            units: The job's claims, of one unit each.
            ends_in_us: The time until the job's longest wait ends. It then makes a request although it was not woken.
        """
        here, now_us, kept = self._here, _now_us(), answer.kept
        back: _T | None = None
        with here.changed:
            if answer.waited is not None:
                here.note(id, answer.waited, now_us)
            if kept is not None:
                if here.closed:
                    back = item
                else:
                    until_us = None if ends_in_us is None else now_us + ends_in_us
                    back = here.room.hold(id, item, units[kept.claim], kept.epoch, now_us, until_us, units)
                    if here.passed_on.pop(id, None) is not None:  # it may have been woken, and be out of the order
                        here.calls.append(partial(self._look, here, units[kept.claim], (id,)))
            elif answer.reason is not Reason.ALLOWED:
                here.forget(id)
            unknown = here.room.apply_answer(units, answer, now_us)
            here.changed.notify()
        for unit, ids in unknown:
            self._remove_later(unit, ids)
        if back is not None:
            self._give_back(back)
        if here.thread is None and (kept is not None or answer.looks or answer.wakes):
            with nullcontext() if kept is not None else suppress(RuntimeError):  # a grant stays a grant
                self.begin()

    def record_no_answer(self, id: str, units: Sequence[StoreClaim], attempt: str) -> None:
        """Record that a job's request got no answer. The lost answer may have had wakes, so look at its lists."""
        here = self._here
        with here.changed:
            here.attempts[id] = attempt
            for unit in units:
                here.room.look_in(unit, 0, _now_us())
            here.changed.notify()

    def hold(
        self,
        id: str,
        item: _T,
        in_us: int,
        waited: Waited | None = None,
        *,
        ends_in_us: int | None = None,
        claims: Sequence[StoreClaim] = (),
        stops: str = "",
    ) -> None:
        """
        Hold a job that waits on no list, and let it make its next request in *in_us*.

        Args:
            ends_in_us: The time until the job's longest wait ends. The job makes its request then at the latest.
            claims: The job's claims, of one unit each. The job keeps the positions that it has on their lists.
            stops: The bucket of a list that is stopped, for example by a rule that pauses the limit. No job of the list
                is woken until one of the stopped jobs of this process makes a request.
        """
        here = self._here
        with here.changed:
            now_us, has_position = _now_us(), self._roams or here.waited_of(id).claim is not None
            if waited is not None:
                here.note(id, waited, now_us)
            begins = not here.stops.holds_positions(stops)
            back: _T | None = item
            if not here.closed:
                at_us = now_us + in_us
                if stops:
                    at_us = here.stops.add(id, stops, at_us, now_us, has_position=has_position)
                ends_us = at_us if ends_in_us is None else now_us + ends_in_us
                back = here.room.hold_until(id, item, min(at_us, ends_us))
                here.changed.notify()
        for claim in claims if has_position and begins else ():
            if claim.bucket == stops:  # look first, so that the store does not wake another job in place of this one
                self._look(here, claim, ())
        if has_position:
            self._remove_all(claims, [id], keep=True, any_owner=self._roams)
        if back is not None:
            self._give_back(back)
        with suppress(RuntimeError):  # the next job that waits tries again
            self.begin()

    def done(self, id: str) -> None:
        """Record that a job has ended."""
        with self._here.changed:
            self._here.forget(id)
        self.report_free()

    def report_free(self) -> None:
        """Record that a thread is free. Call this whenever a body has ended, even that of a job without limits."""
        here = self._here
        with here.changed:
            for bucket in here.full_lists:
                if (unit := here.room.unit_of(bucket)) is not None and here.room.waits_on(bucket):
                    here.room.look_in(unit, 0, _now_us())
            here.full_lists.clear()
            here.changed.notify()

    def pass_on(self, id: str, *, at_once: bool = False) -> _T | None:
        """
        Record that a waiting job is returned to its framework. The job keeps its position. The process that takes its
        message next makes its request, and holds it from then on. If the job is woken before that, other jobs are
        granted in the meantime. Return the item that was held.

        Args:
            at_once: Whether the job was woken, and a worker starts it now. If so, its units are kept until it starts.
        """
        with self._here.changed:
            return self._here.pass_on(id, _now_us(), at_once=at_once)

    def leave(self, id: str, claims: Sequence[StoreClaim]) -> _T | None:
        """Remove a job that no longer waits from this process and from its waitlists. Return the held item."""
        here = self._here
        with here.changed:
            item = here.room.release(id)
            here.forget(id)
        self._remove_all(claims, [id], any_owner=self._roams)
        return item

    def leave_lists(self, id: str, claims: Sequence[StoreClaim]) -> None:
        """Remove a job that has waited from the lists of *claims*, because it was granted without the store."""
        here = self._here
        with here.changed:
            has_waited = self._roams or here.waited_of(id).denials > 0
            here.room.done(id)
            here.attempts.pop(id, None)  # a lost grant belongs to the run that begins now, not to a later one
        if has_waited:
            self._remove_all(claims, [id], any_owner=self._roams)

    def on_wakes(self, bucket: str, wakes: Sequence[Wake]) -> None:
        """Apply wakes of another process, which arrived on the channel."""
        here = self._here
        with here.changed:
            unknown = here.room.apply_wakes(wakes, _now_us())
            unit = here.room.unit_of(bucket)
            here.changed.notify()
        if unit is not None:
            self._remove_later(unit, unknown)

    def on_missed(self) -> None:
        """Record that wakes may have been missed, because the connection to the store was lost."""
        here = self._here
        with here.changed:
            here.room.look_at_all(_now_us())
            here.changed.notify()

    def on_limits_changed(self) -> None:
        """
        Record that the rules of live control have changed. Jobs of stopped lists make their requests, in order. So does
        the first job of each other list, because a look uses the limit of a job's last request.
        """
        here = self._here
        with here.changed:
            now_us = _now_us()
            here.room.apply_wakes([Wake(id, 0) for id in here.stops.first_ids()], now_us)
            here.room.request_first(now_us, here.stops.lists)
            here.changed.notify()

    # The thread

    def _run(self, here: _Here[_T]) -> None:
        listens_us: int | None = _now_us()  # the time to begin to listen, or None if it listens
        while True:
            if listens_us is not None and listens_us <= _now_us():
                listens_us = None if self._listen(here) else _now_us() + _RETRY_US
            with here.changed:
                if here.closed:
                    return
                now_us, free, ready = _now_us(), self._free(), list[tuple[str, _T, StoreClaim | None]]()
                while len(ready) < free and (one := here.room.take_ready(now_us)) is not None:
                    ready.append(one)
                calls = [here.calls.pop(0)] if here.calls else []  # one at a time: ready jobs start in between
                calls += [partial(self._look, here, *each) for each in here.room.due(now_us)]
                if not ready and not calls:
                    times_us = (here.room.next_us(with_ready=free > 0), listens_us)
                    first_us = min((each for each in times_us if each is not None), default=None)
                    here.changed.wait(None if first_us is None else max(0.0, (first_us - now_us) / 1e6))
            for id, item, unit in ready:
                self._start_one(here, id, item, unit)
            for call in calls:
                call()

    def _listen(self, here: _Here[_T]) -> bool:
        """Begin to receive wakes. Return whether that succeeded."""
        try:
            here.unlisten = self._store.listen(here.owner, self.on_wakes, self.on_missed)
        except Exception as error:
            if not isinstance(error, StoreUnavailable):
                _LOG.exception("This process cannot receive wakes; it tries again.")
            return False
        return True

    def _start_one(self, here: _Here[_T], id: str, item: _T, unit: StoreClaim | None) -> None:
        try:
            if self._start(id, item) is not False:
                return
        except Exception:
            _LOG.exception("Job %s could not be started; it is tried again.", id)
            with here.changed:
                before = here.room.hold_until(id, item, _now_us() + _RETRY_US)
            if before is not None:
                self._give_back(before)
            return
        with here.changed:
            here.forget(id)
        if unit is not None:
            self._remove_all([unit], [id])

    def _look(self, here: _Here[_T], claim: StoreClaim, ids: Sequence[str]) -> None:
        free = 0 if here.stops.holds_positions(claim.bucket) else self._free()
        try:
            found = self._store.look(claim, here.owner, free, ids)
        except Exception as error:
            if not isinstance(error, StoreUnavailable):
                limit, *_ = parts_of(claim.bucket) or ("another name",)  # its key may contain arguments of jobs
                _LOG.exception("The waitlist of %s could not be read.", limit)
            with here.changed:
                here.room.look_in(claim, _RETRY_US, _now_us())
            return
        with here.changed:
            if not free and claim.bucket not in here.stops.lists:
                here.full_lists.add(claim.bucket)
            unknown = here.room.apply_look(claim, found, _now_us())
        self._remove_later(claim, unknown)

    def _remove_later(self, claim: StoreClaim, ids: Sequence[str]) -> None:
        """Let the waker's thread handle wakes of jobs that this process does not hold."""
        here = self._here
        with here.changed:
            if ids:
                here.calls.append(partial(self._remove_absent, here, claim, ids))
                here.changed.notify()

    def _remove_absent(self, here: _Here[_T], claim: StoreClaim, ids: Sequence[str]) -> None:
        """
        Remove woken jobs that this process does not hold, so that they do not block others. A job keeps its position
        if it was returned to its framework, or if another process may hold it. A job that has arrived since is woken.
        """
        with here.changed:
            ids = here.room.apply_wakes([Wake(id, 0) for id in ids], _now_us())
            if self._roams:
                for id in ids:
                    here.pass_on(id, _now_us(), at_once=False)
            passed_on = [id for id in ids if id in here.passed_on]
            gone = [id for id in ids if id not in here.passed_on]
        if gone:
            self._remove_all([claim], gone)
        if passed_on:
            self._remove_all([claim], passed_on, keep=True)

    def _remove_all(
        self, claims: Sequence[StoreClaim], ids: Sequence[str], *, keep: bool = False, any_owner: bool = False
    ) -> None:
        try:
            with suppress(StoreUnavailable):  # without an answer, the jobs are removed once they are woken again
                self._store.forget(claims, ids, "" if any_owner else self._here.owner, keep=keep)
        except Exception:  # the waker's thread must not end
            _LOG.exception("Jobs could not be removed from their waitlists.")


def _now_us() -> int:
    return time.monotonic_ns() // 1000
