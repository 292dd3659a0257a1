"""The jobs that wait, in huey's own schedule: how a job goes back, and which one a worker takes next."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from huey.storage import ConnectionError, TimeoutError  # type: ignore[import-untyped]

import throttlekit_lua
from throttlekit.adapter import LANES_EVERY_S, POLL_EVERY_S, SERVER_IS_LATE_S, Deferred, lane_in, look_at_lanes

__all__ = ["PREFIX", "Schedule", "Taken"]

PREFIX = "throttlekit:huey:"
"""What our keys beside huey's begin with; the huey's name in Redis follows."""

_ANOTHERS_AFTER_US = 10_000_000
_INSIST_S, _ASK_AGAIN = 8.0, 0.1
"""For how long, once a message is in hand, a lost connection is waited for: less than until it is another's."""
_HUEYS_AFTER = timedelta(seconds=60)
"""How much later than ours huey's own scheduler takes a due job: only where no worker of ours does."""
_MORE, _MOST_CALLS = -2, 50
"""What huey_wake.lua returns if it is to be called again, and how often one look at a line calls it."""
_NO_LANE, _KEPT = "-", "kept:"
"""The line of a job that waits in none; how the name of a line begins whose jobs something else keeps back."""
_PIECE = 1_000
"""How many keys one command removes."""
_TAKE, _DEFER, _WAKE, _KEEP = (throttlekit_lua.script(f"huey_{name}") for name in ("take", "defer", "wake", "keep"))


@dataclass(frozen=True, slots=True)
class Taken:
    """
    A message that a worker has taken.

    Attributes:
        hand: Identifies this taking of the message while the worker has it in hand, where it is safe; "": it is not in
            hand. The message does not identify itself: huey may have two that are equal byte for byte.
        base: When it would have been due were its line not late, as text; "": it did not wait.
        since: When it was asked for, by the monotonic clock; it came later.
        lane: The line in which it waited; "": it waited in none.
    """

    message: bytes
    hand: str = ""
    base: bytes = b""
    since: float = 0.0
    lane: str = ""

    @property
    def was_kept(self) -> bool:
        """Whether it waited because of something else than its turn, see `Schedule.defer`."""
        return self.lane.startswith(_KEPT)

    def is_kept_by(self, keeper: str) -> bool:
        """Whether it waited because of *keeper*."""
        return self.lane == _KEPT + keeper

    @property
    def in_hand(self) -> bytes:
        """Its member in the sorted set of the jobs in workers' hands; empty: it is not there."""
        return f"{self.hand} ".encode() + self.message if self.hand else b""


