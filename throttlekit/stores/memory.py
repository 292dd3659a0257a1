"""The store in this process: for a single worker, for tests, and as the reference for the other stores."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from throttlekit._core.acquire import State, acquire, kept_until_us, leave, pause, slow
from throttlekit._core.algorithm import Algorithm, stored_until_us
from throttlekit._core.claim import StoreClaim
from throttlekit._core.latency import Drop, after_drop
from throttlekit._core.line import KEPT_US, Line
from throttlekit._core.storage_keys import line_name
from throttlekit._core.verdict import Verdict
from throttlekit._util.fork_safety import renew_lock_after_fork
from throttlekit.stores.base import Correction, Lease, Request, Slowing, Wait

__all__ = ["MemoryStore"]

_WRITES_PER_SWEEP = 4096
_N = TypeVar("_N", Correction, Lease)


def _wall_clock_us() -> Callable[[], int]:
    # The wall clock is read once. From then on the monotonic clock counts, so a step of the wall clock has no effect.
    start_ns = time.time_ns() - time.monotonic_ns()
    return lambda: (start_ns + time.monotonic_ns()) // 1000


class MemoryStore:
    """
    A store in this process only: the limits hold for its threads, and not for other processes.

    A forked child starts with a copy, and counts by itself from then on.

    Args:
        clock_us: For tests: returns the time in microseconds.
    """

    def __init__(self, *, clock_us: Callable[[], int] | None = None) -> None:
        self._clock_us = clock_us or _wall_clock_us()
        self._secret = os.urandom(8).hex()
        self._lock = threading.Lock()
        renew_lock_after_fork(self, "_lock")
        self._values: dict[str, tuple[object, int]] = {}
        self._writes_until_sweep = _WRITES_PER_SWEEP

    def acquire(self, request: Request, now_us: int | None = None) -> Verdict:
        with self._lock:
            now_us = self._clock_us() if now_us is None else now_us
            claims, caller, places, max_wait_us, grace_us = request[:5]
            states = [self._state(claim, now_us) for claim in claims]
            verdict, changed = acquire(
                claims, states, now_us,
                caller=caller, places=places, max_wait_us=max_wait_us, grace_us=grace_us, secret=self._secret,
            )  # fmt: skip
            for claim, before, after in zip(claims, states, changed, strict=True):
                if after.taken is not before.taken:
                    self._put_taken(claim.bucket, claim.algorithm, after.taken, now_us)
                self._put_line(claim, before, after, now_us)
            return verdict

    def leave(self, waits: Sequence[Wait], now_us: int | None = None) -> None:
        with self._lock:
            now_us = self._clock_us() if now_us is None else now_us
            for each in waits:
                before = self._state(each.claim, now_us)
                self._put_line(each.claim, before, leave(before, each.claim, each.place, now_us), now_us)

    def settle(self, corrections: Sequence[Correction], now_us: int | None = None) -> None:
        def settled(each: Correction, algorithm: Any, state: Any, now_us: int) -> tuple[Any, bool]:
            return algorithm.settled(state, now_us, each.granted_us, each.by), True

        self._change(corrections, settled, now_us)

    def release(self, leases: Sequence[Lease], now_us: int | None = None) -> None:
        def released(each: Lease, algorithm: Any, state: Any, now_us: int) -> tuple[Any, bool]:
            return algorithm.released(state, now_us, each.granted_us), True

        self._change(leases, released, now_us)

    def renew(self, leases: Sequence[Lease], now_us: int | None = None) -> Sequence[bool]:
        def renewed(_: Lease, algorithm: Any, state: Any, now_us: int) -> Any:
            return algorithm.renewed(state, now_us)

        return self._change(leases, renewed, now_us)

    def pause(
        self, claims: Sequence[StoreClaim], for_us: int | None, now_us: int | None = None, *, emptied: bool = False
    ) -> None:
        with self._lock:
            now_us = self._clock_us() if now_us is None else now_us
            for each in claims:
                before = self._state(each, now_us)
                self._put_line(each, before, pause(before, now_us, for_us, emptied=emptied), now_us)

    def slow(self, slowings: Sequence[Slowing], now_us: int | None = None) -> None:
        with self._lock:
            now_us = self._clock_us() if now_us is None else now_us
            for each in slowings:
                before = self._state(each.claim, now_us)
                if not isinstance(each.why, Drop):
                    self._put_line(each.claim, before, slow(before, each.claim, each.why, now_us), now_us)
                    continue
                taken = after_drop(before.taken, each.claim.algorithm, each.why, now_us)
                if taken is not before.taken:
                    self._put_taken(each.bucket, each.claim.algorithm, taken, now_us)

    def reset(self, names: Sequence[str]) -> None:
        with self._lock:
            for name in names:
                self._values.pop(name, None)

    def clear_lines(self, names: Sequence[str]) -> None:
        with self._lock:
            for name in names:
                line, expires_us = self._values.pop(name, (None, 0))
                if isinstance(line, Line) and (pause := line.cleared()) is not None:
                    self._values[name] = pause, expires_us

    def close(self) -> None:
        """Does nothing: there is no connection, and the state is kept."""

    def __len__(self) -> int:
        return len(self._values)

    def _change(
        self, items: Sequence[_N], change: Callable[[_N, Any, Any, int], tuple[Any, bool]], now_us: int | None
    ) -> list[bool]:
        """Store the state that *change* returns for each of *items*, and return what else it returns."""
        with self._lock:
            now_us = self._clock_us() if now_us is None else now_us
            results: list[bool] = []
            for each in items:
                before = self._get(each.bucket, now_us)
                after, result = change(each, each.algorithm, each.algorithm.sanitized(before, now_us), now_us)
                if after is not before:
                    self._put_taken(each.bucket, each.algorithm, after, now_us)
                results.append(result)
            return results

    def _state(self, claim: StoreClaim, now_us: int) -> State:
        taken, line = self._get(claim.bucket, now_us), self._get(line_name(claim.bucket), now_us)
        return State(taken, line)  # type: ignore[arg-type]

    def _put_taken(self, name: str, algorithm: Algorithm, taken: object, now_us: int) -> None:
        self._put(name, taken, stored_until_us(algorithm, taken, now_us), now_us)

    def _put_line(self, claim: StoreClaim, before: State, after: State, now_us: int) -> None:
        if after.line is None:
            self._values.pop(line_name(claim.bucket), None)
        elif after.line is not before.line:
            last_us = kept_until_us(after, claim.algorithm, now_us)
            self._put(line_name(claim.bucket), after.line, last_us, now_us)

    def _get(self, name: str, now_us: int) -> object:
        value, expires_us = self._values.get(name, (None, 0))
        return value if now_us < expires_us else None

    def _put(self, name: str, value: object, last_us: int, now_us: int) -> None:
        self._values[name] = (value, last_us + KEPT_US)
        self._writes_until_sweep -= 1
        if self._writes_until_sweep <= 0:
            self._values = {name: entry for name, entry in self._values.items() if now_us < entry[1]}
            self._writes_until_sweep = max(_WRITES_PER_SWEEP, len(self._values))
