"""The circuit breaker before a store: while it does not answer, it is asked about once a second."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from throttlekit._core.acquire import Verdict
from throttlekit._core.claim import StoreClaim
from throttlekit._util.fork_safety import renew_lock_after_fork
from throttlekit._util.log_limiter import Every
from throttlekit.errors import StoreUnavailable
from throttlekit.stores.base import (
    Correction,
    Lease,
    Request,
    Store,
    SupportsBatch,
    SupportsCommands,
    SupportsForget,
    SupportsParts,
    acquire_or_error,
)
from throttlekit.stores.memory import MemoryStore

__all__ = ["CircuitBreaker"]

_log = logging.getLogger("throttlekit")
_T = TypeVar("_T")
_N = TypeVar("_N", StoreClaim, Correction, Lease)

_EVERY = 1.0  # from one question to the next, while it does not answer
_REST = 0.75  # at most, after a question that failed: with the time-out of 0.25 s a second in all
_SPREAD = 0.25
_LONGEST = 5.0  # that whoever asks is waited for


@dataclass(slots=True)
class _Outage:
    """Of the store, or of a part of it."""

    error: StoreUnavailable
    since: float
    name: str  # one of those that failed
    ask_at: float = math.inf
    took: float = 0.0  # the last question
    told: bool = False


class CircuitBreaker:
    """
    A store that is asked about once a second while it gives no answer, by whoever comes first; everybody else is
    told at once what it told last. One that fails in parts, part by part.

    An outage is one line in the log and its end another; both are left out if the last was told within 30 s.

    Args:
        clock: For tests: tells the time in seconds.
    """

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        # Once: to find out what it can takes 10 to 20 µs.
        self._parted = store if isinstance(store, SupportsParts) else None
        self._batched = store if isinstance(store, SupportsBatch) else None
        self._clock = clock
        self._outages: dict[str, _Outage] = {}
        self._lock = threading.Lock()
        renew_lock_after_fork(self, "_lock")
        self._begin, self._fault = Every(clock=clock), Every(clock=clock)

    @property
    def in_memory(self) -> bool:
        """Whether it is of this process, and of no other."""
        return isinstance(self._store, MemoryStore)

    def acquire(self, request: Request, now_us: int | None = None) -> Verdict:
        return self._ask(_names(request), lambda: self._store.acquire(request, now_us))

    def acquire_all(self, requests: Sequence[Request]) -> list[Verdict | Exception]:
        """
        `acquire` of each of *requests*, in one round trip if the store knows how. What that would raise of one stands
        in its place.
        """
        batched = self._batched
        if batched is None:
            return [acquire_or_error(self, request) for request in requests]
        answers: dict[int, Verdict | Exception] = {}
        for number, request in enumerate(requests) if self._outages else ():
            try:
                self._turn_away(_names(request))
            except StoreUnavailable as error:
                answers[number] = error
        asked = [number for number in range(len(requests)) if number not in answers]
        began = self._clock()
        try:
            told = batched.acquire_all([requests[number] for number in asked]) if asked else ()
            answers.update(zip(asked, told, strict=True))
        except StoreUnavailable as error:
            answers.update(dict.fromkeys(asked, error))
        took = self._clock() - began
        for number in asked:
            answer = answers[number]
            if isinstance(answer, StoreUnavailable):
                self._failed(_names(requests[number]), answer, took)
            elif self._outages:
                self._answered(_names(requests[number]))
        return [answers[number] for number in range(len(requests))]

    def settle(self, corrections: Sequence[Correction], now_us: int | None = None) -> None:
        self._part_by_part(corrections, lambda those: self._store.settle(those, now_us))

    def release(self, leases: Sequence[Lease], now_us: int | None = None) -> None:
        self._part_by_part(leases, lambda those: self._store.release(those, now_us))

    def renew(self, leases: Sequence[Lease], now_us: int | None = None) -> Sequence[bool]:
        return self._ask([each.bucket for each in leases], lambda: self._store.renew(leases, now_us))

    def pause(self, claims: Sequence[StoreClaim], for_us: int | None, now_us: int | None = None) -> None:
        self._part_by_part(claims, lambda those: self._store.pause(those, for_us, now_us))

    def reset(self, names: Sequence[str]) -> None:
        self._ask(names, lambda: self._store.reset(names))

    def one_clock(self, name: str) -> bool:
        """Whether one server keeps all names, as it does *name*: each node of a cluster has a clock of its own."""
        return not self._part(name)

    @property
    def shared(self) -> bool:
        """Whether it takes `commands`."""
        return isinstance(self._store, SupportsCommands)

    def commands(self, commands: Sequence[Sequence[str | int]]) -> list[Any]:
        """
        As `SupportsCommands.commands`. During an outage it is tried when a call is due, but does not count as that
        call: the next decision finds out when the outage ends.

        Raises:
            TypeError: The store has no such place; see `shared`.
        """
        store = self._store
        if not isinstance(store, SupportsCommands):
            raise TypeError(f"a {type(store).__name__} has no place that the whole fleet sees")
        names = [str(commands[0][3 if commands[0][0] == "EVAL" else 1])]
        began = self._clock()
        outages = [self._outages.get(part) for part in self._parts(names)] if self._outages else []
        for outage in outages:
            # A process that decides nothing hears of the fleet all the same, once the store is back.
            if outage is not None and outage.ask_at > began:
                raise StoreUnavailable(str(outage.error), part=outage.error.part) from outage.error.__cause__
        try:
            return store.commands(commands)
        except StoreUnavailable as error:
            if error.part is not None:
                self._failed(names, error, self._clock() - began)
            raise

    def forget(self, pattern: str) -> int:
        """
        As `SupportsForget.forget`.

        Raises:
            TypeError: The store cannot.
        """
        if not isinstance(self._store, SupportsForget):
            raise TypeError(f"a {type(self._store).__name__} cannot find names")
        return self._store.forget(pattern)

    def close(self) -> None:
        self._store.close()

    def _ask(self, names: Sequence[str], question: Callable[[], _T]) -> _T:
        if self._outages:
            self._turn_away(names)
        began = self._clock()
        try:
            answer = question()
        except StoreUnavailable as error:
            self._failed(names, error, self._clock() - began)
            raise
        if self._outages:
            self._answered(names)
        return answer

    def _part_by_part(self, what: Sequence[_N], question: Callable[[Sequence[_N]], None]) -> None:
        """What concerns a part that is away keeps nothing from the others; then the first failure is raised."""
        parts: dict[str, list[_N]] = {}
        for each in what:
            parts.setdefault(self._part(each.bucket), []).append(each)
        failed: StoreUnavailable | None = None
        for those in parts.values():
            try:
                self._ask([each.bucket for each in those], partial(question, those))
            except StoreUnavailable as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def _turn_away(self, names: Iterable[str]) -> None:
        """Raise, unless it is time to ask again: then the caller is the one who does."""
        parts, now = self._parts(names), self._clock()
        with self._lock:
            outages = [self._outages[part] for part in parts if part in self._outages]
            last = max(outages, key=lambda outage: outage.ask_at, default=None)
            if last is None or last.ask_at <= now:
                for outage in outages:
                    # Not a flag: if the caller is never heard of again, or the process forks, others ask in his place.
                    # A question to several Sentinels or nodes takes longer than a second: one asks all the same.
                    outage.ask_at = now + min(max(_EVERY, outage.took + _REST), _LONGEST)
                return
            error, rest = last.error, min(last.ask_at - now, _EVERY)
        raise StoreUnavailable(str(error), part=error.part, retry_after=rest, called=False) from error.__cause__

    def _failed(self, names: Iterable[str], error: StoreUnavailable, took: float) -> None:
        error.retry_after = _REST
        if error.part is None:
            if self._fault.due():
                _log.warning("%s. Other questions are not affected.", error)
            return
        parts, now = self._parts(names), self._clock()
        with self._lock:
            for part in [error.part] if error.part in parts else parts:
                outage = self._outages.setdefault(part, _Outage(error, now, parts.get(part, "")))
                next_at = now + _REST
                outage.ask_at = min(outage.ask_at, next_at) if outage.ask_at > now else next_at
                outage.error, outage.took, error.retry_after = error, took, min(outage.ask_at - now, _EVERY)
                if outage.told or not self._begin.due():
                    continue
                outage.told = True
                _log.warning(
                    "%s. It is asked once a second; until it answers jobs are deferred, uncharged, "
                    "but for limits whose on_store_failure= says otherwise.", error,
                )  # fmt: skip

    def _answered(self, names: Iterable[str]) -> None:
        parts, now = self._parts(names), self._clock()
        with self._lock:
            # After a fail-over another node serves what the dead one did: nobody asks that one any more.
            moved = [part for part, outage in self._outages.items() if self._part(outage.name) != part]
            over = [self._outages.pop(part) for part in {*parts, *moved, ""} if part in self._outages]
        for outage in over:
            if outage.told:
                _log.info("The store answers again, after %.1f s.", now - outage.since)

    def _parts(self, names: Iterable[str]) -> dict[str, str]:
        """The parts that serve *names*, and one of them for each."""
        return {self._part(name): name for name in names}

    def _part(self, name: str) -> str:
        return self._parted.part_of(name) if self._parted is not None else ""


def _names(request: Request) -> list[str]:
    return [claim.bucket for claim in request.claims]
