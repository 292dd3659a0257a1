"""The store in this process: for a single worker, for tests, and as the reference for the scripts."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from throttlekit._core.algorithm import Algorithm
from throttlekit._core.answer import Answer, Caller, Look, Reason, Requester
from throttlekit._core.claim import StoreClaim
from throttlekit._core.decide import Stored, decide, look
from throttlekit._core.storage_keys import granted_name, wait_names
from throttlekit._core.wait_control import (
    Charge,
    Waiting,
    Where,
    clear,
    forget,
    kept_until_us,
    list_waiting,
    pause,
    return_units,
    slow,
    where,
)
from throttlekit._core.waitlist import Ring, Wake
from throttlekit._util.fork_safety import renew_lock_after_fork
from throttlekit.stores.base import Correction, Lease, Slowing
from throttlekit.stores.waitlists import MOST_LISTED, binding_where, unit_of

__all__ = ["MemoryStore"]

_KEPT_US = 5_000_000
"""The time for which a state is kept after its last unit has expired."""

_WRITES_PER_SWEEP = 4096
_N = TypeVar("_N", Correction, Lease)


def _wall_clock_us() -> Callable[[], int]:
    # The wall clock is read once. From then on the monotonic clock counts, so a step of the wall clock has no effect.
    start_ns = time.time_ns() - time.monotonic_ns()
    return lambda: (start_ns + time.monotonic_ns()) // 1000


class MemoryStore:
    """
    A store in the memory of this process: the limits apply to its threads, but not to other processes.

    A forked child starts with a copy, and then counts independently.

    Args:
        clock_us: For tests: returns the time in microseconds.
    """

    def __init__(self, *, clock_us: Callable[[], int] | None = None) -> None:
        self._clock_us = clock_us or _wall_clock_us()
        self._lock = threading.Lock()
        renew_lock_after_fork(self, "_lock")
        self._values: dict[str, tuple[object, int]] = {}
        self._writes_until_sweep = _WRITES_PER_SWEEP
        self._listeners: dict[str, Callable[[str, Sequence[Wake]], None]] = {}

    @staticmethod
    def beside(store: object) -> MemoryStore:
        """Return an empty store, with the clock of *store* if that is a store in memory."""
        return MemoryStore(clock_us=store._clock_us if isinstance(store, MemoryStore) else None)

    def decide(
        self, claims: Sequence[StoreClaim], requester: Requester, now_us: int | None = None, *, attempt: str = ""
    ) -> Answer:
        with self._bells() as bell, self._lock:
            now_us = self._clock_us() if now_us is None else now_us
            states = [self._stored(claim, now_us) for claim in claims]
            lists = [state.waitlist for state in states if state.waitlist is not None]
            waited = any(requester.job in waitlist.entries for waitlist in lists)
            repeats = attempt and not waited and not any(each.pause.at(now_us).until_us > now_us for each in lists)
            granted = self._get(granted_name(claims[0].bucket, requester.job), now_us) if repeats else None
            mine = f"{requester.owner} {attempt} {len(claims)}"  # with more or fewer claims it is another request
            if isinstance(granted, tuple) and granted[0] == mine:
                return granted[1]  # type: ignore[no-any-return]
            answer, changed = decide(claims, states, now_us, requester, bell, self._epoch())
            for claim, before, after in zip(claims, states, changed, strict=True):
                self._put_stored(claim, before, after, now_us)
            if answer.reason is Reason.ALLOWED and waited and attempt and requester.caller is not Caller.PEEK:
                again = answer._replace(wakes=(), looks=())
                self._put(granted_name(claims[0].bucket, requester.job), (mine, again), now_us, now_us)
            return answer

    def has_list(self, bucket: str) -> bool:
        """Whether jobs wait on the list of *bucket*."""
        return wait_names(bucket)[0] in self._values

    def look(
        self, claim: StoreClaim, owner: str, free: int, ids: Sequence[str] = (), now_us: int | None = None
    ) -> Look:
        with self._bells() as bell, self._lock:
            now_us = self._clock_us() if now_us is None else now_us
            before = self._stored(claim, now_us)
            found, after = look(claim, before, now_us, owner, free, ids, bell)
            self._put_stored(claim, before, after, now_us)
            return found

    def forget(
        self,
        claims: Sequence[StoreClaim],
        ids: Sequence[str],
        owner: str = "",
        now_us: int | None = None,
        *,
        keep: bool = False,
    ) -> None:
        def remove_jobs(number: int, state: Stored, now_us: int, ring: Ring) -> Stored:
            return forget(claims[number], state, now_us, ids, owner, ring, keep=keep)

        self._change_lists(claims, remove_jobs, now_us)

    def return_units(self, charges: Sequence[Charge], requester: Requester, now_us: int | None = None) -> None:
        epoch = self._epoch()

        def return_charge(number: int, state: Stored, now_us: int, ring: Ring) -> Stored:
            return return_units(charges[number], state, now_us, requester, ring, epoch)

        self._change_lists([each.claim for each in charges], return_charge, now_us)

    def where(self, claims: Sequence[StoreClaim], id: str, now_us: int | None = None) -> Where | None:
        with self._lock:
            now_us = self._clock_us() if now_us is None else now_us
            return binding_where(where(claims, [self._stored(each, now_us) for each in claims], now_us, id))

    def list_waiting(self, claim: StoreClaim, most: int = 0) -> Waiting:
        with self._lock:
            return list_waiting(self._stored(claim, self._clock_us()), min(most, MOST_LISTED))

    def listen(
        self, owner: str, on_wakes: Callable[[str, Sequence[Wake]], None], missed: Callable[[], None] | None = None
    ) -> Callable[[], None]:
        """
        Call *on_wakes* with the bucket and the wakes of *owner*. Return a function that stops this.

        Args:
            missed: Never called, because no wake is missed.
        """
        self._listeners[owner] = on_wakes

        def end() -> None:
            if self._listeners.get(owner) is on_wakes:
                del self._listeners[owner]

        return end

    def settle(self, corrections: Sequence[Correction], now_us: int | None = None) -> None:
        def settle(each: Correction, known: Any, now_us: int) -> Any:
            return each.algorithm.settle(known, now_us, each.granted_us, each.by)

        self._correct(corrections, settle, now_us)

    def release(self, leases: Sequence[Lease], now_us: int | None = None) -> None:
        def release(each: Lease, known: Any, now_us: int) -> Any:
            algorithm: Any = each.algorithm
            return algorithm.release(known, now_us, each.granted_us)

        self._correct(leases, release, now_us)

    def renew(self, leases: Sequence[Lease], now_us: int | None = None) -> Sequence[bool]:
        with self._lock:
            now_us = self._clock_us() if now_us is None else now_us
            renewed: list[bool] = []
            for each in leases:
                algorithm: Any = each.algorithm
                before = self._get(each.bucket, now_us)
                after, has_slot = algorithm.renew(algorithm.sanitize(before, now_us), now_us)
                if after is not before:
                    self._put_taken(each.bucket, algorithm, after, now_us)
                renewed.append(has_slot)
            return renewed

    def pause(
        self, claims: Sequence[StoreClaim], for_us: int | None, now_us: int | None = None, *, emptied: bool = False
    ) -> None:
        units = [unit_of(each) for each in claims]

        def pause_list(number: int, state: Stored, now_us: int, ring: Ring) -> Stored:
            return pause(units[number], state, now_us, for_us, emptied, ring)

        self._change_lists(units, pause_list, now_us)

    def slow(self, slowings: Sequence[Slowing], now_us: int | None = None) -> None:
        def slow_list(number: int, state: Stored, now_us: int, ring: Ring) -> Stored:
            return slow(units[number], state, now_us, slowings[number].why, ring)

        units = [unit_of(each.claim) for each in slowings]
        self._change_lists(units, slow_list, now_us)

    def reset(self, buckets: Sequence[str]) -> None:
        with self._lock:
            for bucket in buckets:
                for name in (bucket, *wait_names(bucket)):
                    self._values.pop(name, None)

    def clear_waitlists(self, buckets: Sequence[str]) -> int:
        cleared = 0
        with self._lock:
            for bucket in buckets:
                name = wait_names(bucket)[0]
                waitlist, expires_us = self._values.pop(name, (None, 0))
                left = clear(Stored(None, waitlist)).waitlist  # type: ignore[arg-type]
                cleared += left is not waitlist
                if left is not None:
                    self._values[name] = left, expires_us
        return cleared

    def close(self) -> None:
        """Do nothing: there is no connection, and the state is kept."""

    def __len__(self) -> int:
        return len(self._values)

    def _correct(self, items: Sequence[_N], change: Callable[[_N, Any, int], Any], now_us: int | None) -> None:
        """Store the state that *change* returns for each of *items*, and wake jobs."""
        units = [unit_of(each) for each in items]

        def correct(number: int, state: Stored, now_us: int, ring: Ring) -> Stored:
            each = items[number]
            taken = change(each, each.algorithm.sanitize(state.taken, now_us), now_us)
            return forget(units[number], state._replace(taken=taken), now_us, (), "", ring)

        self._change_lists(units, correct, now_us)

    def _change_lists(
        self,
        claims: Sequence[StoreClaim],
        change: Callable[[int, Stored, int, Ring], Stored],
        now_us: int | None,
    ) -> None:
        """Store the state that *change*, called with the number of a claim, returns for each of *claims*."""
        with self._bells() as bell, self._lock:
            now_us = self._clock_us() if now_us is None else now_us
            for number, claim in enumerate(claims):
                before = self._stored(claim, now_us)
                after = change(number, before, now_us, partial(bell, claim.bucket))
                self._put_stored(claim, before, after, now_us)

    @contextmanager
    def _bells(self) -> Generator[Callable[[str, str, Wake | None], bool], None, None]:
        """Yield a function that collects wakes for owners. They are sent at the end, when the lock is released."""
        rung: list[tuple[Callable[[str, Sequence[Wake]], None], str, Sequence[Wake]]] = []

        def bell(bucket: str, owner: str, wake: Wake | None) -> bool:
            on_wakes = self._listeners.get(owner)
            if on_wakes is not None:
                rung.append((on_wakes, bucket, [] if wake is None else [wake]))
            return on_wakes is not None

        yield bell
        for on_wakes, bucket, wakes in rung:
            on_wakes(bucket, wakes)

    def _epoch(self) -> str:
        return os.urandom(4).hex()

    def _stored(self, claim: StoreClaim, now_us: int) -> Stored:
        taken, waitlist = self._get(claim.bucket, now_us), self._get(wait_names(claim.bucket)[0], now_us)
        return Stored(taken, waitlist)  # type: ignore[arg-type]

    def _put_stored(self, claim: StoreClaim, before: Stored, after: Stored, now_us: int) -> None:
        if after.taken is not before.taken:
            self._put_taken(claim.bucket, claim.algorithm, after.taken, now_us)
        name = wait_names(claim.bucket)[0]
        if after.waitlist is not None:
            self._put(name, after.waitlist, kept_until_us(claim.algorithm, after, now_us), now_us)
        else:
            self._values.pop(name, None)

    def _put_taken(self, name: str, algorithm: Algorithm, taken: object, now_us: int) -> None:
        full_us = algorithm.use(taken, now_us).full_us
        self._put(name, taken, max(full_us, now_us + algorithm.remembered_us), now_us)

    def _get(self, name: str, now_us: int) -> object:
        value, expires_us = self._values.get(name, (None, 0))
        return value if now_us < expires_us else None

    def _put(self, name: str, value: object, last_us: int, now_us: int) -> None:
        self._values[name] = (value, last_us + _KEPT_US)
        self._writes_until_sweep -= 1
        if self._writes_until_sweep <= 0:
            self._values = {name: entry for name, entry in self._values.items() if now_us < entry[1]}
            self._writes_until_sweep = max(_WRITES_PER_SWEEP, len(self._values))
