"""A store under test, a time that the tests set, and shorthands for calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from throttlekit._core.algorithm import Use
from throttlekit._core.algorithms.token_bucket import TokenBucket
from throttlekit._core.answer import Answer, Caller, Requester
from throttlekit._core.claim import UNIT, StoreClaim
from throttlekit._core.limit.base import Limit
from throttlekit._core.storage_keys import bucket_name
from throttlekit.stores.base import Correction, Lease, Store

__all__ = [
    "NAME",
    "NOW_US",
    "ONE",
    "SECOND_US",
    "SLOW",
    "STEP_US",
    "TEN",
    "Bench",
    "run_in_threads",
]

NOW_US = 1_800_000_000_000_000
"""The top of an hour, in UTC: 08:00 on 15 January 2027."""
SECOND_US = 1_000_000

NAME = "conformance"
"""The name of every limit: their definitions differ, so their states stay apart, on one node of a cluster."""
TEN = TokenBucket(NAME, "10/s", burst=5)
ONE = TokenBucket(NAME, "10/s", burst=1)
SLOW = TokenBucket(NAME, "1/s", burst=1)
STEP_US = 100_000
"""One unit of `TEN` and of `ONE`."""


_OWNER, _FREE = "bench", 100


class Bench:
    """
    A store under test, and the time at which it decides.

    Args:
        spread: Give each limit a name of its own, as the limits of a fleet have.
    """

    def __init__(self, store: Store, *, spread: bool = False) -> None:
        self.store = store
        self.now_us = NOW_US
        self.spread = spread
        self._end: Callable[[], None] | None = None

    def decide(
        self,
        *limits: Limit,
        key: str = "",
        cost: int | Sequence[int] | None = None,
        caller: Caller = Caller.WITHOUT_JOB,
        job: str = "",
        max_wait_us: int | None = None,
        holder: str = "",
        tenant: str = "",
        weight: int = 1,
    ) -> Answer:
        """
        Make one request for *limits*.

        Args:
            cost: For all of them, or for each.
            job: Who asks is the job of this id, which waits if it is denied.
            holder: Who holds the slots of concurrency limits.
            tenant, weight: Whose share of the limits the job takes, and how large it is.
        """
        costs = cost if isinstance(cost, Sequence) else [cost] * len(limits)
        claims = [self.claim(limit, key, units, holder) for limit, units in zip(limits, costs, strict=True)]
        if tenant:
            claims = [replace(each, tenant=tenant, step=-(-each.cost * UNIT // weight)) for each in claims]
        if job and caller is Caller.WITHOUT_JOB:
            caller = Caller.JOB
        if job and caller is not Caller.PEEK:
            self._listen()
        requester = Requester(caller, job, _OWNER if job else "", _FREE if job else 0, max_wait_us)
        return self.store.decide(claims, requester, self.now_us)

    def look(self, *limits: Limit, cost: int | None = None, key: str = "", job: str = "") -> Answer:
        """The answer that `ask` would return, without taking anything."""
        return self.decide(*limits, key=key, cost=cost, caller=Caller.PEEK, job=job)

    def woken(self, limit: Limit, key: str = "") -> list[str]:
        """The jobs of `ask` that were woken, and may ask again now. The store wakes a few at a time."""
        look = self.store.look(self.claim(limit, key), _OWNER, _FREE, (), self.now_us)
        return [wake.id for wake in look.wakes if not wake.in_us]

    def pass_woken(self, limit: Limit, key: str = "", cost: int | None = None) -> list[str]:
        """The jobs that pass now, in their order: each asks as it is woken."""
        passed: list[str] = []
        while woken := self.woken(limit, key):
            for id in woken:
                assert self.decide(limit, key=key, cost=cost, job=id).allowed, f"{id} was woken"
            passed += woken
        return passed

    def forget(self, *limits: Limit, job: str) -> None:
        """The *job* waits no longer."""
        self.store.forget([self.claim(limit) for limit in limits], [job], now_us=self.now_us)

    def pause(self, limit: Limit, for_us: int | None, *, key: str = "", emptied: bool = False) -> None:
        self.store.pause([self.claim(limit, key)], for_us, now_us=self.now_us, emptied=emptied)

    def lease(self, limit: Limit, holder: str, granted_us: int | None = None, cost: int | None = None) -> Lease:
        claim = self.claim(limit, cost=cost, holder=holder)
        return Lease(claim.bucket, claim.algorithm, self.now_us if granted_us is None else granted_us)

    def release(self, *leases: Lease) -> None:
        self.store.release(leases, now_us=self.now_us)

    def renew(self, *leases: Lease) -> list[bool]:
        return list(self.store.renew(leases, now_us=self.now_us))

    def close(self) -> None:
        if self._end is not None:
            self._end()
        self.store.close()

    def _listen(self) -> None:
        """The store wakes jobs of an owner that listens."""
        if self._end is None:
            self._end = self.store.listen(_OWNER, lambda bucket, wakes: None, lambda: None)

    def drain(self, *limits: Limit, key: str = "") -> None:
        """Take the whole capacity of *limits*."""
        for limit in limits:
            assert self.decide(limit, key=key, cost=limit.capacity).allowed, f"{limit} must be full before this"

    def settle(self, *limits: Limit, was: int, actual: int, granted_us: int | None = None) -> None:
        """Correct a charge of *was* units to *limits*, made now or at *granted_us*, to *actual* units."""
        corrections: list[Correction] = []
        for limit in limits:
            algorithm = limit.bind(was, self.now_us)
            by = limit.bind(actual, self.now_us).size - algorithm.size
            granted_us = self.now_us if granted_us is None else granted_us
            corrections.append(Correction(self.claim(limit).bucket, algorithm, granted_us, by))
        self.store.settle(corrections, now_us=self.now_us)

    def use(self, limit: Limit, key: str = "") -> Use:
        """The use of *limit* now."""
        use = self.look(limit, key=key).uses[0]
        assert use is not None, "a answer has the use of each claim"
        return use

    def left(self, limit: Limit, key: str = "") -> int:
        """How many units of *limit* are left now."""
        return limit.remaining(self.use(limit, key), self.now_us)

    def untouched(self, *limits: Limit) -> bool:
        """Whether all of *limits* are unused, and no job waits for them."""
        return all(
            self.use(limit) == (0, self.now_us) and self.look(limit, cost=limit.capacity).allowed for limit in limits
        )

    def passing(self, limit: Limit, *, key: str = "") -> int:
        """How many units pass now, one by one, until the first denial. Keeps no position."""
        passed = 0
        while self.decide(limit, key=key, cost=1, caller=Caller.WITHOUT_JOB, max_wait_us=0).allowed:
            passed += 1
        return passed

    def reset(self, limit: Limit) -> None:
        self.store.reset([self.claim(limit).bucket])

    def claim(self, limit: Limit, key: str = "", cost: int | None = None, holder: str = "") -> StoreClaim:
        algorithm = limit.bind(1 if cost is None else cost, self.now_us, holder)
        name = f"{limit.name}-{limit.fingerprint}" if self.spread else limit.name
        bucket = bucket_name(name, key, limit.fingerprint)
        units = 1 if cost is None else cost
        return StoreClaim(bucket, algorithm, units, limit.max_queue)


def run_in_threads(threads: int, work: Callable[[int], None]) -> None:
    """Run `work(number)` in so many threads at the same time, and wait until all have ended."""
    running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
