"""The jobs of one worker process that wait: what its questions say of the process, and the thread that wakes them."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from throttlekit._core.answer import NOT_WAITED, Answer, Asker, Caller, Look, Reason, Waited
from throttlekit._core.claim import StoreClaim
from throttlekit._core.storage_keys import parts_of
from throttlekit._core.waitlist import Wake
from throttlekit._engine.room import AHEAD_US, Room
from throttlekit._engine.stop import Stop
from throttlekit._util.fork_safety import renew_lock_after_fork
from throttlekit.errors import StoreUnavailable

__all__ = ["Waiting", "WaitlistStore", "Waker"]

_T = TypeVar("_T")

_RETRY_US = 500_000
"""So long after a look failed the process looks again, or after it could not begin to listen it tries again."""

_LATER_US = 1_000_000
"""So much later than jobs with positions those without ask whether what holds their list back is over."""

_PASSED_ON_US = 60_000_000
"""For how long a process remembers a job that went back to its framework."""

_LOG = logging.getLogger("throttlekit")


class WaitlistStore(Protocol):
    """What a waker needs of a store."""

    def look(self, claim: StoreClaim, owner: str, free: int, ids: Sequence[str] = ()) -> Look: ...

    def forget(self, claims: Sequence[StoreClaim], ids: Sequence[str], owner: str, *, keep: bool = False) -> None: ...

    def listen(
        self, owner: str, heard: Callable[[str, Sequence[Wake]], None], missed: Callable[[], None]
    ) -> Callable[[], None]:
        """Call *heard* with the bucket and the wakes of *owner* that others make. Returns what ends that."""
        ...


class Waiting(NamedTuple):
    """
    How a job waits if it is denied.

    Attributes:
        waker: Holds it.
        item: What the waker starts.
        id: The job's id on the waitlists, if it has none of its own.
        denied: Whether its message shows that it was denied before, maybe in another process: a full queue does not
            refuse it then, even if the store has lost its state.
    """

    waker: Waker[Any]
    item: Any
    id: str = ""
    denied: bool = False


class _Here(Generic[_T]):
    """What a waker has in one process; a forked child begins with nothing."""

    def __init__(self, ahead_us: int = AHEAD_US) -> None:
        self.owner = os.urandom(6).hex()
        self.room: Room[_T] = Room(ahead_us)
        self.told_full: set[str] = set()
        self.attempts: dict[str, str] = {}
        """Of jobs whose question was not answered: it is the same attempt when they ask again."""
        self.waited: dict[str, tuple[int, Waited]] = {}
        """How the jobs of this process have waited that have not ended, and when they began to."""
        self.stops: dict[str, Stop] = {}
        self.stopped: dict[str, str] = {}
        """The bucket of the stop that holds a job back."""
        self.passed_on: dict[str, int] = {}
        """The jobs that went back to their framework, in that order, and until when they are remembered."""
        self.changed = threading.Condition()
        self.thread: threading.Thread | None = None
        self.unlisten: Callable[[], None] | None = None
        self.closed = False

    def note(self, id: str, waited: Waited) -> None:
        self.waited[id] = (_now_us() - waited.for_us, waited)

    def waited_of(self, id: str) -> Waited:
        now_us = _now_us()
        since_us, waited = self.waited.get(id, (now_us, NOT_WAITED))
        return waited._replace(for_us=now_us - since_us)

    def forget(self, id: str) -> None:
        """A job asks and runs no longer, and is not held."""
        self.room.done(id)
        self.attempts.pop(id, None)
        self.waited.pop(id, None)
        self.passed_on.pop(id, None)
        self.leave_stop(id)

    def stop(self, id: str, bucket: str, at_us: int, *, has_position: bool) -> int:
        """Note that a list is stopped, and holds a job back. Returns when the job asks again: as all others there."""
        known = self.stops.get(bucket)
        has_position = has_position or (known is not None and known.ids.get(id, False))
        self.leave_stop(id)
        stop = self.stops.setdefault(bucket, Stop(at_us))
        if stop.at_us <= _now_us():
            stop.at_us = at_us
        stop.add(id, has_position=has_position)
        self.stopped[id] = bucket
        return stop.at_us if has_position or not stop.positions else stop.at_us + _LATER_US

    def leave_stop(self, id: str) -> None:
        bucket = self.stopped.pop(id, "")
        stop = self.stops.get(bucket)
        if stop is not None:
            stop.remove(id)
            if not stop.ids:
                del self.stops[bucket]

    def resume(self, bucket: str) -> None:
        """Nothing holds the jobs of a list back any more: those that were held back ask, in their order."""
        stop = self.stops.pop(bucket, None)
        if stop is None:
            return
        for id in stop.ids:
            self.stopped.pop(id, None)
        self.room.woken([Wake(id, 0) for id in stop.ids], _now_us())
        unit = self.room.unit_of(bucket)
        if unit is not None:
            self.room.look_in(unit, 0, _now_us())

    def free_for(self, bucket: str, free: int) -> int:
        """How many threads are free for the jobs of a list: none while it is stopped, so that nobody is woken."""
        stop = self.stops.get(bucket)
        return 0 if stop is not None and stop.positions else free

    def pass_on(self, id: str, now_us: int, *, asks: bool) -> _T | None:
        item = self.room.release(id)
        if asks:
            self.room.asks(id)
        else:
            self.room.done(id)
        self.leave_stop(id)
        for other, until_us in list(islice(self.passed_on.items(), 2)):  # one is added, so none accumulate
            if until_us <= now_us:
                self.forget(other)
        self.passed_on.pop(id, None)  # it goes to the end
        self.passed_on[id] = now_us + _PASSED_ON_US
        return item


class Waker(Generic[_T]):
    """
    Holds the jobs of one process that wait, and starts those that were woken. Its methods are for any thread. Its own
    thread, and the one that listens, begin with the first job that waits.

    Args:
        free: How many threads have nothing to do.
        start: Called in the waker's thread with a job that may ask now. It returns at once; False if the job does not
            exist any more. If it raises, the job is tried again.
        give_back: Called with a job that waits and is not held: an older copy of its message, or any after `close`. It
            goes back to its framework.
        ahead_us: How long before the time for which it was woken a job is started: about as long as it takes until it
            asks. At most `EARLY_US`.
        roams: Whether any process may take a job that this one holds. Then this process may not know of a job that it
            has waited, and its entries may have another owner.
    """

    def __init__(
        self,
        store: WaitlistStore,
        free: Callable[[], int],
        start: Callable[[str, _T], object],
        *,
        give_back: Callable[[_T], None] = lambda _: None,
        ahead_us: int = AHEAD_US,
        roams: bool = False,
    ) -> None:
        self._roams = roams
        self._store, self._free, self._start, self._give_back = store, free, start, give_back
        self._here: _Here[_T] = _Here(ahead_us)
        renew_lock_after_fork(self, "_here", lambda: _Here[_T](ahead_us))

    def __len__(self) -> int:
        """How many jobs the process holds."""
        return len(self._here.room)

    @property
    def owner(self) -> str:
        """The process, by the name of its channel."""
        return self._here.owner

    def begin(self) -> None:
        """Begin to listen, and to wake. Does nothing if it has begun."""
        here = self._here
        with here.changed:
            if here.thread is not None or here.closed:
                return
            here.thread = threading.Thread(target=self._run, args=(here,), name="throttlekit-waker", daemon=True)
            here.thread.start()

    def close(self) -> list[_T]:
        """Stop. Returns the jobs that wait."""
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

    # Questions and answers

    def asks(
        self, id: str, buckets: Sequence[str], caller: Caller = Caller.JOB,
        ends_in_us: Callable[[int], int | None] = lambda waited_us: None,
    ) -> tuple[Asker, str]:  # fmt: skip
        """
        Note that a job asks. Returns who asks, and which attempt it is: the same one after a lost answer. *ends_in_us*
        tells, by how long it has waited, in how long it is to wait no longer.
        """
        here, free = self._here, self._free()
        with here.changed:
            here.room.asks(id)
            here.leave_stop(id)
            for bucket in buckets:
                here.resume(bucket)
            here.passed_on.pop(id, None)
            if not free:
                here.told_full.update(buckets)
            attempt = here.attempts.pop(id, "") or os.urandom(4).hex()
            for_us, denials, _ = here.waited_of(id)
        return Asker(caller, id, here.owner, free, ends_in_us(for_us), for_us, denials), attempt

    def waited(self, id: str) -> Waited:
        """How a job of this process has waited; zeros: it has not, or nothing is known."""
        here = self._here
        with here.changed:
            return here.waited_of(id)

    def answered(
        self, id: str, item: _T, units: Sequence[StoreClaim], answer: Answer, ends_in_us: int | None = None
    ) -> None:
        """
        Note the answer to a job's question. A job that waits is held from now on.

        Args:
            units: The job's claims, of one unit each.
            ends_in_us: When it asks though it was not woken, as it is to wait no longer.
        """
        here, now_us, kept, back = self._here, _now_us(), answer.kept, list[_T]()
        with here.changed:
            if answer.waited is not None:
                here.note(id, answer.waited)
            if kept is not None:
                if here.closed:
                    back.append(item)
                else:
                    until_us = None if ends_in_us is None else now_us + ends_in_us
                    before = here.room.hold(id, item, units[kept.claim], kept.epoch, now_us, until_us)
                    back += [before] if before is not None and before is not item else []
            elif answer.reason is not Reason.ALLOWED:
                here.forget(id)
            unknown = [(units[number], here.room.woken([wake], now_us)) for number, wake in answer.wakes]
            for number, in_us in answer.looks:
                here.room.look_in(units[number], in_us, now_us)
            here.changed.notify()
        if here.thread is None and (kept is not None or answer.looks):
            self.begin()
        for unit, ids in unknown:
            self._remove(unit, ids)
        for each in back:
            self._give_back(each)

    def unanswered(self, id: str, units: Sequence[StoreClaim], attempt: str) -> None:
        """Note that the store did not answer a job's question: its answer may have had wakes of other jobs."""
        here = self._here
        with here.changed:
            here.attempts[id] = attempt
            for unit in units:
                here.room.look_in(unit, 0, _now_us())
            here.changed.notify()

    def hold(
        self, id: str, item: _T, in_us: int, waited: Waited | None = None, *,
        ends_in_us: int | None = None, claims: Sequence[StoreClaim] = (), stops: str = "",
    ) -> None:  # fmt: skip
        """
        Hold a job that waits on no list, and let it ask in *in_us*.

        Args:
            ends_in_us: When it asks in any case, as it is to wait no longer.
            claims: The job's claims, of one unit each. On their lists it keeps the positions that it has.
            stops: The bucket whose jobs are all held back: none of them is woken until one of those that are held
                here asks the store.
        """
        here = self._here
        with here.changed:
            has_position = self._roams or here.waited_of(id).claim is not None
            if waited is not None:
                here.note(id, waited)
            closed, stop, before = here.closed, here.stops.get(stops), None
            begins = stop is None or not stop.positions
            if not closed:
                now_us = _now_us()
                at_us = here.stop(id, stops, now_us + in_us, has_position=has_position) if stops else now_us + in_us
                ends_us = at_us if ends_in_us is None else now_us + ends_in_us
                before = here.room.hold_until(id, item, min(at_us, ends_us))
                here.changed.notify()
        for claim in claims if has_position and begins else ():
            if claim.bucket == stops:  # first, so that the store wakes nobody in place of this job
                self._look(here, claim, ())
        if has_position:
            self._remove_all(claims, [id], keep=True, any_owner=self._roams)
        if closed:
            self._give_back(item)
            return
        if before is not None and before is not item:
            self._give_back(before)
        self.begin()

    def done(self, id: str) -> None:
        """Note that a job has ended."""
        here = self._here
        with here.changed:
            here.forget(id)
        self.freed()

    def freed(self) -> None:
        """Note that a thread is free: to be called whenever one is, also by jobs without limits."""
        here = self._here
        with here.changed:
            for bucket in here.told_full:
                unit = here.room.unit_of(bucket)
                if unit is not None and here.room.waits_on(bucket):
                    here.room.look_in(unit, 0, _now_us())
            here.told_full.clear()
            here.changed.notify()

    def pass_on(self, id: str, *, asks: bool = False) -> _T | None:
        """
        Note that a job that waits goes back to its framework. It keeps its position: the process that takes its message
        next asks for it, and holds it from then on. If it is woken before that, others pass meanwhile. Returns what was
        held.

        Args:
            asks: The job was woken, and a worker takes it at once: its wake counts until then.
        """
        here = self._here
        with here.changed:
            return here.pass_on(id, _now_us(), asks=asks)

    def leave(self, id: str, claims: Sequence[StoreClaim]) -> _T | None:
        """Let go of a job that waits no longer, also in the store. Returns what was held."""
        here = self._here
        with here.changed:
            item = here.room.release(id)
            here.forget(id)
        self._remove_all(claims, [id], any_owner=self._roams)
        return item

    def leave_lists(self, id: str, claims: Sequence[StoreClaim]) -> None:
        """Remove a job from the lists of *claims*, if it has waited: it passed them without the store."""
        here = self._here
        with here.changed:
            has_waited = self._roams or here.waited_of(id).denials > 0
            here.room.done(id)
            here.attempts.pop(id, None)  # a grant that was lost is of the run that begins now, and of no later one
        if has_waited:
            self._remove_all(claims, [id], any_owner=self._roams)

    def heard(self, bucket: str, wakes: Sequence[Wake]) -> None:
        """Note wakes that another process made."""
        here = self._here
        with here.changed:
            unknown = here.room.woken(wakes, _now_us())
            unit = here.room.unit_of(bucket)
            here.changed.notify()
        if unit is not None:
            self._remove(unit, unknown)

    def missed(self) -> None:
        """Note that wakes may have been missed: the connection to the store was lost."""
        here = self._here
        with here.changed:
            here.room.look_at_all(_now_us())
            here.changed.notify()

    def limits_changed(self) -> None:
        """
        Note that the rules of live control have changed. Jobs that a rule held back ask, in their order; of the other
        lists the first, as looks go by the limit that a job asked for last.
        """
        here = self._here
        with here.changed:
            now_us, stopped = _now_us(), [*here.stops]
            for stop in here.stops.values():
                first = [id for id, has_position in stop.ids.items() if has_position or not stop.positions]
                here.room.woken([Wake(id, 0) for id in first], now_us)
            here.room.ask_first(now_us, stopped)
            here.changed.notify()

    # The thread

    def _run(self, here: _Here[_T]) -> None:
        listens_us: int | None = _now_us()  # when to begin to listen; None: it does
        while True:
            if listens_us is not None and listens_us <= _now_us():
                listens_us = None if self._listen(here) else _now_us() + _RETRY_US
            with here.changed:
                if here.closed:
                    return
                now_us, ready = _now_us(), list[tuple[str, _T, StoreClaim | None]]()
                free = self._free()
                while len(ready) < free and (one := here.room.take_ready(now_us)) is not None:
                    ready.append(one)
                due = here.room.due(now_us)
                if not ready and not due:
                    here.changed.wait(_pause_s(here.room.next_us(with_ready=free > 0), listens_us))
            for id, item, unit in ready:
                self._start_one(here, id, item, unit)
            for each in due:
                self._look(here, each.claim, each.ids)

    def _listen(self, here: _Here[_T]) -> bool:
        """Begin to hear of wakes; return whether that worked. The store of a cluster has to be reached for it."""
        try:
            here.unlisten = self._store.listen(here.owner, self.heard, self.missed)
        except Exception as error:
            if not isinstance(error, StoreUnavailable):
                _LOG.exception("This process cannot hear of wakes; it tries again.")
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
            self._remove(unit, [id])

    def _look(self, here: _Here[_T], claim: StoreClaim, ids: Sequence[str]) -> None:
        free = here.free_for(claim.bucket, self._free())
        try:
            found = self._store.look(claim, here.owner, free, ids)
        except Exception as error:
            if not isinstance(error, StoreUnavailable):
                limit, *_ = parts_of(claim.bucket) or ("another name",)  # its key may contain arguments of jobs
                _LOG.exception("The jobs that wait for %s could not be looked at.", limit)
            with here.changed:
                here.room.look_in(claim, _RETRY_US, _now_us())
            return
        with here.changed:
            if not free and claim.bucket not in here.stops:
                here.told_full.add(claim.bucket)
            unknown = here.room.looked(claim, found, _now_us())
        self._remove(claim, unknown)

    def _remove(self, claim: StoreClaim, ids: Sequence[str]) -> None:
        """Jobs were woken that are not here: others pass meanwhile. Those that were passed on keep their positions."""
        passed_on = self._here.passed_on
        for keep in (False, True):
            if those := [id for id in ids if (id in passed_on) is keep]:
                self._remove_all([claim], those, keep=keep)

    def _remove_all(
        self, claims: Sequence[StoreClaim], ids: Sequence[str], *, keep: bool = False, any_owner: bool = False
    ) -> None:
        with suppress(StoreUnavailable):  # they are removed once they are woken again
            self._store.forget(claims, ids, "" if any_owner else self._here.owner, keep=keep)


def _pause_s(*times_us: int | None) -> float | None:
    """The seconds until the first of *times_us*; None: there is none."""
    first_us = min((each for each in times_us if each is not None), default=None)
    return None if first_us is None else max(0.0, (first_us - _now_us()) / 1e6)


def _now_us() -> int:
    return time.monotonic_ns() // 1000