class Schedule:
    """
    One huey's queue and schedule in Redis.

    A job that may be held to limits stays in Redis until it is decided on: a worker that is killed before that loses
    none. What idle workers do is in huey_take.lua: one keeps the time for all.

    Args:
        storage: Huey's.
        texts: Returns what to look for in a message of the queue: with none of them in it, no limit holds it.
    """

    def __init__(self, storage: Any, texts: Callable[[], Sequence[str]]) -> None:
        self.storage, self._texts, self._conn = storage, texts, storage.conn
        self._sorted = bool(storage.priority)
        prefix = f"{PREFIX}{storage.name}"
        # A list and a sorted set have different names: the class of a huey may change while the bell is there.
        bell = "bell-by-priority" if self._sorted else "bell"
        self._due, self._in_hand, self._leader, self._bell, self._lanes, self._waiting, self._late = (
            f"{prefix}:{name}" for name in ("due", "in-hand", "leader", bell, "lanes", "waiting", "late")
        )
        self._lane = f"{prefix}:lane:"
        self._take, self._defer, self._wake, self._keep = map(self._conn.register_script, (_TAKE, _DEFER, _WAKE, _KEEP))
        self._look_at, self._id = 0.0, os.urandom(4).hex()
        self._listened: deque[tuple[bytes, str]] = deque()  # a message, and the hand in which it was taken

    def next(self, seconds: float) -> Taken | None:
        """The next message; None: there was none for so many *seconds*."""
        storage, me = self.storage, f"{self._id}-{os.getpid()}-{threading.get_ident()}"
        ours = self._due, self._in_hand, self._leader, self._bell, self._waiting, self._late
        keys = [storage.queue_key, storage.schedule_key, *ours]
        end, got, hand, texts = time.monotonic() + seconds, b"", os.urandom(8).hex(), self._texts()
        with suppress(IndexError):
            got, hand = self._listened.popleft()
        while True:
            args, since = [int(self._sorted), me, _ANOTHERS_AFTER_US, got, hand, *texts], time.monotonic()
            try:
                message, wait_us, flag, *waited = self._take(keys=keys, args=args)
            except BaseException:
                if got:  # it is in no list of Redis
                    self._listened.append((got, hand))
                raise
            if message is not None:
                base, lane = waited or (b"", _NO_LANE.encode())
                return Taken(message, hand if flag else "", base, since, lane.decode().removeprefix(_NO_LANE))
            self._look_at_lanes()
            left = end - time.monotonic()
            if left <= 0 or not storage.blocking:
                return None
            if flag:  # it leads
                time.sleep(min(wait_us / 1_000_000, POLL_EVERY_S, left))
                continue
            # While jobs wait, their lines are looked at that often.
            wait = left if wait_us < 0 else min(left, LANES_EVERY_S, wait_us / 1_000_000 - SERVER_IS_LATE_S)
            got = self._listen(max(wait, POLL_EVERY_S))
            if got and not any(text.encode() in got for text in texts):
                return Taken(got)

    def let_go(self, taken: Taken) -> bool:
        """Huey's own from here on; False: it is another worker's, because this one stood still for too long."""
        if not taken.hand:
            return True
        until = taken.since + _INSIST_S
        gone, again = self._insist(lambda: self._conn.zrem(self._in_hand, taken.in_hand), until)
        return bool(gone) or (again and time.monotonic() < until)  # then it was let go, and the answer was lost

    def defer(
        self, taken: Taken, message: bytes, before: Any, outcome: Deferred, *, kept: str, priority: Any, now: Any
    ) -> bool:
        """
        Put a job back as *outcome* says; return False, and do nothing, if it is another worker's by now.

        Args:
            taken: As it was taken; out of the worker's hand if its body has begun.
            message: What comes back.
            before: The ticket that it carried.
            kept: Stands for what keeps the job back although its turn has come; "": nothing does. Such jobs wait in a
                line of their own: the first of them says nothing of the others in the line of their limit.
            now: By huey's own clock.
        """
        stands, storage = lane_in(outcome.ticket), self.storage
        lane, place, base = _NO_LANE, "", b""
        if kept:
            lane, place = _KEPT + kept, str(stands.start + stands.number or outcome.since_us)
            base = taken.base if taken.lane == lane else b""
        elif stands.start and outcome.decision is not None:
            lane, place = stands.name, str(stands.start + stands.number)  # without shares all starts are the same
            # When a slot is released, or a store answers again, is a guess, and says nothing about the jobs behind.
            counts = outcome.is_answered and stands.place == lane_in(before).place and not stands.slots
            base = taken.base if counts else b""
        line = self._lane + lane, self._lanes
        keys = [self._in_hand, storage.schedule_key, self._due, *line, self._waiting, self._late]
        args = [
            taken.in_hand,
            message,
            storage.convert_ts(now + timedelta(seconds=outcome.delay) + _HUEYS_AFTER),
            round(outcome.delay * 1_000_000),
            int(priority or 0),
            place,
            lane,
            base,
        ]
        back, _ = self._insist(lambda: self._defer(keys=keys, args=args), (taken.since or time.monotonic()) + _INSIST_S)
        if back and taken.lane and taken.lane != lane and (kept or taken.was_kept):
            self.wake(taken.lane)  # the next job can use its unit; or nothing keeps the next job back any more
        return bool(back)

    def wake(self, lane: str, least: float = 0.0) -> bool:
        """The first job of *lane* asks now, if it is due in *least* seconds or later; False: no job stands there."""
        keys = [self._lane + lane, self._due, self._bell, self.storage.schedule_key, self._waiting]
        args = [round(least * 1_000_000), int(self._sorted)]
        for _ in range(_MOST_CALLS):
            answer = int(self._wake(keys=keys, args=args))
            if answer != _MORE:
                return answer >= 0
        return True

    def keep(self, now: Any) -> None:
        """Huey's own scheduler is about to take what is due, by its clock *now*: ours stay."""
        keys = [self.storage.schedule_key, self._due]
        times, kept = [repr(self.storage.convert_ts(at)) for at in (now, now + _HUEYS_AFTER)], 0
        while kept >= 0:
            kept = int(self._keep(keys=keys, args=[*times, kept]))

    def flush(self) -> None:
        """Remove what is stored of jobs beside huey's own keys. A worker that has one in hand does not run it."""
        self._conn.unlink(self._in_hand, self._due, self._waiting, self._late)
        while names := self._conn.zrange(self._lanes, 0, _PIECE - 1):
            self._conn.unlink(*[self._lane + name.decode() for name in names])
            self._conn.zrem(self._lanes, *names)

    def _insist(self, ask: Callable[[], Any], until: float) -> tuple[Any, bool]:
        """What Redis answers to *ask*, and whether it was asked again, as no answer came. From *until* on it raises."""
        again = False
        while True:
            try:
                return ask(), again
            except (ConnectionError, TimeoutError):
                if time.monotonic() > until:
                    raise
                again = True
                time.sleep(_ASK_AGAIN)

    def _listen(self, seconds: float) -> bytes:
        """Wait for a message, or for the bell: then it is empty."""
        keys = [self._bell, self.storage.queue_key]
        pop = self._conn.bzpopmin if self._sorted else self._conn.brpop
        found = None
        with suppress(TimeoutError):
            found = pop(keys, timeout=seconds)
        if found is None or found[0] == self._bell.encode():
            return b""
        return found[1][8:] if self._sorted else found[1]  # type: ignore[no-any-return]

    def _look_at_lanes(self) -> None:
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LANES_EVERY_S
            look_at_lanes(
                self._conn,
                self._lanes,
                self._late,
                lambda name: self.wake(name, LANES_EVERY_S) or None,
                every=LANES_EVERY_S,
                second=1_000_000,
            )
