"""Who wakes parked jobs: one worker of each queue, by a lease. parking.py says how they are parked."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from throttlekit._util.log_limiter import Every
from throttlekit.adapter.admission import AT_ONCE, Throttling, WhenDue
from throttlekit.adapter.parking import MOST_DUE, MOST_OTHERS, MOST_WOKEN, SOON, SOON_SLOT, Command, Park, Tell
from throttlekit.errors import StoreUnavailable

__all__ = ["Promoter"]

_TURN = 0.5
_LONGEST = 60.0
_FEW = 16
"""Jobs that are woken on the guess that those before them do not come: as many as a line sets aside at first."""

_MOST_CLEARED = 4096
_MOST_EARLY = 200
"""Jobs of one line that are woken before their turn at one look: each costs a worker a request."""

_MOST_LOOKS = 20
_TOGETHER = 50
"""Peeks in one round trip: the store decides all of them before it serves another client."""

_PROBE_EVERY = 2.0
"""Seconds. A line that has become later lives on only if a job asks: less than `_core.line.KEPT_US`."""

_BLOCKED = "."
"""In the name of a line of blocked jobs: between the name of the line that they left and `WhenDue.blocked_by`."""

_M = TypeVar("_M")


@dataclass(slots=True)
class _Turns:
    """
    What a promoter remembers of one park: how many lines to skip next, when it woke a job of a line to make a request,
    and how many due jobs of a line it woke at the last look.
    """

    skip: int = 0
    probed: dict[str, float] = field(default_factory=dict[str, float])
    woken: dict[str, int] = field(default_factory=dict[str, int])


class _Needs(NamedTuple):
    """What a look at one line needs next: the replies of *commands* of the park, and when *messages* are due."""

    commands: Sequence[Command] = ()
    messages: Sequence[bytes] = ()


class _Job(NamedTuple):
    """
    A parked job.

    Attributes:
        name: Its member in the park's sorted set.
        stored: Its message as the park stores it; None if it was purged.
        message: The framework's own part of it; b"" if it was purged.
        lost: Whether it has lost its position.
    """

    name: bytes
    stored: bytes | None
    message: bytes
    lost: bool


_R = TypeVar("_R")
_Steps: TypeAlias = Generator[_Needs, Sequence[Any], _R]
"""A part of a look at one line. It yields what it needs, and is sent the replies."""


class Promoter(Generic[_M]):
    """
    Wakes parked jobs, in a thread of a worker, for each park of which it has the lease.

    Args:
        throttling: Says when a job is due.
        parks: The parks of the queues that the worker serves, as of now.
        decode: Converts a parked message to what *throttling* reads. If it raises, as it cannot read the message or
            does not know its function, the message is woken at once, and the framework reports the error. If it raises
            a ConnectionError, as the worker is not connected, nothing is woken.
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

        All lines are looked at together: what they need next is requested in one round trip. So a turn takes about ten
        round trips, however many lines are due.

        Raises:
            StoreUnavailable: The store of some lines' limits did not answer. What waits for these is not woken.
            Exception: An error of the broker's client, or of one line. The others were looked at.
        """
        turns = self._turns.setdefault(park.prefix, _Turns())
        turns.probed = {lane: at for lane, at in turns.probed.items() if now - at < _PROBE_EVERY}
        looked = dict[str, None]()
        errors: list[Exception] = []
        for number in range(_MOST_LOOKS):
            look = park.look(self._owner, turns.skip)
            if look is None:
                break
            due, others, ending, fresh = look
            if fresh:  # as well after the Redis has lost what it had
                with suppress(Exception):  # this Redis may allow the framework's own keys only
                    park.announce()
            errors += self._end(park, ending)
            lanes = [lane for lane in (*due, *([] if number else others)) if lane not in looked]
            looked.update(dict.fromkeys(lanes))
            errors += self._look_at_all(park, {lane: self._look_at(park, lane, turns, now) for lane in lanes})
            if number == 0:
                turns.skip = turns.skip + len(others) if len(others) == MOST_OTHERS else 0
            if len(ending) < MOST_DUE and (len(due) < MOST_DUE or not lanes):
                break
        turns.woken = {lane: jobs for lane, jobs in turns.woken.items() if lane in looked}  # others may have ended
        for error in sorted(errors, key=lambda each: isinstance(each, StoreUnavailable)):
            raise error

    def _end(self, park: Park, ending: Sequence[bytes]) -> list[Exception]:
        """Wake the jobs of *ending*, which may wait no longer, and return the errors of their lines."""
        ends: dict[str, list[bytes]] = {}
        for job in ending:
            line, _, rest = job.partition(b" ")
            ends.setdefault(line.decode(), []).append(rest)
        replies = park.run([park.wake(line, 0, None, jobs) for line, jobs in ends.items()])
        return [each for each in replies if isinstance(each, Exception)]

    def _look_at_all(self, park: Park, looks: Mapping[str, _Steps[None]]) -> list[Exception]:
        """
        Run all *looks* step by step, with one request to the park and one to the limiter for all that they need next.
        Return the errors that ended some of them.
        """
        errors: list[Exception] = []
        answers: dict[str, Sequence[Any] | None] = dict.fromkeys(looks)
        while answers:
            needs: dict[str, _Needs] = {}
            for lane, answer in answers.items():
                error = next((each for each in answer or () if isinstance(each, Exception)), None)
                try:
                    needs[lane] = looks[lane].send(answer) if error is None else looks[lane].throw(error)  # type: ignore[arg-type]
                except StopIteration:
                    pass
                except Exception as raised:
                    errors.append(raised)
            replies = iter(park.run([command for each in needs.values() for command in each.commands]))
            dues = iter(self._dues([message for each in needs.values() for message in each.messages]))
            answers = {
                lane: [*islice(replies, len(each.commands)), *islice(dues, len(each.messages))]
                for lane, each in needs.items()
            }
        return errors

    def _look_at(self, park: Park, lane: str, turns: _Turns, now: float) -> _Steps[None]:
        """
        Wake what is due soon of *lane*. Two of its jobs are looked at: the first, and one that stands 1.5 times as far
        back as the number of jobs woken at the last look. Those between them are due at even distances.
        """
        first = yield from self._clear(park, lane, 0)
        if first is None:  # none is left, or there is more to clear than one look may
            turns.woken.pop(lane, None)
            yield _Needs([park.wake(lane, 0, 0.0)])
            return
        soon = SOON_SLOT if first.slot else SOON
        waits = (first.blocked_for if first.blocked_by else first.seconds) - soon
        if first.blocked_by or waits > 0:
            turns.woken.pop(lane, None)
            probes = first.overdue and not first.blocked_by and lane not in turns.probed
            if probes:  # it was to be due by now, and its line has become later: the line may be forgotten if none asks
                turns.probed[lane] = now
            look_in = min(max(waits, 0.0), _PROBE_EVERY if first.blocked_by else _LONGEST)
            yield _Needs([park.wake(lane, int(probes), look_in)])
            return
        # `sooner` is a guess, and is written into no message: a job that asks by it in vain makes all behind it later.
        # A few jobs are woken in any case: the process that holds them looks by itself how far the line has moved.
        begins, few = first.seconds + first.sooner, _FEW if first.sooner else 1
        (jobs,) = yield _Needs([park.count(lane)])
        last = max(0, min(jobs, first.most, _MOST_CLEARED) - 1)
        back = min(last, turns.woken.get(lane, last) * 3 // 2)
        due, step = yield from self._pace(park, lane, begins, soon, back, last)
        turns.woken[lane] = due
        due = min(max(due, few), last + 1)
        if first.slot:  # when one comes free is a guess
            yield _Needs([park.wake(lane, min(MOST_WOKEN, due - begun), 0.0) for begun in range(0, due, MOST_WOKEN)])
            return
        for begun in range(0, due, MOST_WOKEN):
            dues = [begins + step * number for number in range(begun, min(due, begun + MOST_WOKEN))]
            (found,) = yield _Needs([park.range(lane, 0, len(dues) - 1)])
            names = [name for name, _ in found]
            if not names:
                return
            (messages,) = yield _Needs([park.messages(names)])
            written = park.write_due_times(messages, dues[: len(names)], self._tell)
            yield _Needs([park.wake(lane, 0, 0.0, names, written)])

    def _pace(
        self, park: Park, lane: str, begins: float, soon: float, back: int, last: int
    ) -> _Steps[tuple[int, float]]:
        """
        How many jobs of *lane* are due within *soon* seconds, and the seconds between two of them. The first is due in
        *begins* seconds, and the one at *back* says when the others are. If that one is due soon too, one further back
        is looked at, up to *last*; if less than half of those before it are, a nearer one. If that job is cleared away
        (`_clear`), the next one is used instead; if there is none, a nearer one.
        """
        known, pace = 0, 0.0
        while True:
            far = (yield from self._clear(park, lane, back)) if back else None
            if back and far is None:
                (jobs,) = yield _Needs([park.count(lane)])
                last = max(0, min(last, jobs - 1))
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

    def _clear(self, park: Park, lane: str, at: int) -> _Steps[WhenDue | None]:
        """
        Remove the jobs of *lane*, from position *at* on, that say nothing about when the others are due. Return when
        the first remaining job is due, which is then at *at*. None: there is none, or more jobs must be removed than
        one look may.

        A job that was purged is removed. A job that is to be woken before its turn (`WhenDue.wakes`), or that has lost
        its position, is woken. A job that other limits block moves to a separate line, where it waits for these.
        """
        own, cleared, woken, size = lane.partition(_BLOCKED)[0], 0, 0, 1
        while cleared < _MOST_CLEARED and woken < _MOST_EARLY:
            jobs = yield from self._read(park, lane, at, size)
            is_end = len(jobs) < size
            purged = [*takewhile(lambda job: not job.message, jobs)]
            if 0 < len(purged) < len(jobs):  # these need no peek, and the job after them may be the first that stays
                jobs, size, is_end = purged, 1, False
            dues = yield _Needs(messages=[job.message for job in jobs])
            wakes: list[_Job] = []
            moves: dict[WhenDue, list[bytes]] = {}
            first: WhenDue | None = None
            for job, due in zip(jobs, dues, strict=True):
                if job.lost or due.wakes:
                    wakes.append(job)
                    woken += bool(job.message)
                elif due.blocked_by and f"{own}{_BLOCKED}{due.blocked_by}" != lane:
                    each = WhenDue(0.0, blocked_by=due.blocked_by, blocker=due.blocker)
                    moves.setdefault(each, []).append(job.name)
                else:
                    first = due
                    break
            written = park.write_due_times([job.stored for job in wakes], [0.0] * len(wakes), self._tell)
            commands = [park.wake(lane, 0, None, [job.name for job in wakes], written)] if wakes else []
            commands += [
                park.move(lane, f"{own}{_BLOCKED}{each.blocked_by}", each.blocker, names, 0.0)
                for each, names in moves.items()
            ]
            if commands:
                yield _Needs(commands)
            if first is not None or is_end:
                return first
            cleared += len(jobs)
            size = min(2 * size, _MOST_EARLY)
        return None

    def _read(self, park: Park, lane: str, at: int, most: int) -> _Steps[list[_Job]]:
        found, epoch = yield _Needs([park.range(lane, at, at + most - 1), park.epoch(lane)])
        if not found:
            return []
        shift = park.shift_in(epoch)
        (messages,) = yield _Needs([park.messages([name for name, _ in found])])
        return [
            _Job(name, message, park.own(message), score <= shift)
            for (name, score), message in zip(found, messages, strict=True)
        ]

    def _dues(self, messages: Sequence[bytes]) -> list[WhenDue | Exception]:
        """Return when the jobs of *messages* are due, or the error of their store."""
        dues: list[WhenDue | Exception] = [AT_ONCE] * len(messages)  # purged, or not to be read here
        read: dict[int, _M] = {}
        for number, message in enumerate(messages):
            if message and (known := self._read_message(message)) is not None:
                read[number] = known
        numbers = [*read]
        for begun in range(0, len(numbers), _TOGETHER):
            part = numbers[begun : begun + _TOGETHER]
            for number, due in zip(part, self._throttling.due_all([read[each] for each in part]), strict=True):
                dues[number] = due
        return dues

    def _read_message(self, message: bytes) -> _M | None:
        """Return *message* as the limiter's host reads it, or None if it cannot be read: the framework reports that."""
        try:
            return self._decode(message)
        except ConnectionError:
            raise
        except Exception as error:
            self._log.debug("A parked message cannot be read, and goes to its queue: %r", error)
            return None

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
