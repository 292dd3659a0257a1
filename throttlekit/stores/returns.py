"""Give back slots that the store may keep for no process: a request for them, or their release, got no answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from throttlekit._core.answer import Caller
from throttlekit._core.storage_keys import is_workflow
from throttlekit._util.fork_safety import renew_lock_after_fork
from throttlekit.errors import StoreUnavailable
from throttlekit.stores.base import Correction, Request

__all__ = ["Returns", "slots_of"]

_LONGEST_PAUSE = 1.0
"""Seconds from one try to the next, at most."""
_AT_LEAST = 60.0
"""Seconds for which it is tried; longer if the lease is longer."""
_MOST = 10_000
_MOST_AT_ONCE = 64


@dataclass(slots=True, eq=False)
class _Owed:
    """One slot to give back. Seconds of the monotonic clock."""

    correction: Correction
    since: float
    due: float
    until: float
    answered: bool = False


@dataclass(slots=True, eq=False)
class _Here:
    """What is owed by this process; a forked child owes nothing: its parent gives back its own."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    owed: dict[tuple[str, str], _Owed] = field(default_factory=dict[tuple[str, str], _Owed])
    running: bool = False


class Returns:
    """
    Gives back slots, by the names of their holders, until the store has answered. No other request has such a name, so
    to give back once too often changes nothing.

    A request that got no answer may still be on its way when the store answers again: after the first answer as much
    time passes as before it, and at least a second, and each slot is given back once more.

    The thread starts when a slot is owed, and ends when no slot is.

    Args:
        settle: Gives back slots in the store; see `Store.settle`. It keeps the mean hold as it is.
    """

    def __init__(self, settle: Callable[[Sequence[Correction]], None]) -> None:
        self._settle = settle
        self._here = _Here()
        renew_lock_after_fork(self, "_here", _Here)

    def owe(self, slots: Sequence[Correction], after: float = 0.0) -> None:
        """
        Give back *slots*, which are as `slots_of` returns them. Of more than 10 000 the oldest
        are left to their leases.

        Args:
            after: Seconds until the first try.
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
                threading.Thread(target=self._run, args=(here,), name="throttlekit-returns", daemon=True).start()
                here.running = True
            here.changed.notify()

    def close(self) -> None:
        """Try once more what no answer came to yet; what fails then is left to its lease."""
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
        """Give back all in one go; if that gets no answer, bucket by bucket: one may hold something else."""
        try:
            self._settle([each.correction for each in owed])
        except Exception as error:  # whatever a store raises, it has not answered; the thread lives on
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
    What gives back the slots that *request* may have been granted; nothing for a peek, nor of a workflow's slot, which
    other jobs of it may hold.
    """
    if request.requester.caller is Caller.PEEK:
        return []
    return [
        Correction(claim.bucket, claim.algorithm, 0, -claim.algorithm.size)
        for claim in request.claims
        if claim.algorithm.size and claim.algorithm.holder and not is_workflow(claim.algorithm.holder)
    ]
