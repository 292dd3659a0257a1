"""The circuit breaker in front of a store: while the store does not respond, one call per second is sent."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from throttlekit._core.answer import Answer, Requester
from throttlekit._core.claim import StoreClaim
from throttlekit._util.fork_safety import renew_lock_after_fork
from throttlekit._util.log_limiter import Every
from throttlekit.errors import StoreUnavailable
from throttlekit.stores.access import StoreAccess
from throttlekit.stores.base import Request, Store, key_of

__all__ = ["CircuitBreaker"]

_log = logging.getLogger("throttlekit")
_T = TypeVar("_T")

_PROBE_INTERVAL = 1.0
"""The time from one call to the next while the store does not respond, in seconds."""
_PAUSE_AFTER_FAILURE = 0.75
"""The longest time from a failed call to the next one, in seconds. With the call's time-out of 0.25 s: one second."""
_LONGEST_PROBE = 5.0
"""The time after which another caller sends a request, although the last one has not ended, in seconds."""


@dataclass(slots=True)
class _Outage:
    """An outage of the store, or of a part of it."""

    error: StoreUnavailable
    since: float
    name: str  # one of the names whose call failed
    probe_at: float = math.inf
    took: float = 0.0  # seconds of the last call
    logged: bool = False


class CircuitBreaker(StoreAccess):
    """
    A circuit breaker around a store. During an outage, one caller per second sends a request, and all other callers get
    the last error at once. Each part of a store, like a node of a cluster, has its own breaker.

    The begin and the end of an outage are logged, but at most one begin every 30 s.

    Args:
        clock: For tests: the time in seconds.
    """

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(store)
        self._clock = clock
        self._outages: dict[str, _Outage] = {}
        self._lock = threading.Lock()
        renew_lock_after_fork(self, "_lock")
        self._begin, self._fault = Every(clock=clock), Every(clock=clock)

    def decide(
        self, claims: Sequence[StoreClaim], requester: Requester, now_us: int | None = None, *, attempt: str = ""
    ) -> Answer:
        if self._outages:
            self._turn_away([claim.bucket for claim in claims])
        began = self._clock()
        try:
            answer = self._store.decide(claims, requester, now_us, attempt=attempt)
        except StoreUnavailable as error:
            self._record_failure([claim.bucket for claim in claims], error, self._clock() - began)
            raise
        if self._outages:
            self._record_answer([claim.bucket for claim in claims])
        return answer

    def decide_all(self, requests: Sequence[Request]) -> list[Answer | Exception]:
        """
        Decide each of *requests*, in one round trip if the store supports it. An error replaces its answer. A request
        to a part that is known to be unavailable is not sent.
        """
        batched = self._batched
        if batched is None:
            return super().decide_all(requests)
        answers: dict[int, Answer | Exception] = {}
        for number, request in enumerate(requests) if self._outages else ():
            try:
                self._turn_away(_names(request))
            except StoreUnavailable as error:
                answers[number] = error
        asked = [number for number in range(len(requests)) if number not in answers]
        began = self._clock()
        try:
            found = batched.decide_all([requests[number] for number in asked]) if asked else ()
            answers.update(zip(asked, found, strict=True))
        except StoreUnavailable as error:
            answers.update(dict.fromkeys(asked, error))
        took = self._clock() - began
        for number in asked:
            answer = answers[number]
            if isinstance(answer, StoreUnavailable):
                self._record_failure(_names(requests[number]), answer, took)
            elif self._outages and not isinstance(answer, Exception):
                self._record_answer(_names(requests[number]))
        return [answers[number] for number in range(len(requests))]

    def commands(self, commands: Sequence[Sequence[str | int]]) -> list[Any]:
        """
        Like `SupportsCommands.commands`. During an outage, commands are sent in addition to the one decision per
        second, just as often. Only a decision ends the outage.

        Raises:
            TypeError: The store does not support it; see `shared`.
        """
        names = [key_of(commands[0])]
        began = self._clock()
        outages = [self._outages.get(part) for part in self._parts(names)] if self._outages else []
        for outage in outages:
            # A process without decisions must also receive the fleet's data when the store responds again.
            if outage is not None and outage.probe_at > began:
                raise _copy(outage.error, 1.0, called=True) from outage.error.__cause__
        try:
            return super().commands(commands)
        except StoreUnavailable as error:
            if error.part is not None:
                self._record_failure(names, error, self._clock() - began)
            raise

    def _ask(self, names: Sequence[str], question: Callable[[Store], _T]) -> _T:
        if self._outages:
            self._turn_away(names)
        began = self._clock()
        try:
            answer = question(self._store)
        except StoreUnavailable as error:
            self._record_failure(names, error, self._clock() - began)
            raise
        if self._outages:
            self._record_answer(names)
        return answer

    def _turn_away(self, names: Iterable[str]) -> None:
        """Raise the last error, unless it is time for another attempt, which this caller then makes."""
        parts, now = self._parts(names), self._clock()
        with self._lock:
            outages = [self._outages[part] for part in parts if part in self._outages]
            last = max(outages, key=lambda outage: outage.probe_at, default=None)
            if last is None or last.probe_at <= now:
                for outage in outages:
                    # A time, not a flag, so that another caller retries if this one never returns, or the process
                    # forks. If a request to several Sentinels or nodes takes over a second, another one is sent.
                    outage.probe_at = now + min(
                        max(_PROBE_INTERVAL, outage.took + _PAUSE_AFTER_FAILURE), _LONGEST_PROBE
                    )
                return
            error, rest = last.error, min(last.probe_at - now, _PROBE_INTERVAL)
        raise _copy(error, rest, called=False) from error.__cause__

    def _record_failure(self, names: Iterable[str], error: StoreUnavailable, took: float) -> None:
        error.retry_after = _PAUSE_AFTER_FAILURE
        if error.part is None:
            if self._fault.due():
                _log.warning("%s%s. Other calls are not affected.", error, _at(error))
            if self._outages:
                self._record_answer(names)  # the store has responded, so the outage is over
            return
        parts, now = self._parts(names), self._clock()
        with self._lock:
            for part in [error.part] if error.part in parts else parts:
                outage = self._outages.setdefault(part, _Outage(error, now, parts.get(part, "")))
                next_at = now + _PAUSE_AFTER_FAILURE
                outage.probe_at = min(outage.probe_at, next_at) if outage.probe_at > now else next_at
                outage.error, outage.took, error.retry_after = error, took, min(outage.probe_at - now, _PROBE_INTERVAL)
                if outage.logged or not self._begin.due():
                    continue
                outage.logged = True
                _log.warning(
                    "%s%s. It is called once a second. Until it responds, jobs are deferred, uncharged, "
                    "except for limits whose on_store_failure= says otherwise.",
                    error,
                    _at(error),
                )

    def _record_answer(self, names: Iterable[str]) -> None:
        parts, now = self._parts(names), self._clock()
        with self._lock:
            # After a fail-over another node serves these names, so no call to the dead node would end its outage.
            moved = [part for part, outage in self._outages.items() if self._part(outage.name) != part]
            over = [self._outages.pop(part) for part in {*parts, *moved, ""} if part in self._outages]
        for outage in over:
            if outage.logged:
                _log.info("The store responds again%s, after %.1f s.", _at(outage.error), now - outage.since)

    def _parts(self, names: Iterable[str]) -> dict[str, str]:
        """Return the parts that serve *names*, each with one of its names."""
        return {self._part(name): name for name in names}


def _at(error: StoreUnavailable) -> str:
    return f" (server {error.server})" if error.server else ""


def _copy(error: StoreUnavailable, retry_after: float, *, called: bool) -> StoreUnavailable:
    copy = StoreUnavailable(str(error), part=error.part, retry_after=retry_after, called=called)
    copy.server = error.server
    return copy


def _names(request: Request) -> list[str]:
    return [claim.bucket for claim in request.claims]
