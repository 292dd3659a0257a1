"""Renew leases while their jobs run, with one thread for each store, and one round trip for all leases."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from throttlekit._core.decision import Charged, Decision
from throttlekit._core.limit.base import Limit
from throttlekit._core.storage_keys import is_workflow
from throttlekit._engine.stores import Stores
from throttlekit._util.fork_safety import renew_lock_after_fork
from throttlekit.errors import StoreUnavailable
from throttlekit.stores.base import Correction, Lease

__all__ = ["Heartbeat", "Leases"]

_RETRY_SHARE = 1 / 10
"""The part of a lease after which a renewal is retried if the store did not answer."""


_IDLE_SECONDS = 5.0
"""The seconds without a lease after which the thread ends."""


@dataclass(slots=True, eq=False)
class _Kept:
    """A lease, and the state of its renewal. Times are in seconds of the monotonic clock."""

    lease: Lease
    seconds: float
    on_lost: Callable[[], None]
    due: float
    renewed_at: float
    was_renewed: bool = False
    lost: bool = False


@dataclass(slots=True, eq=False)
class _Known:
    """The leases of this process. A forked child begins with none, because its parent renews its own leases."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    renewing: threading.Lock = field(default_factory=threading.Lock)
    kept: dict[Lease, _Kept] = field(default_factory=dict[Lease, _Kept])
    running: bool = False


class Heartbeat:
    """
    Renews each lease whenever a third of its time is over, until it is dropped.

    The thread starts with the first lease, and ends after some seconds without a lease, so that a limiter that is no
    longer used does not keep a thread.

    Args:
        renew: Renews leases in the store. Returns, for each lease, whether its holder has a slot.
    """

    def __init__(self, renew: Callable[[Sequence[Lease]], Sequence[bool]]) -> None:
        self._renew = renew
        self._known = _Known()
        renew_lock_after_fork(self, "_known", _Known)

    def keep(self, lease: Lease, seconds: float, on_lost: Callable[[], None]) -> None:
        """
        Renew *lease*, which lasts for *seconds*, from now on.

        Args:
            on_lost: Called once, in the heartbeat's thread, when the store reports that others have all slots, or has
                not answered for the time of the lease. Renewals continue, and take a slot again if one becomes
                free.
        """
        known, now = self._known, time.monotonic()
        with known.changed:
            if not known.running:
                threading.Thread(target=self._beat, args=(known,), name="throttlekit-heartbeat", daemon=True).start()
                known.running = True
            known.kept[lease] = _Kept(lease, seconds, on_lost, now + seconds / 3, now)
            known.changed.notify()

    def drop(self, lease: Lease) -> bool:
        """
        Stop renewing *lease*. When this returns, no renewal is in progress that could take the slot again.

        Returns:
            Whether the lease was ever renewed.
        """
        known = self._known
        with known.changed:
            kept = known.kept.pop(lease, None)
        with known.renewing:
            return kept is not None and kept.was_renewed

    def _beat(self, known: _Known) -> None:
        while True:
            with known.changed:
                while not known.kept:
                    if not known.changed.wait(_IDLE_SECONDS) and not known.kept:
                        known.running = False
                        return
                wait = min(kept.due for kept in known.kept.values()) - time.monotonic()
                if wait > 0:
                    known.changed.wait(wait)
                    continue
            with known.renewing:
                with known.changed:
                    every = list(known.kept.values())
                lost = self._renew_all(every) if every else []
            # `on_lost` may release the lease, which waits for `renewing`.
            for kept in lost:
                with suppress(Exception):
                    kept.on_lost()

    def _renew_all(self, every: Sequence[_Kept]) -> list[_Kept]:
        """Renew all leases. Return the lost ones that were not reported before."""
        began_at = time.monotonic()
        for kept in every:
            kept.was_renewed = True
        held = self._renew_each(every)
        lost: list[_Kept] = []
        now = time.monotonic()
        for kept, answer in zip(every, held, strict=True):
            kept.due = now + kept.seconds * (_RETRY_SHARE if answer is None else 1 / 3)
            if answer:
                kept.renewed_at = began_at
            gone = answer is False or now - kept.renewed_at > kept.seconds
            if gone and not kept.lost:
                kept.lost = True
                lost.append(kept)
        return lost

    def _renew_each(self, every: Sequence[_Kept]) -> Sequence[bool | None]:
        """
        Renew all leases in one request. Return the store's answer for each, or None if there was none.

        If the request fails, each bucket is renewed separately, so that an unavailable node of a cluster, or a key of
        another type, does not cost all other leases their slots.
        """
        with suppress(Exception):  # a store may raise any error, and the thread must continue
            answers = self._renew([kept.lease for kept in every])
            if len(answers) == len(every):
                return answers
        buckets: dict[str, list[int]] = {}
        for number, kept in enumerate(every):
            buckets.setdefault(kept.lease.bucket, []).append(number)
        held: list[bool | None] = [None] * len(every)
        if len(buckets) > 1:
            for numbers in buckets.values():
                for number, answer in zip(
                    numbers, self._renew_each([every[number] for number in numbers]), strict=True
                ):
                    held[number] = answer
        return held


