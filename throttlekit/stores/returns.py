"""Return slots after a request for them, or their release, got no reply, because they may be held without a user."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from throttlekit._core.answer import Caller
from throttlekit._core.storage_keys import is_workflow
from throttlekit._util.fork_safety import renew_lock_after_fork
from throttlekit.errors import StoreUnavailable
from throttlekit.stores.base import Correction, Request

__all__ = ["Returns", "slots_of"]

_LONGEST_PAUSE = 1.0
"""The longest time between two attempts, in seconds."""
_AT_LEAST = 60.0
"""The shortest time for which returning a slot is tried, in seconds; it is longer if the lease is longer."""
_MOST = 10_000
_MOST_AT_ONCE = 64


@dataclass(slots=True, eq=False)
class _Owed:
    """One slot to return. Times are in seconds of the monotonic clock."""

    correction: Correction
    since: float
    due: float
    until: float
    answered: bool = False


@dataclass(slots=True, eq=False)
class _Here:
    """The slots that this process has to return. A forked child starts without any: its parent returns its own."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    owed: dict[tuple[str, str], _Owed] = field(default_factory=dict[tuple[str, str], _Owed])
    running: bool = False


class Returns:
    """
    Returns slots, by the names of their holders, until the store has responded. Each request has its own holder's name,
    so it has no effect to return a slot twice.

    A request without a reply may still arrive at the store later. So each slot is returned once more after the first
    reply: after as much time as it took until that reply, and at least a second.

    The thread starts when there is a slot to return, and ends when there is none.

    Args:
        settle: Returns slots in the store; see `Store.settle`. The mean hold does not change.
    """

    def __init__(self, settle: Callable[[Sequence[Correction]], None]) -> None:
        self._settle = settle
        self._here = _Here()
        renew_lock_after_fork(self, "_here", _Here)

    def owe(self, slots: Sequence[Correction], after: float = 0.0) -> None:
        """
        Begin to return *slots*, a result of `slots_of`. Of more than 10 000 slots, the oldest are free only when their
        leases end.

        Args:
            after: Seconds until the first attempt.
        """
        here, now = self._here, time.monotonic()
        with here.changed:
            for each in slots:
                if holder := each.algorithm.holder:
                    until = now + max(_AT_LEAST, each.algorithm.lease_us / 1_000_000)
                    here.owed[each.bucket, holder] = _Owed(each, now, now + after, until)
            while len(here.owed) > _MOST:
                here.owed.pop(next(iter(here.owed)))
            if here.owed and not here.running:
                with suppress(RuntimeError):  # no thread can start; the next slots to return try again
                    threading.Thread(target=self._run, args=(here,), name="throttlekit-returns", daemon=True).start()
                    here.running = True
            here.changed.notify()

    def close(self) -> None:
        """Try once more to return slots without a reply. If that fails, a slot is free when its lease ends."""
        here = self._here
        with here.changed:
            owed = [each for each in here.owed.values() if not each.answered]
            here.owed.clear()
            here.changed.notify()
        self._try_all(owed)

    def _run(self, here: _Here) -> None:
        while True:
            with here.changed:
                if not here.owed:
                    here.running = False
                    return
                now = time.monotonic()
                wait = min(each.due for each in here.owed.values()) - now
                if wait > 0:
                    here.changed.wait(wait)
                    continue
                due = [each for each in here.owed.values() if each.due <= now]
            self._try_all(due)
            now = time.monotonic()
            with here.changed:
                for name, each in list(here.owed.items()):
                    if each.due == float("inf") or now > each.until:
                        del here.owed[name]

    def _try_all(self, owed: Sequence[_Owed]) -> None:
        for first in range(0, len(owed), _MOST_AT_ONCE):
            self._try(owed[first : first + _MOST_AT_ONCE])

    def _try(self, owed: Sequence[_Owed]) -> None:
        """Return all slots in one call. If that fails, return them bucket by bucket: one key may have a wrong type."""
        try:
            self._settle([each.correction for each in owed])
        except Exception as error:  # any error of a store means that there was no reply; the thread continues
            buckets: dict[str, list[_Owed]] = {}
            for each in owed:
                buckets.setdefault(each.correction.bucket, []).append(each)
            if len(buckets) > 1:
                for part in buckets.values():
                    self._try(part)
                return
            pause = error.retry_after if isinstance(error, StoreUnavailable) else _LONGEST_PAUSE
            for each in owed:
                each.due = time.monotonic() + min(max(pause, 0.05), _LONGEST_PAUSE)
            return
        now = time.monotonic()
        for each in owed:
            if each.answered:
                each.due = float("inf")
                continue
            each.due = now + max(_LONGEST_PAUSE, now - each.since)
            each.until = max(each.until, each.due + _LONGEST_PAUSE)
            each.answered = True


def slots_of(request: Request) -> list[Correction]:
    """
    Return the corrections that return the slots which *request* may have been granted. A peek has none, and neither has
    the slot of a workflow, because the workflow's other jobs may need it.
    """
    if request.requester.caller is Caller.PEEK:
        return []
    return [
        Correction(claim.bucket, claim.algorithm, 0, -claim.algorithm.size)
        for claim in request.claims
        if claim.algorithm.size and claim.algorithm.holder and not is_workflow(claim.algorithm.holder)
    ]
