"""Stores for tests: they record what they are sent, deny as they are set to, or pass everything on."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from throttlekit._core.algorithm import Use
from throttlekit._core.line import Place
from throttlekit._core.verdict import Reason, Verdict
from throttlekit.stores import MemoryStore, Request, Store
from throttlekit.stores.redis_waitlists import WaitlistRedisStore as RedisStore
from throttlekit.stores.wire import arguments_of, script_of

__all__ = ["DenyBefore", "EventDispatcher", "Listed", "Passing", "Recording"]

_OF_WAITLISTS = {"ask", "forget", "list_waiting", "listen", "look", "own", "return_units", "wake", "where"}
_ROUNDED_US = 1000  # timers come a little early


class Passing:
    """A store that passes everything on to `inner`."""

    inner: Store

    def acquire(self, request: Request, now_us: int | None = None) -> Verdict:
        return self.inner.acquire(request, now_us)

    def settle(self, corrections: Any, now_us: int | None = None) -> None:
        self.inner.settle(corrections, now_us)

    def release(self, leases: Any, now_us: int | None = None) -> None:
        self.inner.release(leases, now_us)

    def renew(self, leases: Any, now_us: int | None = None) -> Any:
        return self.inner.renew(leases, now_us)

    def pause(self, claims: Any, for_us: int | None, now_us: int | None = None, *, emptied: bool = False) -> None:
        self.inner.pause(claims, for_us, now_us, emptied=emptied)

    def slow(self, slowings: Any, now_us: int | None = None) -> None:
        self.inner.slow(slowings, now_us)

    def reset(self, names: Any) -> None:
        self.inner.reset(names)

    def clear_lines(self, names: Any) -> None:
        self.inner.clear_lines(names)

    def close(self) -> None:
        self.inner.close()

    def __getattr__(self, name: str) -> Any:
        if name not in _OF_WAITLISTS:
            raise AttributeError(name)
        return getattr(self.inner, name)


class Recording(Passing):
    """A store that remembers each request and its verdict."""

    def __init__(self, inner: Store | None = None) -> None:
        self.inner = MemoryStore() if inner is None else inner
        self._lock = threading.Lock()
        self.asked: list[tuple[Request, Verdict]] = []

    def acquire(self, request: Request, now_us: int | None = None) -> Verdict:
        verdict = self._decide(request, now_us)
        with self._lock:
            self.asked.append((request, verdict))
        return verdict

    @property
    def verdicts(self) -> list[Verdict]:
        with self._lock:
            return [verdict for _, verdict in self.asked]

    @property
    def grants(self) -> int:
        return sum(verdict.allowed for verdict in self.verdicts)

    @property
    def denials(self) -> int:
        return sum(not verdict.allowed for verdict in self.verdicts)

    def names(self) -> set[str]:
        """The bucket names that were asked for."""
        with self._lock:
            return {claim.bucket for request, _ in self.asked for claim in request.claims}

    def _decide(self, request: Request, now_us: int | None) -> Verdict:
        return self.inner.acquire(request, now_us)


class EventDispatcher(Recording):
    """
    A store that tells the fleet's rules, as raw fields and values, by a clock of its own.

    Args:
        clock_us: Tells the time to decisions and to those who follow.
    """

    def __init__(self, clock_us: Any) -> None:
        super().__init__(MemoryStore(clock_us=clock_us))
        self._clock_us = clock_us
        self.told: list[tuple[str, str]] = []
        self.fault: Exception | None = None

    def commands(self, commands: Sequence[Sequence[str | int]]) -> list[Any]:
        if self.fault is not None:
            raise self.fault
        seconds, micros = divmod(self._clock_us(), 1_000_000)
        return [[[b"%d" % seconds, b"%d" % micros], [part.encode() for pair in self.told for part in pair]]]


class DenyBefore(Recording):
    """
    A store that denies *denials* times before each grant, for each key, each time for *delay* seconds.

    Every request that it grants is one charge; nothing else limits it. As a real one it gives places, and
    answers "early" to a job that comes before it is due, which is no denial.
    """

    def __init__(self, denials: int, delay: float = 0.02) -> None:
        super().__init__()
        self._denials = denials
        self.delay = delay
        self._asked_of: Counter[str] = Counter()
        self._counting = threading.Lock()

    def _decide(self, request: Request, now_us: int | None) -> Verdict:
        now_us = time.time_ns() // 1000
        key, uses = request.claims[0].bucket, tuple(Use(0, now_us) for _ in request.claims)
        place = request.places[0] if request.places else None
        if place is not None and place.due_us > now_us + _ROUNDED_US:
            return Verdict(Reason.EARLY, 0, now_us, place.due_us, place.due_us, uses, request.places)
        with self._counting:
            self._asked_of[key] += 1
            grant = self._asked_of[key] % (self._denials + 1) == 0
            number = self._asked_of.total()
        if grant:
            return Verdict(Reason.ALLOWED, 0, now_us, now_us, now_us, uses)
        back_us = now_us + round(self.delay * 1_000_000)
        places = (Place(1, number, number, back_us, ""),) * len(request.claims)
        return Verdict(Reason.EXHAUSTED, 0, now_us, back_us, back_us, uses, places)


class Listed(RedisStore):
    """A Redis store whose decisions go the way of every other command: all that is sent passes through `_run`."""

    def _decide(self, request: Request, now_us: int | None) -> Any:
        return self._run(script_of(request), arguments_of(request, now_us))
