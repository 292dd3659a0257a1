"""Who wakes parked jobs: one worker of each queue, by a lease. parking.py says how they are parked."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

from throttlekit._util.log_limiter import Every
from throttlekit.adapter.admission import AT_ONCE, Throttling, WhenDue
from throttlekit.adapter.parking import MOST_OTHERS, SOON, SOON_SLOT, Park, Tell
from throttlekit.errors import StoreUnavailable

__all__ = ["Promoter"]

_TURN = 0.5
_LONGEST = 60.0
_FEW = 16
"""Jobs that are woken on the guess that those before them do not come: as many as a line sets aside at first."""

_MOST_WOKEN = 4096
_MOST_ASTRAY = 256
_PROBE_EVERY = 2.0
"""Seconds. A line that has become later lives on only if a job asks: less than `_core.line.KEPT_US`."""

_M = TypeVar("_M")


@dataclass(slots=True)
class _Turns:
    """
    What a promoter remembers of one park: how many lines to pass over next, at which lines its look failed, so that
    they come last, when it woke a job of a line to ask, and how many it woke at the last look, as they were due.
    """

    skip: int = 0
    faulty: set[str] = field(default_factory=set[str])
    probed: dict[str, float] = field(default_factory=dict[str, float])
    woken: dict[str, int] = field(default_factory=dict[str, int])


class Promoter(Generic[_M]):
    """
    Wakes parked jobs, in a thread of a worker, for each park of which it has the lease.

    Args:
        throttling: Says when a job is due.
        parks: The parks of the queues that the worker serves, as of now.
        decode: Makes of a parked message what *throttling* reads. Raises if this worker does not know its function.
        tell: See `Tell`.
        log: The adapter's logger.
    """

    def __init__(
        self, throttling: Throttling[_M], parks: Callable[[], Sequence[Park]], decode: Callable[[bytes], _M],
        tell: Tell, log: logging.Logger,
    ) -> None:  # fmt: skip
        self._throttling, self._parks, self._decode, self._tell, self._log = throttling, parks, decode, tell, log
        self._owner = f"{os.getpid()}-{os.urandom(6).hex()}"
        self._turns: dict[str, _Turns] = {}
        self._failed = Every()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, in this process."""
        self._thread = threading.Thread(target=self._run, name="throttlekit-promoter", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End, and leave the lease to others."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout=_TURN * 4)

    def turn(self, park: Park, now: float) -> None:
        """
        Look at *park* once; *now* by any clock that is steady.

        Raises:
            StoreUnavailable: The limiter's store did not answer. What waits for its limits is not woken.
            Exception: An error of the broker's client, or of one line, which is looked at last from then on.
        """
        turns = self._turns.setdefault(park.prefix, _Turns())
        look = park.look(self._owner, turns.skip)
        if look is None:
            return
        due, others, ending, fresh = look
        if fresh:  # as well after the Redis has lost what it had
            with suppress(Exception):  # this Redis may allow the framework's own keys only
                park.announce()
        ends: dict[str, list[bytes]] = {}
        for job in ending:
            line, _, rest = job.partition(b" ")
            ends.setdefault(line.decode(), []).append(rest)
        for ended, jobs in ends.items():
            park.wake(ended, 0, jobs=jobs)
        turns.skip = turns.skip + len(others) if len(others) == MOST_OTHERS else 0
        turns.probed = {lane: at for lane, at in turns.probed.items() if now - at < _PROBE_EVERY}
        looked = {*due, *others}  # a line that has ended is forgotten
        turns.faulty &= looked
        turns.woken = {lane: jobs for lane, jobs in turns.woken.items() if lane in looked}
        failed: StoreUnavailable | None = None
        for lane in sorted((*due, *others), key=turns.faulty.__contains__):
            turns.faulty.add(lane)
            try:
                self._look_at(park, lane, turns, now)
            except StoreUnavailable as error:  # the next line's limits may have another store
                failed = error
            else:
                turns.faulty.discard(lane)
        if failed is not None:
            raise failed

    def _look_at(self, park: Park, lane: str, turns: _Turns, now: float) -> None:
        """
        Wake what is due soon of *lane*. Two of its jobs are looked at: the first, and one that stands 1.5 times as far
        back as the number of jobs woken at the last look. Those between them are due at even distances.
        """
        first = self._due_of(park, lane, 0)
        if first is AT_ONCE:
            first = self._clear(park, lane, 0)
        if first is not None and first.astray and lane not in turns.probed:
            turns.probed[lane] = now
            first = self._lead_out(park, lane, first)
        if first is None:
            turns.woken.pop(lane, None)
            park.wake(lane, 0, 0.0)
            return
        soon = SOON_SLOT if first.slot else SOON
        paused = 0.0 if math.isinf(first.astray) else first.astray
        waits = max(first.seconds, paused) - soon
        if waits > 0:
            turns.woken.pop(lane, None)
            probes = first.overdue and lane not in turns.probed
            if probes:  # it was to be due by now, and its line has become later: the line may be forgotten if none asks
                turns.probed[lane] = now
            park.wake(lane, int(probes), min(waits, _PROBE_EVERY if first.astray else _LONGEST))
            return
        # `sooner` is a guess, and is written into no message: a job that asks by it in vain makes all behind it later.
        # A few jobs are woken in any case: the process that holds them looks by itself how far the line has moved.
        begins, few = first.seconds + first.sooner, _FEW if first.sooner else 1
        last = max(0, min(park.jobs(lane), first.most, _MOST_WOKEN) - 1)
        due, step = self._pace(park, lane, begins, soon, min(last, turns.woken.get(lane, last) * 3 // 2), last)
        turns.woken[lane] = due
        due = min(max(due, few), last + 1)
        if first.slot:  # when one comes free is a guess
            park.wake(lane, due, 0.0)
        else:
            park.wake_at(lane, [begins + step * n for n in range(due)], self._tell, 0.0)

    def _pace(self, park: Park, lane: str, begins: float, soon: float, back: int, last: int) -> tuple[int, float]:
        """
        How many jobs of *lane* are due within *soon* seconds, and the seconds between two of them. The first is due in
        *begins* seconds, and the one at *back* says when the others are. If that one is due soon too, one further back
        is looked at, up to *last*; if less than half of those before it are, a nearer one. If it is purged, or has no
        limit by now, it says nothing of those before it: the next takes its place; if there is none, a nearer one.
        """
        known, pace = 0, 0.0
        while True:
            far = self._due_of(park, lane, back) if back else None
            if far is AT_ONCE:
                far = self._clear(park, lane, back)
                last = max(0, min(last, park.jobs(lane) - 1))
            if far is AT_ONCE or back > last:
                back = min(last, back // 2)
                if back <= known:
                    return known + 1, pace
                continue
            ends = begins if far is None else max(begins, far.seconds + far.sooner)
            step = (ends - begins) / back if back else 0.0
            due = max(1, int((soon - begins) / step) + 1 if step else back + 1)
            if ends <= soon and back < last:
                known, pace, back = back, step, min(last, 4 * back)
            elif 2 * due < back and not known:
                back = 2 * due
            else:
                break
        due = min(due, back + 1)
        return (known + 1, pace) if due <= known else (due, 0.0 if step == math.inf else step)

    def _clear(self, park: Park, lane: str, at: int) -> WhenDue | None:
        """
        Wake those of *lane* from *at* on, up to the first other, that were purged, or have no limit by now. Return when
        that one is due, which stands there now.
        """
        for _ in range(_MOST_WOKEN // _MOST_ASTRAY):
            jobs = list[bytes]()
            for job, message in islice(park.parked(lane, _MOST_ASTRAY, at), _MOST_ASTRAY):
                if self._due(message) is not AT_ONCE:
                    break
                jobs.append(job)
            park.wake(lane, 0, jobs=jobs)
            if len(jobs) < _MOST_ASTRAY:
                break
        return self._due_of(park, lane, at)

    def _lead_out(self, park: Park, lane: str, first: WhenDue | None) -> WhenDue | None:
        """
        Wake those in front of *lane* that another limit keeps by now (its key is paused, a deploy has changed the
        limits), or whose place is lost. They ask, and are parked where they stand now. Return when the next is due.
        """
        jobs = 1
        while first is not None and first.astray and jobs <= _MOST_ASTRAY:
            park.wake_at(lane, [0.0] * jobs, self._tell, 0.0)
            first, jobs = self._due_of(park, lane, 0), 2 * jobs
        return first

    def _due_of(self, park: Park, lane: str, at: int) -> WhenDue | None:
        found = park.message(lane, at)
        if found is None:
            return None
        due = self._due(found[0])
        return due._replace(astray=math.inf) if found[1] and due is not AT_ONCE else due

    def _due(self, message: bytes) -> WhenDue:
        if not message:
            return AT_ONCE  # it was purged
        try:
            read = self._decode(message)
        except Exception:
            return WhenDue(math.inf, overdue=True)  # the framework says what is wrong with it, once it is woken
        return self._throttling.due(read)

    def _run(self) -> None:
        fleet = self._throttling.limiter.fleet
        while not self._stopped.wait(_TURN):
            parks = self._parks()
            if parks and fleet is not None:  # a raised rate counts here, and for what is woken here, without delay
                with suppress(Exception):  # the pulse, which reads them too, reports it
                    fleet.follow()
            for park in parks:
                try:
                    self.turn(park, time.monotonic())
                except StoreUnavailable:
                    pass  # nothing is woken, and nothing is lost
                except Exception as error:
                    if self._failed.due():
                        self._log.warning("Parked jobs of %s wait: %r", park.prefix, error)
        for park in self._parks():
            try:
                park.resign(self._owner)
            except Exception:
                self._log.debug("The promoter's lease of %s ends by itself.", park.prefix, exc_info=True)
