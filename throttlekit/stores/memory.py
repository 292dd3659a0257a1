"""The whole semantics in one process: for one worker, for tests, and as what the other stores are held to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from throttlekit._core.acquire import State, Verdict, acquire, kept_until_us, pause
from throttlekit._core.claim import StoreClaim
from throttlekit._core.line import GRACE_US
from throttlekit._util.fork_safety import renew_lock_after_fork
from throttlekit.stores.base import Correction, Lease, Request

__all__ = ["MemoryStore"]

_SWEEP_EVERY = 4096
_Change = Callable[[Any, Any, int, int], tuple[Any, bool]]


def _wall_clock_us() -> Callable[[], int]:
    # Read once, then carried on by the monotonic clock: a stepped wall clock changes nothing.
    start_ns = time.time_ns() - time.monotonic_ns()
    return lambda: (start_ns + time.monotonic_ns()) // 1000


class MemoryStore:
    """
    A store in this process only: the limits hold for its threads, and for nobody else.

    A forked child starts with a copy, and counts on its own from then on.

    Args:
        clock_us: For tests: tells the time in microseconds.
    """

    def __init__(self, *, clock_us: Callable[[], int] | None = None) -> None:
        self._clock_us = clock_us or _wall_clock_us()
        self._lock = threading.Lock()
        renew_lock_after_fork(self, "_lock")
        self._values: dict[str, tuple[object, int]] = {}
        self._until_sweep = _SWEEP_EVERY

    def acquire(self, request: Request, now_us: int | None = None) -> Verdict:
        with self._lock:
            now_us = self._clock_us() if now_us is None else now_us
            claims, caller, place, max_wait_us = request
            states = [State(self._get(c.bucket, now_us), self._get(c.line, now_us)) for c in claims]  # type: ignore[arg-type]
            verdict, changed = acquire(claims, states, now_us, caller=caller, place=place, max_wait_us=max_wait_us)
            for claim, before, after in zip(claims, states, changed, strict=True):
                if after.taken is not before.taken:
                    self._put(claim.bucket, after.taken, claim.algorithm.use(after.taken, now_us).full_us, now_us)
                if after.line is None:
                    self._values.pop(claim.line, None)
                elif after.line is not before.line:
                    self._put(claim.line, after.line, kept_until_us(after, claim.algorithm, now_us), now_us)
            return verdict

    def settle(self, corrections: Sequence[Correction], now_us: int | None = None) -> None:
        with self._lock:
            now_us = self._clock_us() if now_us is None else now_us
            for each in corrections:
                before = self._get(each.bucket, now_us)
                believed = each.algorithm.sanitized(before, now_us)
                after = each.algorithm.settled(believed, now_us, each.granted_us, each.by)
                if after is not before:
                    self._put(each.bucket, after, each.algorithm.use(after, now_us).full_us, now_us)

    def release(self, leases: Sequence[Lease], now_us: int | None = None) -> None:
        self._change(
            leases, lambda algorithm, held, now, granted: (algorithm.released(held, now, granted), True), now_us
        )

    def renew(self, leases: Sequence[Lease], now_us: int | None = None) -> Sequence[bool]:
        return self._change(leases, lambda algorithm, held, now, granted: algorithm.renewed(held, now), now_us)

    def pause(self, claims: Sequence[StoreClaim], for_us: int | None, now_us: int | None = None) -> None:
        with self._lock:
            now_us = self._clock_us() if now_us is None else now_us
            for each in claims:
                before = State(self._get(each.bucket, now_us), self._get(each.line, now_us))  # type: ignore[arg-type]
                after = pause(before, now_us, for_us)
                if after.line != before.line:
                    self._put(each.line, after.line, kept_until_us(after, each.algorithm, now_us), now_us)

    def reset(self, names: Sequence[str]) -> None:
        with self._lock:
            for name in names:
                self._values.pop(name, None)

    def close(self) -> None:
        """Nothing to let go of: what is known stays known."""

    def __len__(self) -> int:
        return len(self._values)

    def _change(self, leases: Sequence[Lease], change: _Change, now_us: int | None) -> list[bool]:
        with self._lock:
            now_us = self._clock_us() if now_us is None else now_us
            answers: list[bool] = []
            for each in leases:
                algorithm: Any = each.algorithm
                before = self._get(each.bucket, now_us)
                after, answer = change(algorithm, algorithm.sanitized(before, now_us), now_us, each.granted_us)
                if after is not before:
                    self._put(each.bucket, after, algorithm.use(after, now_us).full_us, now_us)
                answers.append(answer)
            return answers

    def _get(self, name: str, now_us: int) -> object:
        value, expires_us = self._values.get(name, (None, 0))
        return value if now_us < expires_us else None

    def _put(self, name: str, value: object, last_us: int, now_us: int) -> None:
        self._values[name] = (value, last_us + GRACE_US)
        self._until_sweep -= 1
        if self._until_sweep <= 0:
            self._values = {name: entry for name, entry in self._values.items() if now_us < entry[1]}
            self._until_sweep = max(_SWEEP_EVERY, len(self._values))