class Leases:
    """The leases that are renewed in this process, one heartbeat for each of the *stores*."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._heartbeats = {
            False: Heartbeat(lambda leases: stores.shared.renew(leases)),
            True: Heartbeat(lambda leases: stores.in_process.renew(leases)),
        }

    def keep(self, decision: Decision, on_lost: Callable[[Limit], None]) -> None:
        """Renew the leases of *decision* until they are released. Call *on_lost* with each limit whose slot is lost."""
        for each in decision.leases:
            limit: Any = each.limit
            self._heartbeats[_in_process(each)].keep(_lease(each), limit.lease, partial(on_lost, each.limit))

    def hand_over(self, decision: Decision, pid: int) -> Decision:
        """Stop renewing leases that process *pid* renews now. Return *decision* with the leases to release here."""
        elsewhere = pid != os.getpid()

        def stays(each: Charged) -> bool:
            if elsewhere and _in_process(each):
                return True
            return self._heartbeats[_in_process(each)].drop(_lease(each))

        return replace(decision, charged=tuple([each for each in decision.leases if stays(each)]))

    def release(self, held: Sequence[Charged], *, ran: bool = True, done: bool = False) -> None:
        """
        Release the slots that are *held*. A workflow keeps its slot, unless the workflow is *done*.

        Args:
            ran: Whether the job has run. Then the time for which it held its slots counts for the mean hold.

        Raises:
            StoreUnavailable: The store did not answer. The release is retried until the store answers.
        """
        for store, those in self._stores.split(held, _in_process):
            for each in those:
                self._heartbeats[_in_process(each)].drop(_lease(each))
            leases = [_lease(each, done=done) for each in those]
            try:
                if ran:
                    store.release(leases)
                else:
                    store.settle([_reversal(each) for each in leases])
            except BaseException as error:  # also an interrupt: the body has ended, and its lease is no longer renewed
                after = error.retry_after if isinstance(error, StoreUnavailable) else 0.0
                if store is self._stores.shared:
                    owed = [_reversal(each) for each in leases if done or not is_workflow(each.algorithm.holder)]
                    self._stores.returns.owe(owed, after)
                raise


def _in_process(charged: Charged) -> bool:
    return charged.limit.scope == "process"


def _lease(charged: Charged, *, done: bool = False) -> Lease:
    limit: Any = charged.limit
    algorithm = limit.bind(1, 0, charged.holder)
    return Lease(charged.bucket, replace(algorithm, lease_us=0) if done else algorithm, charged.at_us)


def _reversal(lease: Lease) -> Correction:
    return Correction(lease.bucket, lease.algorithm, lease.granted_us, -lease.algorithm.size)
