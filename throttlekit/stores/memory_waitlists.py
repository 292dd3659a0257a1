"""The memory store with waitlists: the reference for the scripts. No adapter uses it yet, so that nothing loads it."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from throttlekit._core.claim import StoreClaim
from throttlekit._core.decide import Answer, Asker, Look, Stored, ask, forget, look, own
from throttlekit._core.latency import Drop
from throttlekit._core.slowdown import slowed
from throttlekit._core.storage_keys import granted_name, wait_names
from throttlekit._core.verdict import Caller, Reason
from throttlekit._core.waitlist import KEPT_US, Waitlist, Wake
from throttlekit.stores.base import Slowing
from throttlekit.stores.memory import MemoryStore

__all__ = ["WaitlistMemoryStore"]


class WaitlistMemoryStore(MemoryStore):
    """
    A memory store whose jobs wait on waitlists. A pause, or a slowdown, is that of the waitlist.

    Args:
        clock_us: For tests: returns the time in microseconds.
    """

    def __init__(self, *, clock_us: Callable[[], int] | None = None) -> None:
        super().__init__(clock_us=clock_us)
        self._listeners: dict[str, Callable[[str, Sequence[Wake]], None]] = {}

    def ask(
        self, claims: Sequence[StoreClaim], asker: Asker, now_us: int | None = None, *, attempt: str = ""
    ) -> Answer:
        with self._bells() as bell, self._lock:
            now_us = self._clock_us() if now_us is None else now_us
            states = [self._stored(claim, now_us) for claim in claims]
            names = [claim.bucket for claim in claims]
            waited = any(state.waitlist is not None and asker.job in state.waitlist.entries for state in states)
            granted = self._get(granted_name(claims[0].bucket, asker.job), now_us) if attempt and not waited else None
            if isinstance(granted, tuple) and granted[0] == f"{asker.owner} {attempt}":
                return granted[1]  # type: ignore[no-any-return]
            answer, changed = ask(
                claims, states, now_us, asker, lambda owner, i, wake: bell(owner, names[i], wake), self._epoch()
            )
            for claim, before, after in zip(claims, states, changed, strict=True):
                self._put_stored(claim, before, after, now_us)
            if answer.reason is Reason.ALLOWED and waited and attempt and asker.caller is not Caller.PEEK:
                again = answer._replace(wakes=(), looks=())
                self._put(
                    granted_name(claims[0].bucket, asker.job), (f"{asker.owner} {attempt}", again), now_us, now_us
                )
            return answer

    def look(
        self, claim: StoreClaim, owner: str, free: int, ids: Sequence[str] = (), now_us: int | None = None, *,
        near: bool = False,
    ) -> Look:  # fmt: skip
        with self._bells() as bell, self._lock:
            now_us = self._clock_us() if now_us is None else now_us
            before = self._stored(claim, now_us)
            found, after = look(
                claim, before, now_us, owner, free, ids, near, lambda name, _, wake: bell(name, claim.bucket, wake)
            )
            self._put_stored(claim, before, after, now_us)
            return found

    def own(self, claim: StoreClaim, owner: str, ids: Sequence[str], now_us: int | None = None) -> Look:
        with self._bells() as bell, self._lock:
            now_us = self._clock_us() if now_us is None else now_us
            before = self._stored(claim, now_us)
            found, after = own(claim, before, now_us, owner, ids, lambda name, _, wake: bell(name, claim.bucket, wake))
            self._put_stored(claim, before, after, now_us)
            return found

    def forget(
        self, claims: Sequence[StoreClaim], ids: Sequence[str], owner: str = "", now_us: int | None = None
    ) -> None:
        with self._bells() as bell, self._lock:
            now_us = self._clock_us() if now_us is None else now_us
            names = [claim.bucket for claim in claims]
            for i, claim in enumerate(claims):
                before = self._stored(claim, now_us)
                after = forget(claim, i, before, now_us, ids, owner, lambda name, i, wake: bell(name, names[i], wake))
                self._put_stored(claim, before, after, now_us)

    def wake(self, claims: Sequence[StoreClaim], now_us: int | None = None) -> None:
        self.forget(claims, (), now_us=now_us)

    def listen(self, owner: str, heard: Callable[[str, Sequence[Wake]], None]) -> Callable[[], None]:
        """
        Call *heard* with the bucket and the wakes of *owner* that other callers make. Returns what ends that.
        """
        self._listeners[owner] = heard

        def end() -> None:
            if self._listeners.get(owner) is heard:
                del self._listeners[owner]

        return end

    def pause(
        self, claims: Sequence[StoreClaim], for_us: int | None, now_us: int | None = None, *, emptied: bool = False
    ) -> None:
        with self._lock:
            now_us = self._clock_us() if now_us is None else now_us
            for each in claims:
                stored = self._stored(each, now_us)
                waitlist = stored.waitlist or Waitlist()
                waitlist.pause = waitlist.pause.at(now_us).changed(now_us, for_us, emptied=emptied)
                self._put_stored(each, stored, Stored(stored.taken, waitlist), now_us)
        self.wake(claims, now_us)

    def slow(self, slowings: Sequence[Slowing], now_us: int | None = None) -> None:
        super().slow([each for each in slowings if isinstance(each.why, Drop)], now_us)
        with self._lock:
            now_us = self._clock_us() if now_us is None else now_us
            for each in slowings:
                if isinstance(each.why, Drop):
                    continue
                stored = self._stored(each.claim, now_us)
                waitlist = stored.waitlist or Waitlist()
                slow, pause = waitlist.slow and waitlist.slow.at(now_us), waitlist.pause.at(now_us)
                waitlist.slow = slowed(slow, each.why, each.claim.algorithm, stored.taken, pause, now_us)
                self._put_stored(each.claim, stored, Stored(stored.taken, waitlist), now_us)

    @contextmanager
    def _bells(self) -> Generator[Callable[[str, str, Wake | None], bool], None, None]:
        """What rings the bells of owners, after the lock is released."""
        rung: list[tuple[Callable[[str, Sequence[Wake]], None], str, Sequence[Wake]]] = []

        def bell(owner: str, bucket: str, wake: Wake | None) -> bool:
            heard = self._listeners.get(owner)
            if heard is not None:
                rung.append((heard, bucket, [] if wake is None else [wake]))
            return heard is not None

        yield bell
        for heard, bucket, wakes in rung:
            heard(bucket, wakes)

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
            self._put(name, after.waitlist, now_us + KEPT_US, now_us)
        else:
            self._values.pop(name, None)
