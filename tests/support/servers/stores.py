"""Stores for tests, which record requests, deny as configured, or delegate everything."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from throttlekit._core.algorithm import Use
from throttlekit._core.answer import Answer, Reason, Requester
from throttlekit.stores import MemoryStore, Request, Store
from throttlekit.stores.redis import RedisStore

__all__ = ["DenyBefore", "Listed", "Passing", "Recording", "RuleStore", "ask"]

_OF_WAITLISTS = {"forget", "list_waiting", "listen", "look", "return_units", "where"}


def ask(store: Store, request: Request, now_us: int | None = None) -> Answer:
    """Return the answer of *store* to *request*."""
    return store.decide(request.claims, request.requester, now_us, attempt=request.attempt)


class Passing:
    """A store that delegates everything to `inner`."""

    inner: Store

    def decide(self, claims: Any, requester: Requester, now_us: int | None = None, *, attempt: str = "") -> Answer:
        return self.inner.decide(claims, requester, now_us, attempt=attempt)

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

    def clear_waitlists(self, names: Any) -> int:
        return self.inner.clear_waitlists(names)

    def close(self) -> None:
        self.inner.close()

    def __getattr__(self, name: str) -> Any:
        if name not in _OF_WAITLISTS:
            raise AttributeError(name)
        return getattr(self.inner, name)


class Recording(Passing):
    """A store that records each request and its answer."""

    def __init__(self, inner: Store | None = None) -> None:
        self.inner = MemoryStore() if inner is None else inner
        self._lock = threading.Lock()
        self.asked: list[tuple[Request, Answer]] = []

    def decide(self, claims: Any, requester: Requester, now_us: int | None = None, *, attempt: str = "") -> Answer:
        request = Request(claims, requester, attempt)
        answer = self._decide(request, now_us)
        with self._lock:
            self.asked.append((request, answer))
        return answer

    @property
    def answers(self) -> list[Answer]:
        with self._lock:
            return [answer for _, answer in self.asked]

    @property
    def grants(self) -> int:
        return sum(answer.allowed for answer in self.answers)

    @property
    def denials(self) -> int:
        return sum(not answer.allowed for answer in self.answers)

    def names(self) -> set[str]:
        """Return the bucket names of all requests."""
        with self._lock:
            return {claim.bucket for request, _ in self.asked for claim in request.claims}

    def _decide(self, request: Request, now_us: int | None) -> Answer:
        return self.inner.decide(request.claims, request.requester, now_us, attempt=request.attempt)


class RuleStore(Recording):
    """
    A store that returns the fleet's rules, as raw fields and values, by its own clock.

    Args:
        clock_us: Returns the time for decisions and for rule followers.
    """

    def __init__(self, clock_us: Any) -> None:
        super().__init__(MemoryStore(clock_us=clock_us))
        self._clock_us = clock_us
        self.rules: list[tuple[str, str]] = []
        self.fault: Exception | None = None

    def commands(self, commands: Sequence[Sequence[str | int]]) -> list[Any]:
        if self.fault is not None:
            raise self.fault
        seconds, micros = divmod(self._clock_us(), 1_000_000)
        return [[[b"%d" % seconds, b"%d" % micros], [part.encode() for pair in self.rules for part in pair]]]


class DenyBefore(Recording):
    """
    A store that denies each job *denials* times before each grant, each time for *delay* seconds.

    Every granted request is one charge, and there is no other limit. It has no waitlists.
    """

    def __init__(self, denials: int, delay: float = 0.02) -> None:
        super().__init__()
        self._denials = denials
        self.delay = delay
        self._requests_of: Counter[str] = Counter()
        self._counting = threading.Lock()

    def _decide(self, request: Request, now_us: int | None) -> Answer:
        now_us = time.time_ns() // 1000
        uses = tuple(Use(0, now_us) for _ in request.claims)
        job = request.requester.job
        with self._counting:
            self._requests_of[job] += 1
            grant = self._requests_of[job] % (self._denials + 1) == 0
        if grant:
            return Answer(Reason.ALLOWED, 0, now_us, now_us, uses)
        retry_us = now_us + round(self.delay * 1_000_000)
        return Answer(Reason.EXHAUSTED, 0, now_us, retry_us, uses)


class Listed(RedisStore):
    """A Redis store that sends decisions like every other command, by `_run`."""

    def _decide(self, claims: Any, requester: Requester, now_us: int | None, attempt: str) -> Any:
        return self._run(*self._question(claims, requester, now_us, attempt))
